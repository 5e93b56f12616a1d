"""Records that are durable in a segment and not yet in their bucket: a DRAM table of fixed size. Opens no file.

Rows lie densely in the order they came, an index of int32 finds them by linear probing. A removal is a record of kind
TOMBSTONE. The writer's thread changes the table, any thread looks up; one lock stands between them and is never held
for more than `_LOCKED_RECORDS` inserts (about 0.2 ms) or for a batch's lookups.
"""

from __future__ import annotations

import threading
from typing import Final

import numpy as np

from flashnest.errors import StoreFullError
from flashnest.hashing import mix64
from flashnest.jit import inline_kernel, kernel
from flashnest.record import META, I32Array, U8Array, U32Array, U64Array
from flashnest.storage.slots_page import TOMBSTONE, buckets_of

_LOCKED_RECORDS: Final = 2048
_MISS, _HIT, _UNKNOWN = np.uint8(0), np.uint8(1), np.uint8(2)


@inline_kernel
def _place(index: I32Array, stored: U64Array, key: np.uint64) -> np.int64:
    """Return the index entry that holds `key`, or the empty one where it would go."""
    size = np.uint64(index.shape[0])
    at = np.int64(((mix64(key) >> np.uint64(32)) * size) >> np.uint64(32))
    while index[at] >= 0 and stored[index[at]] != key:
        at += np.int64(1)
        if at == index.shape[0]:
            at = np.int64(0)
    return at


@kernel
def _find(index: I32Array, stored: U64Array, held: U32Array, keys: U64Array, state: U8Array, rows: U32Array) -> None:
    for i in range(keys.shape[0]):
        entry = index[_place(index, stored, keys[i])]
        if entry < 0:
            state[i] = _UNKNOWN if keys[i] else _MISS
        elif held[entry, META] & 0xFF == TOMBSTONE:
            state[i] = _MISS
        else:
            state[i] = _HIT
            for w in range(held.shape[1]):
                rows[i, w] = held[entry, w]


@kernel
def _put(index: I32Array, stored: U64Array, held: U32Array, count: int, keys: U64Array, rows: U32Array) -> int:
    for i in range(keys.shape[0]):
        at = _place(index, stored, keys[i])
        if index[at] < 0:
            index[at], stored[count] = count, keys[i]
            count += 1
        for w in range(held.shape[1]):
            held[index[at], w] = rows[i, w]
    return count


class RecordLog:
    """A table of at most `max_records` records within `budget_bytes`, indexes included."""

    def __init__(self, budget_bytes: int, words: int) -> None:
        """Allocate everything. Raises StoreFullError where the budget holds no record."""
        self.max_records = budget_bytes // (8 + 4 * words + 12)  # two indexes of 1.5 entries a record
        if self.max_records < 1:
            raise StoreFullError(
                f"a log of {budget_bytes} bytes holds no record",
                why=f"one takes {8 + 4 * words + 12} bytes",
                fix="give the slots engine more log_bytes",
            )
        entries = self.max_records + self.max_records // 2 + 1
        self._index, self._spare = (np.full(entries, -1, np.int32) for _ in range(2))
        self._keys = np.zeros(self.max_records, np.uint64)
        self._rows = np.zeros((self.max_records, words), np.uint32)
        self._count = 0
        self._lock = threading.Lock()

    @property
    def bytes_used(self) -> int:
        """Bytes of DRAM allocated."""
        return self._index.nbytes + self._spare.nbytes + self._keys.nbytes + self._rows.nbytes

    def __len__(self) -> int:
        return self._count

    @property
    def room(self) -> int:
        """How many more records certainly fit."""
        return self.max_records - self._count

    def find_many(self, keys: U64Array, state: U8Array, rows: U32Array) -> None:
        """Write HIT and the row, MISS for a removed key or key 0, PENDING where the pages must be asked."""
        with self._lock:
            _find(self._index, self._keys, self._rows, keys, state, rows)

    def put_many(self, keys: U64Array, rows: U32Array) -> None:
        """Insert or overwrite. The caller has seen to it that there is `room`."""
        for at in range(0, max(1, len(keys)), _LOCKED_RECORDS):  # none as well: so kernels are compiled beforehand
            part = slice(at, at + _LOCKED_RECORDS)
            with self._lock:
                self._count = _put(self._index, self._keys, self._rows, self._count, keys[part], rows[part])

    def bury_many(self, keys: U64Array) -> None:
        """Insert removals."""
        rows = np.zeros((len(keys), self._rows.shape[1]), np.uint32)
        rows[:, META] = TOMBSTONE
        self.put_many(keys, rows)

    def records(self) -> tuple[U64Array, U32Array]:
        """Return views of all keys and rows, removals included; for the writer's thread, until the next change."""
        return self._keys[: self._count], self._rows[: self._count]

    def between(self, first: int, stop: int, buckets: int) -> tuple[U64Array, U32Array]:
        """Return copies of the records of buckets first..stop-1, removals included, by key. For the writer's thread."""
        keys, rows = self.records()
        bucket = np.empty(len(keys), np.int64)
        buckets_of(keys, buckets, bucket)
        at = np.flatnonzero((bucket >= first) & (bucket < stop))
        at = at[np.argsort(keys[at])]
        return keys[at], rows[at]

    def clear(self) -> None:
        """Forget everything; lookups wait only for a pointer to change."""
        with self._lock:
            self._index, self._spare = self._spare, self._index
            self._count = 0
        self._spare.fill(-1)
