"""Nodes back to text, in one canonical form: the name of a rule in messages and in the `by` of a test."""

from __future__ import annotations

from flashnest.policy.syntax import (
    And,
    Chain,
    Comparison,
    Condition,
    Membership,
    Name,
    Not,
    Number,
    Or,
    Otherwise,
    Param,
    Statement,
    Text,
    Value,
)


def format_statement(statement: Statement) -> str:
    """Return a statement on one line: the card's `>=32-token records in DRAM` is `place tokens >= 32 in dram`."""
    if isinstance(statement, Param):
        return f"param {statement.name.text} = {format_value(statement.value)}"
    return f"place {format_condition(statement.condition)} in {format_chain(statement.chain)}"


def format_chain(chain: Chain) -> str:
    """Return the tiers in lower case: `dram else nvme`."""
    return " else ".join(tier.text.lower() for tier in chain.tiers)


def format_condition(condition: Condition) -> str:
    """Return a condition with the fewest parentheses that keep its meaning."""
    match condition:
        case Comparison(fact, operator, value):
            return f"{fact.text} {operator} {format_value(value)}"
        case Membership(fact, low, high):
            return f"{fact.text} in {format_value(low)}..{format_value(high)}"
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
            return f"{number} {unit}" if unit.startswith("token") else f"{number}{unit}"
        case Text(text):
            return f"'{text}'" if '"' in text else f'"{text}"'
        case Name(text):
            return text


def _inside(part: Condition, wrapped: tuple[type, ...]) -> str:
    text = format_condition(part)
    return f"({text})" if isinstance(part, wrapped) else text
