"""Why a condition does not take a record: its first false atom, in words, beside what the record has instead.

Atoms are shown by their meaning, with params and classes written out: `tokens < 9` reads `tokens <= 8`.
"""

from __future__ import annotations

from collections.abc import Mapping

from flashnest.policy.evaluate import holds
from flashnest.policy.facts import Fact, FactType, RecordFacts, time_words
from flashnest.policy.moves import MoveRule
from flashnest.policy.resolved import AllOf, AnyOf, InRange, Meaning, Negated, ranges
from flashnest.record import Kind
from flashnest.units import Dimension


def value_words(fact: Fact, code: int, spaces: Mapping[int, str]) -> str:
    """Return a fact's value as a policy would write it: `10min`, `50%`, `chunk`. `spaces` names namespaces by id."""
    if fact.type is FactType.KIND:
        return Kind(code).name.lower()
    if fact.type is FactType.NAMESPACE:
        return f'"{spaces[code]}"' if code in spaces else f"{code:#010x}"
    if fact.dimension is Dimension.DURATION:
        return time_words(code)
    return f"{code}%" if fact.dimension is Dimension.PERCENT else str(code)


def atom_words(atom: InRange, spaces: Mapping[int, str]) -> str:
    """Return an atom as a policy would write it: `tokens >= 32`, `kind = chunk`."""
    fact = atom.fact
    low, high = (value_words(fact, code, spaces) for code in (max(atom.low, fact.low), min(atom.high, fact.high)))
    if atom.low > atom.high:
        return f"{fact.name} never"
    if atom.low == atom.high:
        return f"{fact.name} = {low}"
    if atom.low <= fact.low:
        return f"{fact.name} <= {high}"
    return f"{fact.name} >= {low}" if atom.high >= fact.high else f"{fact.name} in {low}..{high}"


def condition_words(meaning: Meaning, spaces: Mapping[int, str]) -> str:
    """Return a whole condition as a policy would write it; "otherwise" where it takes every record."""
    match meaning:
        case InRange():
            return atom_words(meaning, spaces)
        case Negated(part):
            words = condition_words(part, spaces)
            return f"not {words}" if isinstance(part, InRange) else f"not ({words})"
        case AllOf(parts):
            return " and ".join(_inside(part, spaces) for part in parts) or "otherwise"
        case AnyOf(parts):
            return " or ".join(condition_words(part, spaces) for part in parts) or "never"


def first_false(meaning: Meaning, record: RecordFacts, spaces: Mapping[int, str]) -> str:
    """Return the first atom that keeps a record out and the record's value, "" where the condition takes the record.

    Of an `or` all parts are false, and all are named.
    """
    if holds(meaning, record):
        return ""
    match meaning:
        case AllOf(parts):
            return next(words for part in parts if (words := first_false(part, record, spaces)))
        case AnyOf(parts):
            return "; ".join(first_false(part, record, spaces) for part in parts) or "never holds"
        case _:
            facts = dict.fromkeys(atom.fact for atom in ranges(meaning))
            has = " and ".join(f"{fact.name} is {record_value(fact, record, spaces)}" for fact in facts)
            return f"`{condition_words(meaning, spaces)}` is false: {has}"


def record_value(fact: Fact, record: RecordFacts, spaces: Mapping[int, str]) -> str:
    """Return what a record has of a fact, as a policy would write it."""
    if fact.type is FactType.NAMESPACE:
        return f'"{record.namespace}"'
    return value_words(fact, record.code(fact), spaces)


def why_not(rule: MoveRule, record: RecordFacts, fill: float, spaces: Mapping[int, str]) -> str:
    """Return what keeps a move from a record of its tier while that is `fill` full, 0..1; "" where nothing does."""
    words = first_false(rule.meaning, record, spaces)
    if words or rule.when_fill is None or fill > rule.when_fill:
        return words
    return f"`fill > {100 * rule.when_fill:.4g}%` is false: fill is {100 * fill:.4g}%"


def _inside(part: Meaning, spaces: Mapping[int, str]) -> str:
    words = condition_words(part, spaces)
    return f"({words})" if isinstance(part, AnyOf) else words
