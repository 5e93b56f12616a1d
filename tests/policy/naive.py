"""A policy interpreter that reads the syntax tree record by record: slow and obvious, no code of the cells."""

from __future__ import annotations

from flashnest.policy.facts import RecordFacts
from flashnest.policy.syntax import (
    And,
    Comparison,
    Condition,
    Document,
    Keep,
    Labelled,
    Membership,
    Move,
    Name,
    Not,
    Number,
    Or,
    Reference,
    Text,
    Value,
)

COMPARE = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
UNITS = {"": 1, "tokens": 1, "B": 1, "KiB": 1024, "%": 1, "s": 1, "min": 60, "h": 3600, "d": 86400}
Words = dict[str, Value | Condition]
"""What the params and classes of a policy stand for."""


def first_match(
    document: Document, record: RecordFacts, trial: int | None = None, without: int | None = None
) -> int | None:
    """Return the index of the first `place` rule that matches and acts, None without one.

    `trial` is the index of a rule that acts though it is a trial, `without` that of one that is not there.
    """
    words = words_of(document)
    for i, place in enumerate(document.places):
        if (acts(place) or i == trial) and i != without and holds(place.condition, record, words):
            return i
    return None


def acts(rule: Labelled) -> bool:
    return rule.level is None or rule.level.text != "warn"


def moves(document: Document, record: RecordFacts) -> list[bool]:
    """Return which of the policy's moves have a condition that takes the record."""
    words = words_of(document)
    return [rule.condition is None or holds(rule.condition, record, words) for rule in document.moves]


def acting(document: Document, record: RecordFacts) -> list[bool]:
    """The same without the moves of records that a `keep` of their source holds; a trial holds none."""
    taken = list(zip(document.moves, moves(document, record), strict=True))
    kept = {rule.tier.text.lower() for rule, takes in taken if isinstance(rule, Keep) and takes and acts(rule)}
    return [takes and not (isinstance(rule, Move) and rule.source.text.lower() in kept) for rule, takes in taken]


def decided(document: Document, record: RecordFacts, tier: str, without: int | None = None) -> str:
    """Return what becomes of a record in a tier that is not full: the rule that decides without its condition."""
    rules = [
        rule
        for i, (rule, takes) in enumerate(zip(document.moves, moves(document, record), strict=True))
        if takes and acts(rule) and i != without
    ]
    if any(isinstance(rule, Keep) and rule.tier.text.lower() == tier for rule in rules):
        return "keep"
    here = [rule for rule in rules if isinstance(rule, Move) and rule.source.text.lower() == tier]
    return " ".join([here[0].action, here[0].target.text.lower() if here[0].target else ""]) if here else ""


def words_of(document: Document) -> Words:
    return {param.name.text: param.value for param in document.params} | {
        one.name.text: one.condition for one in document.classes
    }


def holds(condition: Condition, record: RecordFacts, words: Words) -> bool:
    if isinstance(condition, And):
        return all(holds(part, record, words) for part in condition.parts)
    if isinstance(condition, Or):
        return any(holds(part, record, words) for part in condition.parts)
    if isinstance(condition, Not):
        return not holds(condition.part, record, words)
    if isinstance(condition, Reference):
        return holds(words[condition.name.text], record, words)
    if isinstance(condition, Comparison):
        value = fact(condition.fact, condition.within, record, words)
        return COMPARE[condition.operator](value, constant(condition.value, words))
    if isinstance(condition, Membership):
        low, high = constant(condition.low, words), constant(condition.high, words)
        return low <= fact(condition.fact, condition.within, record, words) <= high
    return True


def fact(name: Name, within: Value | None, record: RecordFacts, words: Words) -> int | str:
    if within is not None:
        return min(record.hits_in(constant(within, words)), 255)
    values = {
        "tokens": record.tokens,
        "kind": record.kind.name.lower(),
        "namespace": record.namespace,
        "bytes": record.nbytes,
        "hits": min(record.hits, 4095),
        "idle": record.idle_s,
        "age": record.age_s,
        "refs": min(record.refs, 1023),
        "accept": record.accept_percent,
    }
    return values[name.text]


def constant(value: Value, words: Words) -> int | str:
    if isinstance(value, Number):
        return int(value.number) * UNITS[value.unit]
    if isinstance(value, Text):
        return value.value
    return constant(words[value.text], words) if value.text in words else value.text
