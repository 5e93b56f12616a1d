"""The writing half of the LMDB tier: durable batches within a byte capacity. Never reads for a lookup."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import lmdb
import numpy as np

from flashnest.errors import StoreError
from flashnest.record import INSERTED, LAST_ACCESS, BoolArray, I64Array, U32Array, U64Array
from flashnest.storage.cold_pace import SLICE_RECORDS, give_way
from flashnest.storage.lmdb_reader import LmdbReader
from flashnest.storage.sealed import SEAL_BYTES, keep_facts, pack_values, split_keys, unpack_values
from flashnest.storage.store import ClockS

_PAGE: Final = 4096
_NODE_BYTES: Final = 10
"""What LMDB adds to a key and its value: eight bytes of header, two of index."""

_LEAF_FILL: Final = 0.6
"""Share of the file that records fill when a store with random keys starts to refuse: measured 0.61 at 2 MiB to 0.68
at 32 MiB, batches of 500 to 16,384 records. Leaves of a B+tree are two thirds full, and each batch needs free pages."""

_BISECT_RECORDS: Final = 64
"""A batch that does not fit is halved down to this many records before the rest is refused."""


class _Batch:
    """Records in key order, each key once; `chosen`: the positions to write, `stored`: of them, what is on disk."""

    def __init__(self, keys: U64Array, rows: U32Array) -> None:
        self.keys, self.rows = keys, rows
        self.chosen = np.arange(len(keys))
        self.stored = np.zeros(len(keys), np.bool_)

    def take(self, part: I64Array) -> tuple[U64Array, U32Array]:
        """Return the keys and rows at ascending positions."""
        if len(part) == len(self.keys):
            return self.keys, self.rows
        return self.keys[part], self.rows[part]


class LmdbWriter:
    """Writes records to an open environment. One thread at a time.

    Inserts may use the file up to `insert_limit_bytes`, removals up to `capacity_bytes`. The map is resized under
    `map_lock`, which readers hold: LMDB allows no transaction in the process meanwhile. `reader` gives its snapshot up
    around each write.
    """

    def __init__(
        self,
        env: lmdb.Environment,
        db: lmdb._Database,
        *,
        file: Path,
        words: int,
        insert_limit_bytes: int,
        capacity_bytes: int,
        clock_s: ClockS,
        map_lock: threading.Lock,
        reader: LmdbReader,
    ) -> None:
        self._reader = reader
        self._env, self._db, self._file, self._words = env, db, file, words
        record_bytes = 8 + 4 * words + SEAL_BYTES + _NODE_BYTES
        self._insert_limit, self._capacity = insert_limit_bytes, capacity_bytes
        self._clock_s, self._map_lock = clock_s, map_lock
        self.full, self.broken, self._inserting = False, "", True
        self.inserts = self.updates = self.removes = self.rejected = self.corrupt = 0
        self.room_records = max(1, int(insert_limit_bytes // _PAGE * _LEAF_FILL * _PAGE / record_bytes))
        self._count_records()

    def _count_records(self) -> None:
        with self._env.begin() as txn:
            self.records = int(txn.stat(self._db)["entries"])

    def write_many(self, keys: U64Array, rows: U32Array, removes: U64Array) -> BoolArray:
        """See `LmdbStore.write_many`."""
        order, last = _last_of_each(keys)
        batch = _Batch(keys[order], rows[order])
        if len(removes):
            self.full = False
        self._inserting = not self.full
        if self.full:  # overwritten records need pages only in passing: they may use what removals may
            batch.chosen = np.flatnonzero(self._there(batch.keys))
        if len(batch.chosen) or len(removes):
            self._write_parts(batch, np.unique(removes), batch.chosen)
            self._count_records()
            if self.full:
                self.room_records = max(1, min(self.room_records, self.records))
        stored: BoolArray = np.where(last >= 0, np.append(batch.stored, False)[last], False)
        self.rejected += int(len(keys) - np.count_nonzero(stored))
        return stored

    def _there(self, keys: U64Array) -> BoolArray:
        with self._env.begin(db=self._db) as txn:
            return np.array([value is not None for value in map(txn.get, split_keys(keys))], np.bool_)

    def _write_parts(self, batch: _Batch, removes: U64Array, part: I64Array) -> None:
        if self._write(batch, removes, part):
            batch.stored[part] = True
        elif len(removes):
            self._remove_parts(batch, removes)
            self._write_parts(batch, removes[:0], part)
        elif len(part) > _BISECT_RECORDS:
            self._write_parts(batch, removes, part[: len(part) // 2])
            self._write_parts(batch, removes, part[len(part) // 2 :])
        else:
            self.full = True

    def _remove_parts(self, batch: _Batch, removes: U64Array) -> None:
        """Remove in as large transactions as the reserve allows: LMDB copies every leaf it takes a record from."""
        if self._write(batch, removes, batch.chosen[:0]):
            return
        if len(removes) == 1:
            raise self._error(lmdb.MapFullError("no page is left to remove a record with"))
        self._remove_parts(batch, removes[: len(removes) // 2])
        self._remove_parts(batch, removes[len(removes) // 2 :])

    def _write(self, batch: _Batch, removes: U64Array, part: I64Array) -> bool:
        """Commit one transaction, growing the map as needed; returns False where the capacity does not allow it."""
        if self.broken:
            raise self._error(lmdb.Error(self.broken))
        limit = self._insert_limit if len(part) and self._inserting else self._capacity
        if self._map_bytes() > limit:
            self._set_map_bytes(limit)
        while True:
            try:
                self._commit(*batch.take(part), removes)
                return True
            except lmdb.MapFullError:
                before = self._map_bytes()
                self._set_map_bytes(min(2 * before, limit))
                if self._map_bytes() <= before:
                    return False
            except lmdb.DiskError as error:
                raise self._error(error) from error
            except lmdb.Error as error:
                # A failed fsync leaves pages that a second one would wrongly report as written: never try again.
                self.broken = str(error)
                raise self._error(error) from error

    def _error(self, error: lmdb.Error) -> StoreError:
        return StoreError(
            f"{self._file} cannot be written",
            why=str(error),
            fix="free space on its disk and restart; reads go on, new records are refused",
        )

    def _map_bytes(self) -> int:
        return int(self._env.info()["map_size"])

    def _set_map_bytes(self, size: int) -> None:
        with self._map_lock:
            self._reader.release_locked()
            self._env.set_mapsize(size)

    def _commit(self, keys: U64Array, rows: U32Array, removes: U64Array) -> None:
        """Write one transaction, giving way to other threads every `SLICE_RECORDS` records."""
        removed = updated = 0
        with ExitStack() as stack:
            stack.callback(self._reader.release)  # after the commit: what was written is seen from then on
            self._reader.release()
            txn = stack.enter_context(self._env.begin(write=True, db=self._db))
            for start in range(0, len(removes), SLICE_RECORDS):
                removed += sum(map(txn.delete, split_keys(removes[start : start + SLICE_RECORDS])))
                give_way()
            for start in range(0, len(keys), SLICE_RECORDS):
                stop = start + SLICE_RECORDS
                updated += self._put(txn, keys[start:stop], rows[start:stop])
                give_way()
        self.removes += removed
        self.updates += updated
        self.inserts += len(keys) - updated

    def _put(self, txn: lmdb.Transaction, keys: U64Array, rows: U32Array) -> int:
        """Put a slice; returns how many records it overwrote. New ones, the most, take one descent of the tree each."""
        stamped = self._stamp(rows)
        names = split_keys(keys)
        fresh = list(map(partial(txn.put, overwrite=False), names, pack_values(keys, stamped)))
        if all(fresh):
            return 0
        at = np.flatnonzero(~np.array(fresh, np.bool_))
        names = [names[i] for i in at.tolist()]
        old, whole, damaged = unpack_values(keys[at], [bytes(txn.get(name, b"")) for name in names], self._words)
        new = rows[at]
        self.corrupt += damaged
        keep_facts(old, whole, new)
        deque(map(txn.put, names, pack_values(keys[at], self._stamp(new))), maxlen=0)
        return len(at)

    def _stamp(self, rows: U32Array) -> U32Array:
        """Return a copy of the rows, those that come without a time given this one."""
        rows = rows.copy()
        bare = rows[:, INSERTED] == 0
        rows[bare, INSERTED] = rows[bare, LAST_ACCESS] = self._clock_s()
        return rows


def _last_of_each(keys: U64Array) -> tuple[I64Array, I64Array]:
    """Return the positions of the distinct keys that are not 0, ascending by key, of each its last one.

    Second, for every given key, its place among those, -1 for a key of 0.
    """
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    last = np.append(ordered[1:] != ordered[:-1], True)[: len(keys)] & (ordered != 0)
    place = np.empty(len(keys), np.int64)
    place[order] = np.where(ordered != 0, np.cumsum(last) - last, -1)
    return order[last], place
