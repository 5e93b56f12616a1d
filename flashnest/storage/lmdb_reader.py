"""The reading half of the LMDB tier: one snapshot between writes, answers checked by the batch. Never writes.

Each LMDB transaction that begins dirties a page of the lock file, which the kernel writes back: 16 KiB over a million
hits. So lookups share one snapshot until the writer asks for it; a hit then writes nothing anywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import islice
from typing import cast

import lmdb
import numpy as np

from flashnest.record import BoolArray, Tier, U32Array, U64Array
from flashnest.storage.sealed import join_keys, split_keys, unpack_values
from flashnest.storage.store import Found, State


class LmdbReader:
    """Reads records of an open environment. One thread at a time, beside one that writes.

    Every read holds `map_lock`. The writer calls `release` before it begins and after it commits: a snapshot that
    outlived a write would answer from the past and keep its pages from being used again.
    """

    def __init__(self, env: lmdb.Environment, db: lmdb._Database, *, words: int, map_lock: threading.Lock) -> None:
        self._env, self._db, self._words, self._map_lock = env, db, words, map_lock
        self._snapshot: lmdb.Transaction | None = None
        self.lookups = self.hits = self.corrupt = 0

    def release(self) -> None:
        """Give the snapshot up; the next read takes a fresh one. Any thread may call it."""
        with self._map_lock:
            self.release_locked()

    def release_locked(self) -> None:
        """Do what `release` does for a caller that holds `map_lock`: LMDB resizes its map only where no one reads."""
        if self._snapshot is not None:
            self._snapshot.abort()
            self._snapshot = None

    def lookup_many(self, keys: U64Array, found: Found) -> None:
        """See `LmdbStore.lookup_many`. LMDB has no batch of its own: one descent a key, 1.1 us and its page faults."""
        values = self._values(keys)
        state = found.state[: len(keys)]
        state[:] = State.MISS
        self.lookups += len(keys)
        at = np.flatnonzero(np.array([value is not None for value in values], np.bool_))
        if len(at):
            rows, whole = self._rows(keys[at], [value for value in values if value is not None])
            at = at[whole]
            state[at], found.tier[at], found.rows[at] = State.HIT, Tier.NVME, rows[whole]
            self.hits += len(at)

    def contains_many(self, keys: U64Array) -> BoolArray:
        """See `Store.contains_many`."""
        return np.array([value is not None for value in self._values(keys)], np.bool_)

    def _values(self, keys: U64Array) -> list[bytes | None]:
        names = split_keys(keys)
        with self._map_lock:
            if self._snapshot is None:
                self._snapshot = self._env.begin(db=self._db)
            txn = self._snapshot
            return cast(list[bytes | None], [txn.get(name) for name in names])  # no memoryviews: buffers is False

    def _rows(self, keys: U64Array, values: Sequence[bytes]) -> tuple[U32Array, BoolArray]:
        rows, whole, damaged = unpack_values(keys, values, self._words)
        self.corrupt += damaged
        return rows, whole

    def records_after(self, after: bytes | None, records: int) -> tuple[U64Array, U32Array, bytes | None]:
        """Read up to `records` records that follow a key: keys, rows, and the key to go on after, None after the last.

        Damaged records are left out and counted.
        """
        with self._map_lock, self._env.begin(db=self._db) as txn:
            cursor = txn.cursor()
            batch = list(islice(cursor.iternext(), records)) if _goes_on(cursor, after) else []
        if not batch:
            return np.zeros(0, np.uint64), np.zeros((0, self._words), np.uint32), None
        names = [bytes(key) for key, _ in batch]
        keys = join_keys(names)
        rows, whole = self._rows(keys, [bytes(value) for _, value in batch])
        return keys[whole], rows[whole], names[-1] if len(names) == records else None

    def keys_after(self, after: bytes | None, records: int) -> list[bytes]:
        """Read up to `records` keys that follow a key."""
        with self._map_lock, self._env.begin(db=self._db) as txn:
            cursor = txn.cursor()
            return list(map(bytes, islice(cursor.iternext(values=False), records))) if _goes_on(cursor, after) else []


def _goes_on(cursor: lmdb.Cursor, after: bytes | None) -> bool:
    """Place a cursor at the record that follows a key, or at the first; returns whether there is one."""
    if after is None:
        return cursor.first()
    if not cursor.set_range(after):
        return False
    return cursor.next() if cursor.key() == after else True
