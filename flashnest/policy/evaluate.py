"""Conditions evaluated: over arrays of facts for the sweep, over one record for tests. numpy only, no cells."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from flashnest.policy.facts import Fact, RecordFacts
from flashnest.policy.resolved import AllOf, AnyOf, InRange, Meaning, Negated
from flashnest.record import BoolArray, FactArrays, U8Array, U32Array

_ARRAYS = {
    "tokens": "tokens",
    "kind": "kind",
    "namespace": "namespace",
    "bytes": "nbytes",
    "hits": "hits",
    "idle": "idle_s",
    "age": "age_s",
    "refs": "refs",
    "accept": "accept_percent",
}
"""Fact name to field of `FactArrays`."""

_Numbers: TypeAlias = U8Array | U32Array


def matches(meaning: Meaning, facts: FactArrays, windows_s: tuple[int, ...]) -> BoolArray:
    """Return which records a condition takes, bool (n,). `windows_s` are the times of `facts.window_hits`.

    A fact outside its range counts as the nearest end of it: a row from NVMe may have more hits than DRAM counts.
    """
    match meaning:
        case InRange(fact, low, high):
            return _in_range(_values(fact, facts, windows_s), fact, low, high)
        case Negated(part):
            return ~matches(part, facts, windows_s)
        case AllOf(parts):
            taken = np.ones(len(facts.tokens), np.bool_)
            for part in parts:
                taken &= matches(part, facts, windows_s)
            return taken
        case AnyOf(parts):
            taken = np.zeros(len(facts.tokens), np.bool_)
            for part in parts:
                taken |= matches(part, facts, windows_s)
            return taken


def holds(meaning: Meaning, record: RecordFacts) -> bool:
    """Return whether a condition takes one record."""
    match meaning:
        case InRange(fact, low, high):
            return low <= record.code(fact) <= high
        case Negated(part):
            return not holds(part, record)
        case AllOf(parts):
            return all(holds(part, record) for part in parts)
        case AnyOf(parts):
            return any(holds(part, record) for part in parts)


def _values(fact: Fact, facts: FactArrays, windows_s: tuple[int, ...]) -> _Numbers:
    if fact.window_s:
        return facts.window_hits[windows_s.index(fact.window_s)]
    values: _Numbers = getattr(facts, _ARRAYS[fact.name])
    return values


def _in_range(values: _Numbers, fact: Fact, low: int, high: int) -> BoolArray:
    """Compare with the ends that the fact can pass; the ends of its range bound nothing."""
    low, high = max(low, fact.low), min(high, fact.high)
    if low > high:
        return np.zeros(len(values), np.bool_)
    above = values >= low if low > fact.low else np.ones(len(values), np.bool_)
    return above & (values <= high) if high < fact.high else above
