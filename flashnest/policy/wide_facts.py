"""Facts of 32 bits to shares of a cell index: a small table each, where a binary search costs 5 to 30 ns a record.

Measured on 2 shared cores of a Xeon, batches of 10,000, ns a record: `searchsorted` among 4 starts 5.3, among 100 31;
a take from a table that the cache holds 1 to 2; the two takes of a perfect hash 5, whatever the number of names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from flashnest.policy.cells import Axis
from flashnest.policy.facts import FactType
from flashnest.record import I64Array, U32Array

IndexArray = npt.NDArray[np.intp]

_LONGEST_TABLE: Final = 65_536
"""Entries of a table by value: 512 KiB, and the sizes that policies name are far below 64 KiB."""

_MOST_HASHED: Final = 256
_MOST_SLOT_BITS: Final = 17
"""Four slots for each pair of 256 names: a random multiplier then keeps all apart in 3 of 4 tries."""

_TRIES: Final = 200


class WideFact(Protocol):
    """A fact whose values are too many for one table of all of them."""

    def add_to(self, cell: IndexArray, values: U32Array) -> None:
        """Add each value's share to the cell indices, in place; both shape (n,)."""


@dataclass(frozen=True, slots=True)
class ByValue:
    """`offset` has an entry for every value up to the last start; larger ones count as the last."""

    offset: IndexArray

    def add_to(self, cell: IndexArray, values: U32Array) -> None:
        """Add each value's share to the cell indices."""
        cell += self.offset.take(values, mode="clip")


@dataclass(frozen=True, slots=True)
class BySearch:
    """`starts` are the intervals, `offset` (intervals,) their shares; a value below the range counts as its start."""

    starts: U32Array
    offset: IndexArray

    def add_to(self, cell: IndexArray, values: U32Array) -> None:
        """Add each value's share to the cell indices."""
        interval = self.starts.searchsorted(values, side="right")
        cell += self.offset.take(np.maximum(interval, 1) - 1)


@dataclass(frozen=True, slots=True)
class ByName:
    """Codes that are equal to one of a few, or to none: a perfect hash finds the only one that a value can equal.

    The slot of a value is the upper bits of `value * multiplier`. `names` (slots,) is the code in a slot, where there
    is none a code of another slot; `offset` (slots,) is what that code adds to `other`, the share of all other values.
    """

    multiplier: np.uint32
    shift: np.uint32
    names: U32Array
    offset: IndexArray
    other: int

    def add_to(self, cell: IndexArray, values: U32Array) -> None:
        """Add each value's share to the cell indices."""
        slot = (values * self.multiplier) >> self.shift
        share = self.offset.take(slot)
        share *= self.names.take(slot) == values
        cell += share
        cell += self.other


def wide_fact(axis: Axis, offset: IndexArray) -> WideFact | None:
    """Return the fastest table for an axis, None where its values make no difference. `offset` (intervals,)."""
    if axis.groups == 1:
        return None
    if axis.fact.type is FactType.NAMESPACE:
        return _by_name(axis, offset) or _by_search(axis, offset)
    last = int(axis.starts[-1])
    if last >= _LONGEST_TABLE:
        return _by_search(axis, offset)
    values: I64Array = np.arange(last + 1)
    return ByValue(offset[np.maximum(axis.starts.searchsorted(values, side="right") - 1, 0)])


def _by_search(axis: Axis, offset: IndexArray) -> BySearch:
    return BySearch(axis.starts.astype(np.uint32), offset)


def _by_name(axis: Axis, offset: IndexArray) -> ByName | None:
    """Return the perfect hash of the codes that stand alone in their interval, None where they are too many."""
    ends = np.append(axis.starts[1:] - 1, axis.fact.high)
    alone = axis.starts == ends
    if alone.all() or len(set(axis.group[~alone].tolist())) != 1 or alone.sum() > _MOST_HASHED:
        return None
    names, shares = axis.starts[alone].astype(np.uint32), offset[alone]
    bits = min(_MOST_SLOT_BITS, 1 + 2 * len(names).bit_length())
    shift = np.uint32(32 - bits)
    other = int(offset[~alone][0])
    random = np.random.default_rng(len(names))
    for multiplier in random.integers(1, 2**32, _TRIES, np.uint32) | np.uint32(1):
        slots = (names * multiplier) >> shift
        if len(set(slots.tolist())) == len(names):
            return _hashed(names, shares - other, slots, multiplier, shift, other)
    return None


def _hashed(
    names: U32Array, shares: IndexArray, slots: U32Array, multiplier: np.uint32, shift: np.uint32, other: int
) -> ByName:
    size = 2 ** (32 - int(shift))
    held = np.full(size, names[0], np.uint32)
    held[slots] = names
    offset = np.zeros(size, np.intp)
    offset[slots] = shares
    return ByName(multiplier, shift, held, offset, other)
