"""The half of the DRAM table that answers: lookups by its owner, peeks by any thread, scans. Changes no record's place.

Hits count in the record itself; `peek_many`, `contains_many` and scans touch nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NoReturn

import numpy as np

from flashnest.errors import StoreClosedError
from flashnest.record import BoolArray, I32Array, I64Array, Tier, U32Array, U64Array
from flashnest.storage import kernels, kernels_layout, kernels_peek
from flashnest.storage.kernels import table_longest, table_longest_tails, table_lookup
from flashnest.storage.step_clock import StepClock
from flashnest.storage.store import ClockS, Found

_SCAN_RECORDS: Final = 8192


class TableReads:
    """A desk with records and how to ask it. One thread owns it; `peek_many` is for any other at any time."""

    tier: Tier

    def __init__(self, desk: U64Array, *, words: int, tier: Tier, clock_s: ClockS) -> None:
        """Answer from a desk that stays the caller's."""
        self.tier = tier
        self._desk, self._words, self._code, self._clock_s = desk, words, int(tier), clock_s
        self._address = int(desk.ctypes.data)
        # Kernels read the time where a StepClock keeps it; any other clock is read for each lookup.
        self._ticks = isinstance(clock_s, StepClock)
        self._seconds = clock_s.seconds if isinstance(clock_s, StepClock) else np.zeros(1, np.uint64)
        desk[kernels_layout.CLOCK] = self._seconds.ctypes.data
        self._closed = False
        self._bound: Found | None = None

    @property
    def words(self) -> int:
        """uint32 words in a row."""
        return self._words

    def lookup_many(self, keys: U64Array, found: Found) -> None:
        """See `Store.lookup_many`."""
        if found is not self._bound:
            self._bind(found)
        if not self._ticks:
            self._seconds[0] = self._clock_s()
        if table_lookup(self._address, keys) < 0:
            self._refuse(len(keys), found)

    def longest_many(self, keys: U64Array, found: Found, index: I64Array) -> None:
        """Find the longest stored n-gram of each sequence in one call.

        keys uint64 (n, k): a sequence's keys, shortest length first, 0 where there is none; index int64 (capacity,)
        receives which of the k it was, -1 for none. Only the record taken counts as hit. Counts n lookups.
        """
        if found is not self._bound:
            self._bind(found)
        if not self._ticks:
            self._seconds[0] = self._clock_s()
        if table_longest(self._address, keys, index) < 0:
            self._refuse(len(keys), found)

    def longest_tails_many(
        self,
        tokens: I32Array,
        ends: I32Array,
        salts: U64Array,
        lengths: I32Array,
        keys: U64Array,
        found: Found,
        index: I64Array,
    ) -> None:
        """Hash the tails of n sequences and find the longest stored n-gram of each, in one call.

        tokens int32 (n, width), ends int32 (n,), salts uint64 (n,), lengths int32 (k,) as in `hashing.hash_tails`;
        keys uint64 (n, k) receives the keys; found and index as in `longest_many`.
        """
        if found is not self._bound:
            self._bind(found)
        if not self._ticks:
            self._seconds[0] = self._clock_s()
        if table_longest_tails(self._address, tokens, ends, salts, lengths, keys, index) < 0:
            self._refuse(len(keys), found)

    def peek_many(self, keys: U64Array, found: Found) -> None:
        """Answer like `lookup_many` and touch nothing: for any thread, while the owner does what it likes.

        Each row is one state of its record; a record that is stored throughout is found. On a closed table everything
        is a MISS or what it last was.
        """
        if len(keys) > found.capacity or found.rows.shape[1] != self._words:
            self._refuse(len(keys), found)
        desk, done, now = self._desk, 0, self._clock_s()
        while done < len(keys):
            done = kernels_peek.table_peek(desk, keys, found.state, found.tier, found.rows, self._code, now, done)
            if done < len(keys):
                time.sleep(0)  # the writer was interrupted within a change: give it the core

    def contains_many(self, keys: U64Array) -> BoolArray:
        """See `Store.contains_many`."""
        self._check_open()
        there = np.empty(len(keys), np.bool_)
        kernels.table_contains(self._desk, keys, there)
        return there

    def _read(self, keys: U64Array) -> U32Array:
        rows, there = np.empty((len(keys), self._words), np.uint32), np.empty(len(keys), np.bool_)
        kernels.table_read(self._desk, keys, rows, there, self._clock_s())
        return rows

    def scan_slice(self, hand: int, records: int) -> tuple[U64Array, U32Array, int]:
        """Read the records from `hand` on, about `records` of them, at least one bucket's; touches nothing.

        Returns keys (n,), rows (n, words) and the hand to go on with, 0 after the last. The table may change between
        calls: a record that stays where it is, is seen once.
        """
        self._check_open()
        room = max(records, kernels_layout.BUCKET_KEYS)
        keys, rows = np.empty(room, np.uint64), np.empty((room, self._words), np.uint32)
        count, hand = kernels.table_scan(self._desk, hand, keys, rows, self._clock_s())
        return keys[:count], rows[:count], 0 if hand >= self._desk[kernels_layout.BUCKETS] else hand

    def scan(self) -> Iterator[tuple[U64Array, U32Array]]:
        """See `Store.scan`; batches are fresh arrays of up to 8192 records."""
        hand = 0
        while True:
            keys, rows, hand = self.scan_slice(hand, _SCAN_RECORDS)
            if len(keys):
                yield keys, rows
            if hand == 0:
                return

    def _bind(self, found: Found) -> None:
        """Note the buffers' addresses in the desk, once for as long as the same buffers come."""
        self._check_open()
        if not kernels_layout.table_bind(self._desk, found.state, found.tier, found.rows, self._code):
            self._refuse(found.capacity, found)
        self._bound = found

    def _refuse(self, keys: int, found: Found) -> NoReturn:
        self._check_open()
        raise ValueError(
            f"{keys} keys and rows of {self._words} words do not fit answer buffers for {found.capacity} keys and rows "
            f"of {found.rows.shape[1]} words"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"the {self.tier.name.lower()} table is closed")
