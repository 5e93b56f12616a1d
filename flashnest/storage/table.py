"""The DRAM tier: a hash table of packed rows in one allocation. Never reads a clock of its own, never does I/O.

One allocation holds as many units (two 64-byte buckets of seven keys and their fourteen packed rows) as the budget
allows: `bytes_used` is what is allocated, from the first record to the last. Rows go in and come out as uint32 words,
at the resolution that `packed.py` states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from flashnest.errors import StoreFullError
from flashnest.record import BoolArray, Tier, U32Array, U64Array
from flashnest.storage import desk as memory
from flashnest.storage import kernels_layout, kernels_remove, kernels_write
from flashnest.storage.desk import PageToucher
from flashnest.storage.eviction import Evictor, evictor_bytes, evictor_of
from flashnest.storage.kernels_layout import UNIT_KEYS
from flashnest.storage.packed import TOKEN_BITS
from flashnest.storage.store import ClockS, StoreStats
from flashnest.storage.table_reads import TableReads

MAX_LOAD: Final = 0.8
"""Share of slots that may be taken. Bucket lines that a hit / a miss reads: 1.12 / 1.6 at 0.75, 1.19 / 2.1 at 0.8,
1.3 / 3.1 at 0.85."""

_INSERT_RECORDS: Final = 4096


def _records(units: int) -> int:
    return int(units * UNIT_KEYS * MAX_LOAD)


def _units_within(room_bytes: int, unit_bytes: int, eviction: str) -> int:
    """Return how many units fit with what the eviction algorithm needs for their records, found by halving."""
    low, high = 0, max(0, room_bytes // unit_bytes)
    while low < high:
        middle = (low + high + 1) // 2
        fits = middle * unit_bytes + evictor_bytes(eviction, _records(middle)) <= room_bytes
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def records_within(
    budget_bytes: int, *, words: int, token_bits: int = TOKEN_BITS, eviction: str = "s3fifo"
) -> tuple[int, int]:
    """Return how many records a table of a budget takes, 0 where it holds not one unit, and the bytes it allocates."""
    fixed, unit_bytes = memory.fixed_bytes(budget_bytes), 8 * kernels_layout.unit_words(words, token_bits)
    units = _units_within(budget_bytes - fixed, unit_bytes, eviction)
    return _records(units), units * unit_bytes + evictor_bytes(eviction, _records(units)) + fixed


class DramTable(TableReads):
    """A `Store` in DRAM. One thread owns it, as the protocol says; kernels release the GIL.

    `peek_many` is for any other thread at any time; everything else is the owner's. With `evict` a full table makes
    room for new records by its eviction algorithm; without, `insert_many` rejects what does not fit. A `Router` chooses
    call by call.
    """

    def __init__(
        self,
        budget_bytes: int,
        *,
        words: int,
        clock_s: ClockS,
        tier: Tier = Tier.DRAM,
        evict: bool = True,
        token_bits: int = TOKEN_BITS,
        eviction: str = "s3fifo",
        namespaces: Sequence[int] = (),
        populate: bool = True,
    ) -> None:
        """Allocate.

        Continuations end before a token of more than `token_bits` bits. `eviction`: one of `eviction.EVICTIONS`.
        `namespaces`: ids that stay exact whatever others come. `populate`: take the memory from the machine now, in a
        thread, rather than as records arrive. Raises StoreFullError where the budget holds not one unit of fourteen
        records, and StoreError for an unknown `eviction`.
        """
        fixed, unit_bytes = memory.fixed_bytes(budget_bytes), 8 * kernels_layout.unit_words(words, token_bits)
        units = _units_within(budget_bytes - fixed, unit_bytes, eviction)
        if units < 1:
            raise StoreFullError(
                f"a table of {budget_bytes} bytes holds no record",
                why=f"the smallest table takes {unit_bytes + evictor_bytes(eviction, _records(1)) + fixed} bytes",
                fix=f"give the {tier.name.lower()} tier a larger capacity",
            )
        self._memory = memory.allocate(budget_bytes, units, words, token_bits)
        super().__init__(self._memory.desk, words=words, tier=tier, clock_s=clock_s)
        self._budget_bytes, self._evict = budget_bytes, evict
        self._max_records = _records(units)
        self._desk[kernels_layout.MAX_RECORDS] = self._max_records
        self._evictor: Evictor = evictor_of(eviction, self._desk, clock_s)
        self._bytes_used = self._memory.allocated.nbytes + self._evictor.bytes_used
        self._removes = self._rejected = self._evicted = 0
        kernels_layout.table_reserve(self._desk, np.array(namespaces, np.uint32))
        self._pages = PageToucher(self._memory.memory) if populate else None

    def __len__(self) -> int:
        return int(self._desk[kernels_layout.RECORDS])

    @property
    def bytes_used(self) -> int:
        """Bytes allocated, whatever the fill."""
        return self._bytes_used

    @property
    def free_records(self) -> int:
        """How many more records fit."""
        return self._max_records - len(self)

    @property
    def evicted(self) -> int:
        """Records that the eviction algorithm has taken so far."""
        return self._evicted

    @property
    def max_records(self) -> int:
        """How many records fit in all."""
        return self._max_records

    def wait_for_pages(self) -> None:
        """Return when all memory was taken from the machine; at once without `populate`."""
        if self._pages is not None:
            self._pages.wait()

    def insert_many(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """See `Store.insert_many`. A row with INSERTED 0 gets the store's time as INSERTED and LAST_ACCESS.

        An n-gram learnt again with the same first token adds to REFS. Where records were evicted, the answer is what is
        stored when the call returns, so a batch larger than the table is told truly.
        """
        return self.insert_evicting(keys, rows) if self._evict else self.insert_fitting(keys, rows)

    def insert_fitting(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """Like `insert_many`, rejecting what does not fit."""
        stored = np.empty(len(keys), np.bool_)
        self._put(keys, rows, stored)
        self._rejected += int(len(keys) - np.count_nonzero(stored))
        return stored

    def insert_evicting(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """Like `insert_many`, making room by the eviction algorithm."""
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
        if len(keys) > self.free_records:  # room first: what this batch has just put in must not be taken
            self._make_room(len(keys) - int(np.count_nonzero(self.contains_many(keys))))
        self._put(keys, rows, stored)
        left = np.flatnonzero(~stored & (keys != 0))
        if len(left):  # records that the batch overwrites and that were taken
            self._make_room(len(left))
            self._put(keys[left], rows[left], np.empty(len(left), np.bool_))

    def _make_room(self, records: int) -> None:
        self.evict_many(min(records, self._max_records) - self.free_records)

    def _put(self, keys: U64Array, rows: U32Array, stored: BoolArray) -> None:
        self._check_open()
        if rows.shape[1] != self._words or len(rows) < len(keys):
            raise ValueError(f"{len(keys)} keys come with rows {rows.shape}, the table has {self._words} words a row")
        fresh = np.empty(len(keys), np.bool_)
        kernels_write.table_insert(self._desk, keys, rows, stored, fresh, self._clock_s())
        self._evictor.inserted_many(keys[fresh])

    def remove_many(self, keys: U64Array) -> BoolArray:
        """See `Store.remove_many`."""
        self._check_open()
        removed = np.empty(len(keys), np.bool_)
        self._removes += kernels_remove.table_remove(self._desk, keys, removed)
        return removed

    def victims(self, records: int) -> tuple[U64Array, U32Array]:
        """Return keys (n,) and rows (n, words) of up to `records` that the algorithm would give up next, still stored.

        Fewer than asked for, even none, does not mean that there are no more: the algorithm has looked at all once.
        """
        self._check_open()
        keys = self._evictor.victims(max(0, min(records, len(self))))
        return keys, self._read(keys)

    def spare_many(self, keys: U64Array) -> None:
        """Tell the algorithm that these victims were not taken: they count as just used."""
        self._check_open()
        self._evictor.spare_many(keys)

    def evict_many(self, records: int) -> tuple[U64Array, U32Array]:
        """Take up to `records` records that were not found lately out of the table; returns their keys and rows."""
        self._check_open()
        wanted = max(0, min(records, len(self)))
        parts = [(np.zeros(0, np.uint64), np.zeros((0, self._words), np.uint32))]
        while wanted > 0:
            keys, rows = self.victims(wanted)
            kernels_remove.table_remove(self._desk, keys, np.empty(len(keys), np.bool_))
            parts.append((keys, rows))
            wanted -= len(keys)
            self._evicted += len(keys)
        return np.concatenate([k for k, _ in parts]), np.concatenate([r for _, r in parts])

    def feedback_many(self, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
        """See `Store.feedback_many`."""
        self._check_open()
        kernels_write.table_feedback(self._desk, keys, drafted, accepted)

    def clear(self) -> None:
        """Forget every record; counters run on."""
        self._check_open()
        kernels_remove.table_clear(self._desk)
        self._evictor.clear()

    def stats(self) -> StoreStats:
        """See `Store.stats`."""
        desk = self._desk
        return StoreStats(
            records=len(self),
            bytes_used=0 if self._closed else self.bytes_used,
            bytes_budget=self._budget_bytes,
            lookups=int(desk[kernels_layout.LOOKUPS]),
            hits=int(desk[kernels_layout.HITS]),
            inserts=int(desk[kernels_layout.INSERTS]),
            updates=int(desk[kernels_layout.UPDATES]),
            removes=self._removes,
            rejected=self._rejected,
            evicted=self._evicted,
            fill=len(self) / self._max_records,
        )

    def close(self) -> None:
        """Give the memory back. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._pages is not None:
            self._pages.stop()
        desk = self._desk.copy()  # the figures; without buckets or room for answers every call is refused or a miss
        desk[[kernels_layout.BUCKETS, kernels_layout.CAPACITY]] = 0
        del self._memory, self._evictor
        self._desk, self._address, self._bound = desk, int(desk.ctypes.data), None
