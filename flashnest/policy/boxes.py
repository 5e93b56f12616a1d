"""Sets of cells as boxes, and boxes in words: `tokens = 9..31, kind = chunk`, and one record as a witness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate

import numpy as np

from flashnest.policy.cells import Axis, Grid
from flashnest.policy.facts import DEFAULT_NAMESPACE, Fact, FactType, RecordFacts, time_words
from flashnest.record import BoolArray, Kind, namespace_id, record_bytes
from flashnest.units import Dimension


@dataclass(frozen=True, slots=True)
class Box:
    """A product of sets: for every axis of the cells, the groups inside."""

    groups: tuple[tuple[int, ...], ...]


def boxes(mask: BoolArray) -> Iterator[Box]:
    """Cut a set of cells into boxes that do not overlap, each as large as it grows from its first cell."""
    left = mask.copy()
    while left.any():
        seed = tuple(int(i) for i in np.argwhere(left)[0])
        box = _grown(left, seed)
        left[_index(box)] = False
        yield box


def boxes_within(mask: BoolArray, free: BoolArray) -> Iterator[tuple[Box, Box]]:
    """Cut a set of cells into boxes that may grow over `free` cells too, where no record is.

    Yields (box, cell): the cell is of the set and in the box. Boxes share no cell of the set.
    """
    left, room = np.array(mask), np.array(mask | free)
    while left.any():
        seed = tuple(int(i) for i in np.unravel_index(int(left.argmax()), left.shape))
        box = _grown(room, seed)
        inside = _index(box)
        left[inside] = False
        room[inside] &= free[inside]
        yield box, Box(tuple((i,) for i in seed))


def describe(box: Box, cells: Grid, spaces: Mapping[int, str]) -> str:
    """Say what a box holds; facts that it leaves free are not named; "" for everything."""
    parts = []
    for axis, groups in zip(cells.axes, box.groups, strict=True):
        if len(groups) < axis.groups:
            parts.append(_described(axis, groups, spaces))
    return ", ".join(parts)


def witness(box: Box, cells: Grid, spaces: Mapping[int, str]) -> str:
    """Return one record of the box, written as the `record` of a test."""
    words = []
    for axis, groups in zip(cells.axes, box.groups, strict=True):
        low = axis.intervals(groups)[0][0]
        if axis.fact.name == "tokens":
            words.append(f"tokens: {low}")
        elif axis.fact.type is FactType.KIND:
            words.append(f"kind: {Kind(low).name.lower()}")
        elif len(groups) < axis.groups and axis.fact.type is FactType.NAMESPACE:
            words.append(f"namespace: {_one_name(axis, groups, spaces)}")
        elif len(groups) < axis.groups:
            words.append(f"bytes: {low}")
    return f"{{{', '.join(words)}}}"


def sample(box: Box, grid: Grid, spaces: Mapping[int, str]) -> RecordFacts:
    """Return one record of a box, with facts that fit each other: never longer idle than old, never more hits within a
    time than in all."""
    pairs = list(zip(grid.axes, box.groups, strict=True))
    low = {axis.fact.name: axis.intervals(groups)[0][0] for axis, groups in pairs}
    names = [_one_name(axis, groups, spaces) for axis, groups in pairs if axis.fact.type is FactType.NAMESPACE]
    windows = sorted((axis.fact.window_s, low[axis.fact.name]) for axis in grid.axes if axis.fact.window_s)
    counts = list(accumulate((hits for _, hits in windows), max))
    idle = low.get("idle", 0)
    return RecordFacts(
        tokens=low.get("tokens", 1),
        kind=Kind(low.get("kind", Kind.NGRAM)),
        namespace=names[0] if names else DEFAULT_NAMESPACE,
        nbytes=low.get("bytes", record_bytes()),
        hits=max([low.get("hits", 0), *counts]),
        window_hits=tuple((window_s, hits) for (window_s, _), hits in zip(windows, counts, strict=True)),
        idle_s=idle,
        age_s=max(low.get("age", 0), idle),
        refs=low.get("refs", 0),
        accept_percent=low.get("accept", 100),
    )


def _grown(mask: BoolArray, seed: tuple[int, ...]) -> Box:
    """Grow one axis at a time, the last first, so that the box stays narrow in tokens and wide in the rest."""
    groups = [(i,) for i in seed]
    chosen: list[tuple[int, ...]] = list(groups)
    for position in reversed(range(len(seed))):
        trial = [*chosen]
        trial[position] = tuple(range(mask.shape[position]))
        inside = mask[_index(Box(tuple(trial)))]
        others = tuple(i for i in range(len(seed)) if i != position)
        chosen[position] = tuple(np.flatnonzero(inside.all(axis=others)).tolist())
    return Box(tuple(chosen))


def _index(box: Box) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.intp]], ...]:
    return np.ix_(*box.groups)


def _described(axis: Axis, groups: tuple[int, ...], spaces: Mapping[int, str]) -> str:
    intervals = axis.intervals(groups)
    name = axis.fact.name
    if axis.fact.type is FactType.NAMESPACE:
        return f"namespace {_namespaces(intervals, spaces)}"
    if axis.fact.type is FactType.KIND:
        return f"kind = {Kind(intervals[0][0]).name.lower()}"
    return f"{name} = {' and '.join(_interval(low, high, axis.fact) for low, high in intervals)}"


def _interval(low: int, high: int, fact: Fact) -> str:
    if high == fact.high:
        return f"{_words(low, fact)}.."
    return _words(low, fact) if low == high else f"{_words(low, fact)}..{_words(high, fact)}"


def _words(code: int, fact: Fact) -> str:
    """Return a fact's value as a policy would write it: `10min`, `50%`, `32`."""
    if fact.dimension is Dimension.DURATION:
        return time_words(code)
    return f"{code}%" if fact.dimension is Dimension.PERCENT else str(code)


def _namespaces(intervals: tuple[tuple[int, int], ...], spaces: Mapping[int, str]) -> str:
    inside = {name for code, name in spaces.items() if _holds(intervals, code)}
    if all(low == high and low in spaces for low, high in intervals):
        return f"= {' or '.join(_quoted(inside))}"
    outside = set(spaces.values()) - inside
    return f"other than {' and '.join(_quoted(outside))}"


def _one_name(axis: Axis, groups: tuple[int, ...], spaces: Mapping[int, str]) -> str:
    """Return a namespace of the box: one the policy names, else the default or one nobody named."""
    intervals = axis.intervals(groups)
    candidates = [DEFAULT_NAMESPACE, *sorted(spaces.values()), *(f"tenant{i}" for i in range(len(spaces) + 2))]
    return next(name for name in candidates if _holds(intervals, namespace_id(name)))


def _holds(intervals: tuple[tuple[int, int], ...], code: int) -> bool:
    return reduce(lambda found, interval: found or interval[0] <= code <= interval[1], intervals, False)


def _quoted(names: set[str]) -> list[str]:
    return [f'"{name}"' for name in sorted(names)]
