"""The writing half of the LMDB tier: durable batches within a byte capacity. Never reads for a lookup."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

import lmdb
import numpy as np

from flashnest.errors import StoreError
from flashnest.record import INSERTED, LAST_ACCESS, BoolArray, I64Array, U32Array, U64Array
from flashnest.storage.sealed import keep_facts, seal, unseal
from flashnest.storage.store import ClockS

_BISECT_RECORDS: Final = 64
"""A batch that does not fit is halved down to this many records before the rest is refused."""


class LmdbWriter:
    """Writes records to an open environment. One thread at a time.

    Inserts may use the file up to `insert_limit_bytes`, removals up to `capacity_bytes`. The map is resized under
    `map_lock`, which readers hold during their transactions: LMDB allows none in the process meanwhile.
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
    ) -> None:
        self._env, self._db, self._file, self._words = env, db, file, words
        self._insert_limit, self._capacity = insert_limit_bytes, capacity_bytes
        self._clock_s, self._map_lock = clock_s, map_lock
        self.full, self.broken, self._inserting = False, "", True
        self.inserts = self.updates = self.removes = self.rejected = self.corrupt = 0
        self._count_records()

    def _count_records(self) -> None:
        with self._env.begin() as txn:
            self.records = int(txn.stat(self._db)["entries"])

    def write_many(self, keys: U64Array, rows: U32Array, removes: U64Array) -> BoolArray:
        """See `LmdbStore.write_many`."""
        stored = np.zeros(len(keys), np.bool_)
        order = np.argsort(keys, kind="stable")
        order = order[keys[order] != 0]
        if len(removes):
            self.full = False
        self._inserting = not self.full
        if self.full:  # overwritten records need pages only in passing: they may use what removals may
            order = order[self._there(keys[order])]
        if len(order) or len(removes):
            self._write_parts(keys, rows, np.sort(removes), order, stored)
            self._count_records()
        self.rejected += int(len(keys) - np.count_nonzero(stored))
        return stored

    def _there(self, keys: U64Array) -> BoolArray:
        with self._env.begin(db=self._db, buffers=True) as txn:
            return np.array([txn.get(key) is not None for key in split_keys(keys)], np.bool_)

    def _write_parts(
        self, keys: U64Array, rows: U32Array, removes: U64Array, order: I64Array, stored: BoolArray
    ) -> None:
        if self._write(keys, rows, removes, order):
            stored[order] = True
        elif len(removes):
            self._remove_parts(removes)
            self._write_parts(keys, rows, removes[:0], order, stored)
        elif len(order) > _BISECT_RECORDS:
            self._write_parts(keys, rows, removes, order[: len(order) // 2], stored)
            self._write_parts(keys, rows, removes, order[len(order) // 2 :], stored)
        else:
            self.full = True

    def _remove_parts(self, removes: U64Array) -> None:
        """Remove in as large transactions as the reserve allows: LMDB copies every leaf it takes a record from."""
        if self._write(removes[:0], np.zeros((0, self._words), np.uint32), removes, np.zeros(0, np.int64)):
            return
        if len(removes) == 1:
            raise self._error(lmdb.MapFullError("no page is left to remove a record with"))
        self._remove_parts(removes[: len(removes) // 2])
        self._remove_parts(removes[len(removes) // 2 :])

    def _write(self, keys: U64Array, rows: U32Array, removes: U64Array, order: I64Array) -> bool:
        """Commit one transaction, growing the map as needed; returns False where the capacity does not allow it."""
        if self.broken:
            raise self._error(lmdb.Error(self.broken))
        limit = self._insert_limit if len(order) and self._inserting else self._capacity
        if self._map_bytes() > limit:
            self._set_map_bytes(limit)
        while True:
            try:
                self._commit(keys, rows, removes, order)
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
            self._env.set_mapsize(size)

    def _commit(self, keys: U64Array, rows: U32Array, removes: U64Array, order: I64Array) -> None:
        inserted = updated = removed = 0
        with self._env.begin(write=True, db=self._db) as txn:
            for key in split_keys(removes):
                removed += txn.delete(key)
            for key, i in zip(split_keys(keys[order]), order.tolist(), strict=True):
                row = rows[i].copy()
                old = txn.get(key)
                updated += old is not None
                inserted += old is None
                if old is not None:
                    self._merge(key, old, row)
                if row[INSERTED] == 0:
                    row[INSERTED] = row[LAST_ACCESS] = self._clock_s()
                txn.put(key, seal(key, row.tobytes()))
        self.inserts += inserted
        self.updates += updated
        self.removes += removed

    def _merge(self, key: bytes, old: bytes, row: U32Array) -> None:
        stored = unseal(key, old, 4 * self._words)
        if stored is None:
            self.corrupt += 1
        else:
            keep_facts(np.frombuffer(stored, np.uint32), row)


def split_keys(keys: U64Array) -> list[bytes]:
    """Return each key as the 8 native bytes that LMDB's integer keys are."""
    data = keys.tobytes()
    return [data[i : i + 8] for i in range(0, len(data), 8)]
