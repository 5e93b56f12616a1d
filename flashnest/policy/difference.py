"""What two policies do differently: exact by the cells of both policies' atoms together, with a record for each region.

Semantic: rules that are written otherwise and mean the same differ in nothing. Trials (level `warn`) do nothing, so
they do not count. Prints nothing; `difference_text` and the CLI do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import numpy as np

from flashnest.errors import PolicyError
from flashnest.policy.boxes import Box, boxes_within, describe, sample
from flashnest.policy.cells import MAX_CELLS, MAX_RULE_CELLS, NO_RULE, Grid, make_grid
from flashnest.policy.compile import Policy
from flashnest.policy.facts import FACTS, RecordFacts
from flashnest.policy.moves import MoveRule
from flashnest.policy.outcomes import Moved, Placed, moved, placed, telling_fill
from flashnest.policy.possible import MAX_MOVE_CELLS, grid_of, laws, named
from flashnest.policy.record_text import record_text
from flashnest.policy.resolved import AllOf, Rule
from flashnest.record import BoolArray, I64Array, Tier, U8Array, U32Array, record_bytes

_MOST_REGIONS: Final = 1000
"""Of `place` and of each tier: two policies that share nothing differ in as many regions as cells."""

_SAME, _UNLISTED = -1, -2


@dataclass(frozen=True, slots=True)
class Side:
    """What one of two policies does in a region, and the rules that have a part in it, in file order."""

    outcome: Placed | Moved
    rules: tuple[Rule | MoveRule, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """Records that two policies treat differently. `tier` is where they are stored, None: they are new.

    `records` describes them, "" for all; `witness` is one of them, `named` the facts of it that count. At `fill` of the
    tier the outcomes differ for sure.
    """

    tier: Tier | None
    records: str
    witness: RecordFacts
    named: tuple[str, ...]
    fill: float
    old: Side
    new: Side

    @property
    def example(self) -> str:
        """The witness as a test would have it: `{tokens: 9, kind: ngram} in dram, fill 95%`."""
        text = record_text(self.witness, self.named)
        if self.tier is None:
            return text
        steps = [above for side in (self.old, self.new) for above, _ in _steps(side.outcome) if above >= 0]
        return f"{text} in {self.tier.name.lower()}{f', fill {100 * self.fill:.4g}%' if steps else ''}"


@dataclass(frozen=True, slots=True)
class RecordArrays:
    """Facts of many records, fixed at insert: tokens, kind uint8 (n,), namespace, nbytes uint32 (n,)."""

    tokens: U8Array
    kind: U8Array
    namespace: U32Array
    nbytes: U32Array


@dataclass(frozen=True, slots=True)
class Difference:
    """All that differs. `goals` are (old, new) statements of `flush` and `require`, "" where one side has none."""

    regions: tuple[Region, ...]
    goals: tuple[tuple[str, str], ...]
    more: bool
    """There are more regions than these."""
    _labels: tuple[Grid, I64Array]
    """The `place` cells and, by cell, the index of its region: -1 same, -2 a region that is not listed."""

    def __bool__(self) -> bool:
        return bool(self.regions or self.goals)

    def counts(self, records: RecordArrays) -> tuple[I64Array, int]:
        """Return how many of some new records lie in each region, int64 (regions,), 0 for moves; and in all of them."""
        grid, labels = self._labels
        values: tuple[U8Array | U32Array, ...] = (records.tokens, records.kind, records.namespace, records.nbytes)
        cell = np.zeros(len(records.tokens), np.intp)
        for axis, size, value in zip(grid.axes, grid.shape, values, strict=True):
            cell *= size
            cell += axis.group[np.maximum(np.searchsorted(axis.starts, value, side="right") - 1, 0)]
        found = np.bincount(labels.ravel()[cell] - _UNLISTED, minlength=2 + len(self.regions))
        return found[2:], len(cell) - int(found[_SAME - _UNLISTED])


def difference(old: Policy, new: Policy) -> Difference:
    """Compare two policies. Raises PolicyError where together they tell too many sorts of records apart."""
    spaces = {**old.namespace_names, **new.namespace_names}
    grid = _place_grid(old, new)
    table = _Compared(grid, _placing(grid, old.rules), _placing(grid, new.rules), np.ones(grid.shape, np.bool_))
    found = list(islice(table.regions(None, spaces), _MOST_REGIONS + 1))
    labels = np.where(table.differs, _UNLISTED, _SAME)
    for i, (_, box) in enumerate(found[:_MOST_REGIONS]):
        labels[np.ix_(*box.groups)] = i
    regions, more = [region for region, _ in found[:_MOST_REGIONS]], len(found) > _MOST_REGIONS
    for tier in Tier:
        moves = list(islice(_moves(tier, old, new, spaces), _MOST_REGIONS + 1))
        regions += moves[:_MOST_REGIONS]
        more = more or len(moves) > _MOST_REGIONS
    return Difference(tuple(regions), _goals(old, new), more, (grid, labels))


@dataclass(frozen=True, slots=True)
class _Sides:
    """One policy over a grid: `codes` int64 (grid shape) index `sides`."""

    codes: I64Array
    sides: Sequence[Side]


class _Compared:
    """Two policies over one grid, of which records can be in the `possible` cells only."""

    def __init__(self, grid: Grid, old: _Sides, new: _Sides, possible: BoolArray) -> None:
        self._grid, self._old, self._new, self._free = grid, old, new, np.asarray(~possible)
        numbers: dict[Placed | Moved, int] = {}
        tables = [[numbers.setdefault(side.outcome, len(numbers)) for side in one.sides] for one in (old, new)]
        before, after = (np.array(table, np.int64)[one.codes] for table, one in zip(tables, (old, new), strict=True))
        self.differs: BoolArray = np.asarray((before != after) & possible)
        self._pair = np.asarray(before * len(numbers) + after)
        self._pairs = len(numbers) ** 2
        cut = [name for name, axis in zip(named(grid), grid.axes, strict=True) if axis.groups > 1]
        self._named = tuple(dict.fromkeys(("tokens", "kind", *cut)))

    def regions(self, tier: Tier | None, spaces: Mapping[int, str]) -> Iterator[tuple[Region, Box]]:
        """Yield each region in which the same old outcome becomes the same new one, as boxes."""
        present = np.bincount(self._pair[self.differs], minlength=self._pairs)
        for pair in np.flatnonzero(present):
            mask = np.asarray(self.differs & (self._pair == pair))
            for box, cell in boxes_within(mask, self._free):
                yield self._region(tier, box, cell, mask, spaces), box

    def _region(self, tier: Tier | None, box: Box, cell: Box, mask: BoolArray, spaces: Mapping[int, str]) -> Region:
        inside = np.ix_(*box.groups)
        old, new = (_joined_side(one, one.codes[inside][mask[inside]]) for one in (self._old, self._new))
        fill = 0.0
        if isinstance(old.outcome, Moved) and isinstance(new.outcome, Moved):
            fill = telling_fill(old.outcome, new.outcome)
        return Region(
            tier=tier,
            records=describe(box, self._grid, spaces),
            witness=self._witness(cell, spaces),
            named=self._named,
            fill=fill,
            old=old,
            new=new,
        )

    def _witness(self, cell: Box, spaces: Mapping[int, str]) -> RecordFacts:
        """Return a record of a cell, of the usual size where size makes no difference."""
        record = sample(cell, self._grid, spaces)
        return record if "bytes" in self._named else replace(record, nbytes=record_bytes())


def _joined_side(one: _Sides, codes: I64Array) -> Side:
    """Return the side of a region: one outcome, and the rules of all its cells in file order."""
    present: list[int] = np.flatnonzero(np.bincount(codes.ravel())).tolist()
    rules = {rule.number: rule for code in present for rule in one.sides[code].rules}
    return Side(one.sides[present[0]].outcome, tuple(rules[number] for number in sorted(rules)))


def _place_grid(old: Policy, new: Policy) -> Grid:
    rules = [rule for rule in (*old.rules, *new.rules) if rule.acts]
    grid = make_grid(FACTS.values(), [rule.meaning for rule in rules])
    cells = math.prod(grid.shape)
    if cells > MAX_CELLS or cells * len(rules) > MAX_RULE_CELLS:
        raise _too_many(old, new, MAX_CELLS)
    return grid


def _placing(grid: Grid, rules: Sequence[Rule]) -> _Sides:
    """Find the first match of every cell; both policies passed their checks, so there is one."""
    acting = [rule for rule in rules if rule.acts]
    codes = np.full(grid.shape, NO_RULE, np.int64)
    for i, rule in enumerate(acting):
        codes[grid.mask(rule.meaning) & (codes == NO_RULE)] = i
    return _Sides(codes, [Side(placed(rule), (rule,)) for rule in acting])


def _moves(tier: Tier, old: Policy, new: Policy, spaces: Mapping[int, str]) -> Iterator[Region]:
    """Yield the regions of records stored in a tier that moves treat differently."""
    before, after = ([rule for rule in one.moves.rules if rule.acts and rule.source is tier] for one in (old, new))
    meanings = [rule.meaning for rule in (*before, *after)]
    grid = grid_of(meanings)
    if grid is None:
        raise _too_many(old, new, MAX_MOVE_CELLS)
    possible = grid.mask(AllOf(laws(meanings)))
    table = _Compared(grid, _moving(grid, before), _moving(grid, after), possible)
    return (region for region, _ in table.regions(tier, spaces))


def _moving(grid: Grid, rules: Sequence[MoveRule]) -> _Sides:
    """Find which rules match each cell together; cells with the same matches share a side."""
    matching = np.zeros((*grid.shape, len(rules)), np.bool_)
    for i, rule in enumerate(rules):
        matching[..., i] = grid.mask(rule.meaning)
    packed = np.packbits(matching.reshape(math.prod(grid.shape), len(rules)), axis=-1)
    numbers: dict[bytes, int] = {}
    codes = [numbers.setdefault(row.tobytes(), len(numbers)) for row in packed]
    sides = []
    for key in numbers:
        bits = np.unpackbits(np.frombuffer(key, np.uint8), count=len(rules))
        sides.append(Side(*moved([rule for rule, bit in zip(rules, bits, strict=True) if bit])))
    return _Sides(np.array(codes, np.int64).reshape(grid.shape), sides)


def _goals(old: Policy, new: Policy) -> tuple[tuple[str, str], ...]:
    """Return the `flush` and `require` statements of one policy that the other lacks, those of one metric together."""
    changed = []
    if _flush_value(old) != _flush_value(new):
        changed.append((old.flush.text if old.flush else "", new.flush.text if new.flush else ""))
    before, after = (
        {(one.metric, one.operator, one.bound, one.level): one for one in p.requirements} for p in (old, new)
    )
    gone = [one for key, one in before.items() if key not in after]
    come = [one for key, one in after.items() if key not in before]
    for one in gone:
        same = next((other for other in come if other.metric == one.metric), None)
        changed.append((one.text, same.text if same else ""))
        come = [other for other in come if other is not same]
    return (*changed, *(("", one.text) for one in come))


def _flush_value(policy: Policy) -> tuple[float, float | None] | None:
    return None if policy.flush is None else (policy.flush.every_s, policy.flush.most_bytes_per_s)


def _steps(outcome: Placed | Moved) -> tuple[tuple[float, object], ...]:
    return outcome.steps if isinstance(outcome, Moved) else ()


def _too_many(old: Policy, new: Policy, most: int) -> PolicyError:
    return PolicyError(
        f"{old.source} and {new.source} cannot be compared",
        why=f"together they tell more than {most} sorts of records apart",
        fix="compare smaller steps, or policies that name fewer facts and constants",
    )
