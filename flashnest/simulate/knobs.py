"""What of a policy can be tuned: its params, each with the values worth trying on one trace. Runs nothing.

A param's use says which values differ: between two lengths that the trace has, one threshold is as good as another, and
times beyond the trace's own never pass. So each knob is a short ladder, and an optimiser moves along rungs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from itertools import chain
from math import prod
from typing import Final

import numpy as np

from flashnest.policy.compile import Policy
from flashnest.policy.facts import MAX_REFS, MAX_TIME_S, MAX_WINDOW_HITS
from flashnest.policy.syntax import After, Amount, Comparison, Fill, Flush, Membership, Name, Param, Require, Value
from flashnest.simulate.trace import Trace
from flashnest.units import Dimension, Quantity

_NS: Final = 10**9
_UNITS: Final[dict[Dimension, tuple[tuple[str, int], ...]]] = {
    Dimension.COUNT: (("", 1),),
    Dimension.TOKENS: ((" tokens", 1),),
    Dimension.PERCENT: (("%", 1),),
    Dimension.RECORD_RATE: ((" rec/s", 1),),
    Dimension.DURATION: (
        *(("d", 86400 * _NS), ("h", 3600 * _NS), ("min", 60 * _NS), ("s", _NS)),
        *(("ms", 10**6), ("us", 10**3), ("ns", 1)),
    ),
    Dimension.BYTES: (*(("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)), ("B", 1)),
    Dimension.BYTE_RATE: (*((" GB/s", 10**9), (" MB/s", 10**6), (" kB/s", 10**3)), (" B/s", 1)),
}
"""Units of each dimension, largest first, as the language writes them."""

_COUNTS: Final = (*range(1, 9), 10, 12, 16, 24, 32, 48, 64, 96, 128, 192, 255, 384, 512, 768, 1000)
_SECONDS: Final = (1, 2, 3, 5, 10, 15, 20, 30, *(60 * m for m in (1, 2, 3, 5, 10, 15, 20, 30)))
_LONG_SECONDS: Final = (*(3600 * h for h in (1, 2, 3, 6, 12)), *(86400 * d for d in (1, 2, 3, 7, 14, 30, 60, 180)))
_FILLS: Final = (10, 20, 30, 40, 50, 60, 65, 70, 75, 80, 85, 90, 92, 95, 97, 99)
_RATES: Final = tuple(step * 10**power for power in range(1, 6) for step in (1, 2, 5))


@dataclass(frozen=True, slots=True)
class Knob:
    """One param. `values` are the texts that `params` takes, from small to large, `current` among them.

    `uses` says what the policy compares it with: `tokens`, `hits in TIME`, `cooldown`, `when fill`.
    """

    name: str
    uses: tuple[str, ...]
    values: tuple[str, ...]
    current: str

    @property
    def start(self) -> int:
        """Index of the current value."""
        return self.values.index(self.current)


def knobs(policy: Policy, trace: Trace) -> tuple[Knob, ...]:
    """Return a knob for each param of the policy that is a number, is used, and has more than one value to try."""
    found: dict[str, list[tuple[str, Iterable[float]]]] = {}
    for statement in policy.document.statements:
        if not isinstance(statement, Param | Require):  # a requirement is the goal, not a means
            for name, use in _uses(statement):
                found.setdefault(name, []).append((use, _ladder(use, policy.params[name], trace)))
    made = (_knob(name, uses, policy.params[name]) for name, uses in found.items())
    return tuple(knob for knob in made if knob is not None and len(knob.values) > 1)


def combinations(found: tuple[Knob, ...]) -> int:
    """Return how many settings there are in all."""
    return prod(len(knob.values) for knob in found)


def quantity_text(quantity: Quantity) -> str:
    """Write a quantity as the language does, in the largest unit that leaves it whole: `32 tokens`, `10min`."""
    units = _UNITS[quantity.dimension]
    for unit, size in units:
        if quantity.value and quantity.value % size == 0:
            return f"{int(quantity.value) // size}{unit}"
    return f"{quantity.value:g}{units[-1][0]}"


def _knob(name: str, uses: list[tuple[str, Iterable[float]]], current: object) -> Knob | None:
    if not isinstance(current, Quantity):
        return None
    numbers = sorted({current.value, *chain.from_iterable(ladder for _, ladder in uses)})
    texts = [quantity_text(Quantity(number, current.dimension)) for number in numbers]
    return Knob(name, tuple(dict.fromkeys(use for use, _ in uses)), tuple(texts), quantity_text(current))


def _uses(node: object) -> Iterator[tuple[str, str]]:
    """Yield each param that a statement names, and what it stands for there."""
    match node:
        case Comparison(fact=fact, value=value, within=within):
            yield from _named(fact.text if within is None else f"{fact.text} in TIME", value)
            yield from _named("time of hits", within)
        case Membership(fact=fact, low=low, high=high, within=within):
            yield from _named(fact.text if within is None else f"{fact.text} in TIME", low, high)
            yield from _named("time of hits", within)
        case Fill(word=word, value=value):
            yield from _named(f"{word} fill", value)
        case Amount(word=word, value=value):
            yield from _named(word, value)
        case After(count=count, window=window):
            yield from _named("hits to be stored", count)
            yield from _named("time of hits", window)
        case Flush(every=every, most=most):
            yield from _named("every", every)
            yield from _named("at most", most)
        case tuple():
            for part in node:
                yield from _uses(part)
        case _ if is_dataclass(node):
            for field in fields(node):
                yield from _uses(getattr(node, field.name))


def _named(use: str, *values: Value | None) -> Iterator[tuple[str, str]]:
    return ((value.text, use) for value in values if isinstance(value, Name))


def _ladder(use: str, current: object, trace: Trace) -> Iterable[float]:
    """Return the values worth trying for one use, in the base unit of the param's dimension."""
    if not isinstance(current, Quantity):
        return ()
    match current.dimension:
        case Dimension.DURATION:
            return _durations(trace)
        case Dimension.PERCENT:
            return _FILLS if use.endswith("fill") else range(5, 101, 5)
        case Dimension.RECORD_RATE:
            return _RATES
        case Dimension.BYTE_RATE:
            return [rate * 10**5 for rate in _RATES]
    if use in ("tokens", "bytes"):
        return _lengths(trace.tokens if use == "tokens" else trace.nbytes)
    most = {"refs": MAX_REFS, "hits to be stored": 8}.get(use, MAX_WINDOW_HITS)
    return [count for count in _COUNTS if count <= most and not (use == "hits to be stored" and count < 2)]


def _durations(trace: Trace) -> list[float]:
    """Return times up to the first that is longer than the trace: all above that are alike."""
    times = [second for second in _SECONDS + _LONG_SECONDS if second <= MAX_TIME_S]
    longer = next((second for second in times if second > trace.duration_s), times[-1])
    return [second * _NS for second in times if second <= longer]


def _lengths(values: np.ndarray[tuple[int, ...], np.dtype[np.integer]]) -> list[float]:
    """Return each value that the trace has and one above the largest, which no record reaches."""
    distinct = [int(value) for value in np.unique(values)]
    return [*distinct, distinct[-1] + 1] if distinct else []
