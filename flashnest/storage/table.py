"""The DRAM tier: a hash table of fixed-size rows in one allocation. Never reads a clock of its own, never does I/O.

One allocation holds as many units (a 64-byte bucket of seven keys and their rows, 64 bytes each with the default chain)
as the budget allows: `bytes_used` is what is allocated, from the first record to the last. Pages are
touched, and so taken from the machine, only as records arrive; numpy asks for 2 MiB pages by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from flashnest.errors import StoreClosedError, StoreFullError
from flashnest.record import BoolArray, I64Array, Tier, U32Array, U64Array
from flashnest.storage import kernels, kernels_write
from flashnest.storage.kernels import BUCKET_KEYS
from flashnest.storage.lines import LINE_WORDS
from flashnest.storage.store import ClockS, Found, StoreStats

MAX_LOAD: Final = 0.8
"""Share of slots that may be taken. Bucket lines that a hit / a miss reads: 1.12 / 1.6 at 0.75, 1.19 / 2.1 at 0.8,
1.3 / 3.1 at 0.85."""

_LINE_BYTES: Final = 64
_SCAN_RECORDS: Final = 8192
_INSERT_RECORDS: Final = 4096


class DramTable:
    """A `Store` in DRAM. One thread owns it, as the protocol says; kernels release the GIL.

    With `evict` a full table makes room for new records by a second-chance clock over the rows; without, `insert_many`
    rejects what does not fit. A `Router` chooses call by call.
    """

    def __init__(
        self, budget_bytes: int, *, words: int, clock_s: ClockS, tier: Tier = Tier.DRAM, evict: bool = True
    ) -> None:
        """Allocate. Raises StoreFullError where the budget holds not one bucket of seven records."""
        unit_bytes = 4 * kernels.unit_words(words)
        buckets = (budget_bytes - _LINE_BYTES) // unit_bytes
        if buckets < 1:
            raise StoreFullError(
                f"a table of {budget_bytes} bytes holds no record",
                why=f"the smallest table takes {unit_bytes + _LINE_BYTES} bytes",
                fix=f"give the {tier.name.lower()} tier a larger capacity",
            )
        self.tier = tier
        self._code = int(tier)
        self._budget_bytes = budget_bytes
        self._clock_s = clock_s
        self._evict = evict
        # 64 bytes more than needed, to start on a line of its own: numpy aligns to 16.
        self._allocated = np.zeros(buckets * unit_bytes + _LINE_BYTES, np.uint8)
        skip = -self._allocated.ctypes.data % _LINE_BYTES
        self._memory: U32Array = self._allocated[skip : skip + buckets * unit_bytes].view(np.uint32)
        self._words, self._buckets = words, buckets
        self._max_records = int(buckets * BUCKET_KEYS * MAX_LOAD)
        self._closed = False
        self._hand = self._records = 0
        self._lookups = self._hits = self._inserts = self._updates = self._removes = self._rejected = self._evicted = 0

    def __len__(self) -> int:
        return self._records

    @property
    def words(self) -> int:
        """uint32 words in a row."""
        return self._words

    @property
    def bytes_used(self) -> int:
        """Bytes allocated, whatever the fill."""
        return self._allocated.nbytes

    @property
    def free_records(self) -> int:
        """How many more records fit."""
        return self._max_records - self._records

    @property
    def evicted(self) -> int:
        """Records that the clock hand has taken so far."""
        return self._evicted

    @property
    def max_records(self) -> int:
        """How many records fit in all."""
        return self._max_records

    def lookup_many(self, keys: U64Array, found: Found) -> None:
        """See `Store.lookup_many`."""
        hits = kernels.table_lookup(
            self._memory, self._words, keys, found.state, found.tier, found.rows, self._clock_s(), self._code
        )
        self._count(len(keys), hits, found)

    def longest_many(self, keys: U64Array, found: Found, index: I64Array) -> None:
        """Find the longest stored n-gram of each sequence in one call.

        keys uint64 (n, k): a sequence's keys, shortest length first, 0 where there is none; index int64 (capacity,)
        receives which of the k it was, -1 for none. Only the record taken counts as hit. Counts n lookups.
        """
        hits = kernels.table_longest(
            self._memory, self._words, keys, found.state, found.tier, found.rows, index, self._clock_s(), self._code
        )
        self._count(len(keys), hits, found)

    def contains_many(self, keys: U64Array) -> BoolArray:
        """See `Store.contains_many`."""
        self._check_open()
        there = np.empty(len(keys), np.bool_)
        kernels.table_contains(self._memory, self._words, keys, there)
        return there

    def insert_many(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """See `Store.insert_many`. A row with INSERTED 0 gets the store's time as INSERTED and LAST_ACCESS.

        An n-gram learnt again with the same first token adds to REFS. Where the clock hand had to run, the answer is
        what is stored when the call returns, so a batch larger than the table is told truly.
        """
        return self.insert_evicting(keys, rows) if self._evict else self.insert_fitting(keys, rows)

    def insert_fitting(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """Like `insert_many`, rejecting what does not fit."""
        stored = np.empty(len(keys), np.bool_)
        self._put(keys, rows, stored)
        self._rejected += int(len(keys) - np.count_nonzero(stored))
        return stored

    def insert_evicting(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """Like `insert_many`, making room by the clock."""
        stored = np.empty(len(keys), np.bool_)
        evicted = self._evicted
        for start in range(0, len(keys), _INSERT_RECORDS):
            stop = start + _INSERT_RECORDS
            self._squeeze_in(keys[start:stop], rows[start:stop], stored[start:stop])
        if self._evicted != evicted:
            stored = self.contains_many(keys)
        self._rejected += int(len(keys) - np.count_nonzero(stored))
        return stored

    def _squeeze_in(self, keys: U64Array, rows: U32Array, stored: BoolArray) -> None:
        if len(keys) > self.free_records:  # room first: the hand must not meet what this batch has just put in
            self._make_room(len(keys) - int(np.count_nonzero(self.contains_many(keys))))
        self._put(keys, rows, stored)
        left = np.flatnonzero(~stored & (keys != 0))
        if len(left):  # records that the batch overwrites and the hand took
            self._make_room(len(left))
            self._put(keys[left], rows[left], np.empty(len(left), np.bool_))

    def _make_room(self, records: int) -> None:
        self.evict_many(min(records, self._max_records) - self.free_records)

    def _put(self, keys: U64Array, rows: U32Array, stored: BoolArray) -> None:
        new, old = kernels_write.table_insert(
            self._memory, self._words, keys, rows, stored, self._clock_s(), self.free_records
        )
        if new < 0:
            self._check_open()
            raise ValueError(f"{len(keys)} keys come with rows {rows.shape}, the table has {self.words} words a row")
        self._records += new
        self._inserts += new
        self._updates += old

    def remove_many(self, keys: U64Array) -> BoolArray:
        """See `Store.remove_many`."""
        self._check_open()
        removed = np.empty(len(keys), np.bool_)
        count = kernels_write.table_remove(self._memory, self._words, keys, removed)
        self._records -= count
        self._removes += count
        return removed

    def evict_many(self, count: int) -> tuple[U64Array, U32Array]:
        """Take up to `count` records that were not found lately out of the table; returns their keys and rows."""
        self._check_open()
        count = max(0, min(count, self._records))
        keys, rows = np.empty(count, np.uint64), np.empty((count, self.words), np.uint32)
        done, self._hand = kernels_write.table_evict(self._memory, self._words, self._hand, keys, rows)
        self._records -= done
        self._evicted += done
        return keys[:done], rows[:done]

    def feedback_many(self, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
        """See `Store.feedback_many`."""
        self._check_open()
        kernels_write.table_feedback(self._memory, self._words, keys, drafted, accepted)

    def scan(self) -> Iterator[tuple[U64Array, U32Array]]:
        """See `Store.scan`; batches are fresh arrays of up to 8192 records."""
        self._check_open()
        bucket = 0
        while bucket < self._buckets:
            keys, rows = np.empty(_SCAN_RECORDS, np.uint64), np.empty((_SCAN_RECORDS, self.words), np.uint32)
            count, bucket = kernels.table_scan(self._memory, self._words, bucket, keys, rows)
            if count:
                yield keys[:count], rows[:count]

    def clear(self) -> None:
        """Forget every record; counters run on."""
        self._check_open()
        self._memory.reshape(self._buckets, -1)[:, :LINE_WORDS] = 0
        self._records = self._hand = 0

    def stats(self) -> StoreStats:
        """See `Store.stats`."""
        return StoreStats(
            records=self._records,
            bytes_used=0 if self._closed else self.bytes_used,
            bytes_budget=self._budget_bytes,
            lookups=self._lookups,
            hits=self._hits,
            inserts=self._inserts,
            updates=self._updates,
            removes=self._removes,
            rejected=self._rejected,
            evicted=self._evicted,
            fill=self._records / self._max_records,
        )

    def close(self) -> None:
        """Give the memory back. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._allocated, self._memory = np.zeros(0, np.uint8), np.zeros(0, np.uint32)

    def _count(self, lookups: int, hits: int, found: Found) -> None:
        if hits < 0:
            self._check_open()
            raise ValueError(
                f"{lookups} keys and rows of {self.words} words do not fit answer buffers for {found.capacity} keys "
                f"and rows of {found.rows.shape[1]} words"
            )
        self._lookups += lookups
        self._hits += hits

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(f"the {self.tier.name.lower()} table is closed")
