"""The durable NVMe tier: records in one LMDB file, checksummed one by one. Never writes on a hit, never opens twice.

Rules, each paid for by a measurement (`docs/architecture.md`, storage): no readahead (it pulled 112 MB into the page
cache for 430 reads); LMDB's default sync and one transaction a batch; never writemap; the map grows when it is full, up
to the capacity; no read transaction outlives a write; file format 0.9; nothing crosses a fork.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import lmdb
import numpy as np

from flashnest.errors import StoreClosedError, StoreCorruptError, StoreError, StoreFullError
from flashnest.record import BoolArray, Tier, U32Array, U64Array, first_of_each
from flashnest.storage.cold_pace import SLICE_RECORDS, give_way
from flashnest.storage.lmdb_files import StoreDirectory
from flashnest.storage.lmdb_reader import LmdbReader
from flashnest.storage.lmdb_writer import LmdbWriter
from flashnest.storage.sealed import LAYOUT_VERSION, SEAL_BYTES, join_keys, load_kernels
from flashnest.storage.store import ClockS, Found, StoreStats

MIN_CAPACITY_BYTES: Final = 1 << 20
INITIAL_MAP_BYTES: Final = 16 << 20
_PAGE: Final = 4096
_SCAN_RECORDS: Final = 512


class LmdbStore:
    """A `Store` on NVMe. One thread may write while another reads; each call uses its own short transaction.

    The file never grows past `capacity_bytes`: inserts stop 1/16 below it (at least 256 KiB), so that removals, which
    LMDB makes by copying pages, still have room.
    """

    def __init__(
        self,
        path: Path,
        capacity_bytes: int,
        *,
        words: int,
        owner: str = "",
        clock_s: ClockS,
        initial_map_bytes: int = INITIAL_MAP_BYTES,
        verify_timeout_s: float = 120.0,
    ) -> None:
        """Open or create the store in directory `path`.

        `owner` says what the records were made for (model, tokenizer); a file of another owner is refused. Raises
        StoreFullError below 1 MiB, StoreError where the directory is in use or was made for another layout,
        StoreCorruptError where the file is damaged.
        """
        if capacity_bytes < MIN_CAPACITY_BYTES:
            raise StoreFullError(
                f"an LMDB store of {capacity_bytes} bytes is too small",
                why="LMDB needs some pages for itself",
                fix=f"give the nvme tier at least {MIN_CAPACITY_BYTES} bytes",
            )
        self.tier = Tier.NVME
        self._capacity = capacity_bytes // _PAGE * _PAGE
        insert_limit = self._capacity - max(256 << 10, capacity_bytes // 16 // _PAGE * _PAGE)
        self._words = words
        self._pid, self._closed, self._broken = os.getpid(), False, ""
        self._write_lock, self._map_lock = threading.Lock(), threading.Lock()
        load_kernels(words)
        self._directory = StoreDirectory(path)
        try:
            self._directory.make_sure_it_is_sound(verify_timeout_s)
            self._directory.mark_open()
            self._env = self._open_env(min(initial_map_bytes, insert_limit))
            try:
                self._db = self._open_records(owner)
                self._reader = LmdbReader(self._env, self._db, words=words, map_lock=self._map_lock)
                self._writer = LmdbWriter(
                    self._env,
                    self._db,
                    file=self._directory.data,
                    words=words,
                    insert_limit_bytes=insert_limit,
                    capacity_bytes=self._capacity,
                    clock_s=clock_s,
                    map_lock=self._map_lock,
                    reader=self._reader,
                )
            except BaseException:
                self._env.close()
                raise
        except BaseException:
            self._directory.release()
            raise

    def _open_env(self, initial_map_bytes: int) -> lmdb.Environment:
        held = self._directory.data_bytes()
        size = max(initial_map_bytes, -(-held // _PAGE) * _PAGE)
        try:
            return lmdb.open(
                str(self._directory.path),
                map_size=size,
                max_dbs=2,
                mode=0o600,
                readahead=False,
                lib_version=0,
            )
        except lmdb.Error as error:
            raise StoreCorruptError(
                f"{self._directory.data} cannot be opened",
                why=str(error),
                fix=f"move {self._directory.path} away to start empty",
            ) from error

    def _open_records(self, owner: str) -> lmdb._Database:
        wanted = {
            "format": f"flashnest {LAYOUT_VERSION}",
            "words": str(self._words),
            "byteorder": sys.byteorder,
            "owner": owner,
        }
        fresh = self._env.stat()["entries"] == 0
        try:
            meta = self._env.open_db(b"meta", create=fresh)
            records = self._env.open_db(b"records", integerkey=True, create=fresh)
        except lmdb.Error as error:
            raise self._directory.foreign("it has no flashnest tables") from error
        with self._env.begin(write=fresh, db=meta) as txn:
            for name, value in wanted.items():
                if fresh:
                    txn.put(name.encode(), value.encode())
                elif (stored := bytes(txn.get(name.encode(), b"")).decode(errors="replace")) != value:
                    raise self._directory.foreign(f"its {name} is {stored!r}, this run needs {value!r}")
        return records

    def __len__(self) -> int:
        return self._writer.records

    @property
    def full(self) -> bool:
        """Whether the last insert met the capacity; it stays so until records are removed."""
        return self._writer.full

    @property
    def corrupt(self) -> int:
        """Damaged records met so far; each was a miss."""
        return self._reader.corrupt + self._writer.corrupt

    @property
    def value_bytes(self) -> int:
        """Bytes of key and value that one record takes, LMDB's own left out."""
        return 8 + 4 * self._words + SEAL_BYTES

    @property
    def merge_bytes(self) -> int:
        """Bytes of pages beside the records' own: LMDB counts none, the kernel does (`write_meter`)."""
        return 0

    def lookup_many(self, keys: U64Array, found: Found) -> None:
        """See `Store.lookup_many`. Reads inline and writes nothing: HITS and LAST_ACCESS come as they were stored."""
        self._check()
        if len(keys) > found.capacity:
            raise ValueError(f"{len(keys)} keys do not fit answer buffers for {found.capacity}")
        self._reader.lookup_many(keys, found)

    def contains_many(self, keys: U64Array) -> BoolArray:
        """See `Store.contains_many`."""
        self._check()
        return self._reader.contains_many(keys)

    def insert_many(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """See `Store.insert_many`: one durable transaction, in key order. Raises StoreError where the disk fails."""
        return self.write_many(keys, rows, np.zeros(0, np.uint64))

    def remove_many(self, keys: U64Array) -> BoolArray:
        """See `Store.remove_many`: one durable transaction."""
        there = self.contains_many(keys)
        there &= first_of_each(keys)
        if there.any():
            self.write_many(np.zeros(0, np.uint64), np.zeros((0, self._words), np.uint32), keys[there])
        return there

    def write_many(self, keys: U64Array, rows: U32Array, removes: U64Array) -> BoolArray:
        """Remove `removes`, then insert records, in one durable transaction; returns which were inserted, (n,).

        Keys of 0 are refused. Where the capacity is reached a part of the batch may go in, in a transaction a part.
        """
        self._check()
        if rows.shape != (len(keys), self._words):
            raise ValueError(f"{len(keys)} keys come with rows {rows.shape}, the store has {self._words} words a row")
        with self._write_lock:
            return self._writer.write_many(keys, rows, removes)

    def feedback_many(self, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
        """See `Store.feedback_many`: feedback is never worth a write to NVMe, so it is dropped here."""
        self._check()

    def scan(self) -> Iterator[tuple[U64Array, U32Array]]:
        """See `Store.scan`: in key order, a short transaction a batch. Damaged records are left out and counted."""
        after: bytes | None = None
        while True:
            self._check()
            keys, rows, after = self._reader.records_after(after, _SCAN_RECORDS)
            if len(keys):
                yield keys, rows
            if after is None:
                return

    def scan_from(self, position: int, records: int) -> tuple[U64Array, U32Array, int]:
        """See `ColdStore.scan_from`: in key order; a position is the last key that was read."""
        parts: list[tuple[U64Array, U32Array]] = []
        after = position.to_bytes(8, sys.byteorder) if position else None
        for start in range(0, records, SLICE_RECORDS):
            self._check()
            keys, rows, after = self._reader.records_after(after, min(SLICE_RECORDS, records - start))
            parts.append((keys, rows))
            if after is None:
                break
            give_way()
        where = int.from_bytes(after, sys.byteorder) if after is not None else 0
        return np.concatenate([keys for keys, _ in parts]), np.concatenate([rows for _, rows in parts]), where

    def scan_keys(self) -> Iterator[U64Array]:
        """Yield every key once, in batches, ascending."""
        after: bytes | None = None
        while True:
            self._check()
            batch = self._reader.keys_after(after, _SCAN_RECORDS)
            if not batch:
                return
            after = batch[-1]
            yield join_keys(batch)

    def stats(self) -> StoreStats:
        """See `Store.stats`; `bytes_used` is the size of the file, which never shrinks; `fill` goes by records."""
        writer, held = self._writer, self._directory.data_bytes()
        return StoreStats(
            records=writer.records,
            bytes_used=held,
            bytes_budget=self._capacity,
            lookups=self._reader.lookups,
            hits=self._reader.hits,
            inserts=writer.inserts,
            updates=writer.updates,
            removes=writer.removes,
            rejected=writer.rejected,
            evicted=0,
            fill=min(1.0, writer.records / writer.room_records),
        )

    def close(self) -> None:
        """Close the file and note that it is whole. A second call, or one in a forked child, does nothing."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        with self._write_lock, self._map_lock:
            self._reader.release_locked()
            self._env.close()
        if not self._writer.broken:
            self._directory.mark_clean()
        self._directory.release()

    def _check(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self._directory.path} is closed")
        if os.getpid() != self._pid:
            raise StoreError(
                f"{self._directory.path} was opened before a fork",
                why="LMDB cannot be used across a fork",
                fix="open the store in the process that uses it",
            )
