"""Cold questions whose answers may still move a record: exact, so that no old answer brings back what changed since.

An answer of the cold tier is as old as its read. A record that was removed, overwritten or moved meanwhile must not be
promoted from it: the record would be there twice, or come back from the dead. So every key under way is noted here
until its answer was dealt with, and a change of the cold tier spoils it. Never asks a store.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest.hashing import mix64
from flashnest.jit import inline_kernel, kernel
from flashnest.record import BoolArray, I32Array, U64Array

FIRST_SLOTS: Final = 4096
_ZERO, _ONE = np.uint64(0), np.uint64(1)


@inline_kernel
def _find(slots: U64Array, key: np.uint64) -> np.uint64:
    """Return the slot of a key, or the free one where it would go."""
    mask = np.uint64(slots.shape[0] - 1)
    at = mix64(key) & mask
    while slots[at] != key and slots[at] != _ZERO:
        at = (at + _ONE) & mask
    return at


@kernel
def _add(slots: U64Array, counts: I32Array, spoiled: BoolArray, keys: U64Array) -> int:
    """Note a question for each key; returns how many slots were taken for it."""
    taken: int = 0
    for i in range(keys.shape[0]):
        at = _find(slots, keys[i])
        if slots[at] == _ZERO:
            slots[at], counts[at], spoiled[at] = keys[i], 0, False
            taken += 1
        counts[at] += 1
    return taken


@kernel
def _which(slots: U64Array, counts: I32Array, keys: U64Array, there: BoolArray) -> int:
    found: int = 0
    for i in range(keys.shape[0]):
        at = _find(slots, keys[i])
        there[i] = slots[at] != _ZERO and counts[at] > 0
        found += there[i]
    return found


@kernel
def _spoil(slots: U64Array, counts: I32Array, spoiled: BoolArray, keys: U64Array) -> None:
    for i in range(keys.shape[0]):
        at = _find(slots, keys[i])
        if slots[at] != _ZERO and counts[at] > 0:
            spoiled[at] = True


@kernel
def _take(slots: U64Array, counts: I32Array, spoiled: BoolArray, keys: U64Array, fresh: BoolArray) -> int:
    """End a question for each key; writes which saw no change since they were asked, returns how many were known."""
    known: int = 0
    for i in range(keys.shape[0]):
        at = _find(slots, keys[i])
        fresh[i] = False
        if slots[at] != _ZERO and counts[at] > 0:
            known += 1
            fresh[i] = not spoiled[at]
            counts[at] -= 1
            if counts[at] == 0:
                spoiled[at] = False
    return known


@kernel
def _restore(
    slots: U64Array, counts: I32Array, spoiled: BoolArray, keys: U64Array, old_counts: I32Array, old_spoiled: BoolArray
) -> None:
    for i in range(keys.shape[0]):
        at = _find(slots, keys[i])
        slots[at], counts[at], spoiled[at] = keys[i], old_counts[i], old_spoiled[i]


class Flights:
    """Counts questions by key. One thread owns it. Keys are uint64 (n,), never 0. Grows with what is under way."""

    def __init__(self) -> None:
        self._reset(FIRST_SLOTS)

    def compile(self) -> None:
        """Load or compile the kernels, so that no step waits for it."""
        keys, none = np.zeros(0, np.uint64), np.zeros(0, np.bool_)
        _add(self._slots, self._counts, self._spoiled, keys)
        _which(self._slots, self._counts, keys, none)
        _spoil(self._slots, self._counts, self._spoiled, keys)
        _take(self._slots, self._counts, self._spoiled, keys, none)
        _restore(self._slots, self._counts, self._spoiled, keys, np.zeros(0, np.int32), none)

    def _reset(self, slots: int) -> None:
        self._slots = np.zeros(slots, np.uint64)
        self._counts = np.zeros(slots, np.int32)
        self._spoiled = np.zeros(slots, np.bool_)
        self._used = self._under_way = 0

    def __len__(self) -> int:
        return self._under_way

    def add_many(self, keys: U64Array) -> None:
        """Note a question for each key."""
        if 2 * (self._used + len(keys)) > len(self._slots):
            self._rebuild(len(keys))
        self._used += _add(self._slots, self._counts, self._spoiled, keys)
        self._under_way += len(keys)

    def _rebuild(self, more: int) -> None:
        """Leave out the keys that are done with; double until what is left takes at most a quarter."""
        alive = self._counts > 0
        keys, counts, spoiled = self._slots[alive], self._counts[alive], self._spoiled[alive]
        slots, under_way = FIRST_SLOTS, self._under_way
        while slots < 4 * (len(keys) + more):
            slots *= 2
        self._reset(slots)
        self._used, self._under_way = len(keys), under_way
        _restore(self._slots, self._counts, self._spoiled, keys, counts, spoiled)

    def under_way_many(self, keys: U64Array) -> BoolArray:
        """Return which keys were asked for and not dealt with, (n,)."""
        there = np.zeros(len(keys), np.bool_)
        if self._under_way:
            _which(self._slots, self._counts, keys, there)
        return there

    def spoil_many(self, keys: U64Array) -> None:
        """Say that the cold tier's record of each key changes now: answers under way are of no use."""
        if self._under_way:
            _spoil(self._slots, self._counts, self._spoiled, keys)

    def take_many(self, keys: U64Array) -> BoolArray:
        """End one question for each key; returns which saw no change since they were asked, (n,)."""
        fresh = np.zeros(len(keys), np.bool_)
        if self._under_way:
            self._under_way -= _take(self._slots, self._counts, self._spoiled, keys, fresh)
        return fresh
