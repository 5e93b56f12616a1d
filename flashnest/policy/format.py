"""Nodes back to text, in one canonical form: the name of a rule in messages and in the `by` of a test."""

from __future__ import annotations

from flashnest.policy.syntax import (
    And,
    By,
    Chain,
    Class,
    Clause,
    Comparison,
    Condition,
    Fill,
    Flush,
    Keep,
    Labelled,
    Membership,
    Move,
    Name,
    Not,
    Number,
    Or,
    Otherwise,
    Param,
    Place,
    Reference,
    Require,
    Statement,
    Text,
    Using,
    Value,
)

CLAUSES = ("when", "until", "by", "using", "at most", "cooldown", "min residency")
"""Words that start a clause of a move, in canonical order."""


def format_statement(statement: Statement) -> str:
    """Return a statement on one line: the card's `>=32-token records in DRAM` is `place tokens >= 32 in dram`."""
    match statement:
        case Param(name, value):
            return f"param {name.text} = {format_value(value)}"
        case Class(name, condition):
            return f"class {name.text} = {format_condition(condition)}"
        case _:
            level = " warn" if statement.level is not None and statement.level.text == "warn" else ""
            return _labelled(statement) + level


def _labelled(statement: Labelled) -> str:
    match statement:
        case Keep(condition, tier):
            return f"{_verb('keep', statement)} {format_condition(condition)} in {tier.text.lower()}"
        case Place():
            return _place(statement)
        case Move():
            return _move(statement)
        case Flush(every, most):
            limit = "" if most is None else f" at most {format_value(most)}"
            return f"{_verb('flush', statement)} every {format_value(every)}{limit}"
        case Require(metric, operator, value):
            return f"{_verb('require', statement)} {metric.text} {operator} {format_value(value)}"


def _verb(word: str, statement: Labelled) -> str:
    """Return a statement's first word with its label."""
    return word if statement.label is None else f"{word} {format_value(statement.label)}:"


def _place(place: Place) -> str:
    text = f"{_verb('place', place)} {format_condition(place.condition)} in {format_chain(place.chain)}"
    if place.after is None:
        return text
    return f"{text} after {format_value(place.after.count)} hits in {format_value(place.after.window)}"


def _move(move: Move) -> str:
    words = [_verb(move.action, move)]
    if move.condition is not None:
        words.append(format_condition(move.condition))
    words.append(f"from {move.source.text.lower()}")
    if move.target is not None:
        words.append(f"to {move.target.text.lower()}")
    words += [format_clause(clause) for clause in sorted(move.clauses, key=lambda one: CLAUSES.index(one.word))]
    return " ".join(words)


def format_clause(clause: Clause) -> str:
    """Return a clause as it would be written: `when fill > 90%`, `by idle desc`, `at most 2000 rec/s`."""
    match clause:
        case Fill():
            return f"{clause.word} {clause.fact.text} {clause.operator} {format_value(clause.value)}"
        case By(fact, descending):
            return f"by {fact.text} {'desc' if descending else 'asc'}"
        case Using(algorithm):
            return f"using {algorithm.text.lower()}"
        case _:
            return f"{clause.word} {format_value(clause.value)}"


def format_chain(chain: Chain) -> str:
    """Return the tiers in lower case: `dram else nvme`."""
    return " else ".join(tier.text.lower() for tier in chain.tiers)


def format_condition(condition: Condition) -> str:
    """Return a condition with the fewest parentheses that keep its meaning."""
    match condition:
        case Comparison(fact, operator, value):
            return f"{_subject(fact, condition.within)} {operator} {format_value(value)}"
        case Membership(fact, low, high):
            return f"{_subject(fact, condition.within)} in {format_value(low)}..{format_value(high)}"
        case Reference(name):
            return name.text
        case And(parts):
            return " and ".join(_inside(part, (Or, And)) for part in parts)
        case Or(parts):
            return " or ".join(_inside(part, (Or,)) for part in parts)
        case Not(part):
            return f"not {_inside(part, (Or, And))}"
        case Otherwise():
            return "otherwise"


def format_value(value: Value) -> str:
    """Return a value as it would be written: `32 tokens`, `14GiB`, `"acme"`, `long`."""
    match value:
        case Number(number, unit):
            return f"{number} {unit}" if unit.startswith("token") or "/" in unit else f"{number}{unit}"
        case Text(text):
            return f"'{text}'" if '"' in text else f'"{text}"'
        case Name(text):
            return text


def _subject(fact: Name, within: Value | None) -> str:
    return fact.text if within is None else f"{fact.text} in {format_value(within)}"


def _inside(part: Condition, wrapped: tuple[type, ...]) -> str:
    text = format_condition(part)
    return f"({text})" if isinstance(part, wrapped) else text
