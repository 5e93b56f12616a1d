"""The cells of a policy: regions of record space inside which every atom has one value.

Atoms compare a fact with a constant, so the constants cut each fact's range into intervals, and intervals that no atom
tells apart are one group. A cell is a group of every fact. Checks look at all cells and the placement is a table over
the same cells, so a check and the router cannot disagree. numpy only; nothing here prints.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np
import numpy.typing as npt

from flashnest.policy.facts import FACTS, Fact
from flashnest.policy.resolved import AllOf, AnyOf, InRange, Meaning, Negated, Rule, ranges
from flashnest.record import BoolArray, I64Array

MAX_CELLS: Final = 2_000_000
"""A table of 6 MB; people's policies have tens to hundreds of cells."""

MAX_RULE_CELLS: Final = 400_000_000
"""Rules times cells: first match takes 2.5 ns for each, so about a second at most."""

NO_RULE: Final = -1


@dataclass(frozen=True, slots=True)
class Axis:
    """One fact cut up. `starts` int64 (intervals,) ascending; `group` int64 (intervals,): each interval's group."""

    fact: Fact
    starts: I64Array
    group: I64Array

    @property
    def groups(self) -> int:
        """How many groups the fact has."""
        return int(self.group.max()) + 1

    def intervals(self, groups: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return the (low, high) intervals of some groups, neighbours joined."""
        ends = np.append(self.starts[1:] - 1, self.fact.high)
        joined: list[tuple[int, int]] = []
        inside = np.zeros(self.groups, np.bool_)
        inside[list(groups)] = True
        for i in np.flatnonzero(inside[self.group]):
            low, high = int(self.starts[i]), int(ends[i])
            if joined and joined[-1][1] == low - 1:
                low = joined.pop()[0]
            joined.append((low, high))
        return tuple(joined)


@dataclass(frozen=True, slots=True)
class Grid:
    """Record space cut up, one axis per fact."""

    axes: tuple[Axis, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Groups per fact."""
        return tuple(axis.groups for axis in self.axes)

    def mask(self, meaning: Meaning) -> BoolArray:
        """Return which cells a condition matches, shape = grid."""
        return np.broadcast_to(_truth(meaning, self._by_fact()), self.shape)

    def _by_fact(self) -> Mapping[str, tuple[int, Axis]]:
        return {axis.fact.name: (i, axis) for i, axis in enumerate(self.axes)}


@dataclass(frozen=True, slots=True)
class Cells(Grid):
    """The cells of the `place` rules, one axis per fact in the order of `FACTS`.

    `first` int64 (grid shape): index of the first rule that matches the cell and is no trial, NO_RULE without one.
    """

    first: I64Array
    rules: tuple[Rule, ...]

    def reach(self, index: int) -> BoolArray:
        """Return the cells that a rule matches and no acting rule above takes, shape = grid."""
        left: BoolArray = (self.first == NO_RULE) | (self.first >= index)
        return self.mask(self.rules[index].meaning) & left


def cell_count(rules: Sequence[Rule]) -> int:
    """Return how many cells the rules make, without making them."""
    return math.prod(make_grid(FACTS.values(), [rule.meaning for rule in rules]).shape)


def make_cells(rules: Sequence[Rule]) -> Cells:
    """Cut record space by the rules' atoms and find the first match of every cell."""
    grid = make_grid(FACTS.values(), [rule.meaning for rule in rules])
    first = np.full(grid.shape, NO_RULE, np.int64)
    for i, rule in enumerate(rules):
        if not rule.acts:
            continue
        first[grid.mask(rule.meaning) & (first == NO_RULE)] = i
    return Cells(grid.axes, first, tuple(rules))


def make_grid(facts: Iterable[Fact], meanings: Sequence[Meaning]) -> Grid:
    """Cut record space by the atoms of some conditions; every fact that they name is among `facts`."""
    atoms: dict[Fact, list[InRange]] = {fact: [] for fact in facts}
    for meaning in meanings:
        for atom in ranges(meaning):
            atoms[atom.fact].append(atom)
    return Grid(tuple(_axis(fact, found) for fact, found in atoms.items()))


def _axis(fact: Fact, atoms: Sequence[InRange]) -> Axis:
    """Cut at every atom's ends, then join the intervals on which all atoms agree."""
    cuts = {fact.low}
    for atom in atoms:
        cuts.update(cut for cut in (atom.low, atom.high + 1) if fact.low < cut <= fact.high)
    starts = np.array(sorted(cuts), np.int64)
    numbers: dict[bytes, int] = {}
    lows = np.array([[atom.low] for atom in atoms], np.int64).reshape(-1, 1)
    highs = np.array([[atom.high] for atom in atoms], np.int64).reshape(-1, 1)
    signatures = np.packbits((lows <= starts) & (starts <= highs), axis=0).T
    group = [numbers.setdefault(signature.tobytes(), len(numbers)) for signature in signatures]
    return Axis(fact, starts, np.array(group, np.int64))


def _truth(meaning: Meaning, axes: Mapping[str, tuple[int, Axis]]) -> BoolArray:
    """Return a bool array that broadcasts to the grid."""
    match meaning:
        case InRange(fact, low, high):
            return _atom_truth(*axes[fact.name], low, high, len(axes))
        case Negated(part):
            return ~_truth(part, axes)
        case AllOf(parts):
            return reduce(np.logical_and, (_truth(part, axes) for part in parts), np.ones((1,) * len(axes), np.bool_))
        case AnyOf(parts):
            return reduce(np.logical_or, (_truth(part, axes) for part in parts), np.zeros((1,) * len(axes), np.bool_))


def _atom_truth(position: int, axis: Axis, low: int, high: int, dimensions: int) -> BoolArray:
    truth: npt.NDArray[np.bool_] = np.zeros(axis.groups, np.bool_)
    truth[axis.group] = (axis.starts >= low) & (axis.starts <= high)
    return truth.reshape([-1 if i == position else 1 for i in range(dimensions)])
