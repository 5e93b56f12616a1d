"""A policy interpreter that reads the syntax tree record by record: slow and obvious, no code of the cells."""

from __future__ import annotations

from flashnest.policy.facts import RecordFacts
from flashnest.policy.syntax import And, Comparison, Condition, Document, Membership, Name, Not, Number, Or, Text, Value

COMPARE = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
UNITS = {"": 1, "tokens": 1, "B": 1, "KiB": 1024}


def first_match(document: Document, record: RecordFacts) -> int | None:
    """Return the index of the first `place` rule that matches, None without one."""
    params = {param.name.text: param.value for param in document.params}
    for i, place in enumerate(document.places):
        if holds(place.condition, record, params):
            return i
    return None


def holds(condition: Condition, record: RecordFacts, params: dict[str, Value]) -> bool:
    if isinstance(condition, And):
        return all(holds(part, record, params) for part in condition.parts)
    if isinstance(condition, Or):
        return any(holds(part, record, params) for part in condition.parts)
    if isinstance(condition, Not):
        return not holds(condition.part, record, params)
    if isinstance(condition, Comparison):
        return COMPARE[condition.operator](fact(condition.fact, record), constant(condition.value, params))
    if isinstance(condition, Membership):
        low, high = constant(condition.low, params), constant(condition.high, params)
        return low <= fact(condition.fact, record) <= high
    return True


def fact(name: Name, record: RecordFacts) -> int | str:
    values = {
        "tokens": record.tokens,
        "kind": record.kind.name.lower(),
        "namespace": record.namespace,
        "bytes": record.nbytes,
    }
    return values[name.text]


def constant(value: Value, params: dict[str, Value]) -> int | str:
    if isinstance(value, Number):
        return int(value.number) * UNITS[value.unit]
    if isinstance(value, Text):
        return value.value
    return constant(params[value.text], params) if value.text in params else value.text
