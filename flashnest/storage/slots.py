"""The NVMe tier made for cold reads: 4 KiB buckets found by the key itself, read in batches through io_uring.

One read a record and one system call a batch, no index in DRAM, no page cache (`slots_page`, `page_io`). Changes go to
a segment and a DRAM log at once, and to the buckets in large merges (`slots_writer` says what a crash loses). A hit
never writes. A full bucket evicts; the file never grows.

Threads. Any thread may look up while the writer's writes or merges: lookups share one lane under `_read_lock`, writes,
merges and scans another under `_write_lock`. A lookup waits for a merge only while the log changes hands (a pointer) or
where it read a page in the middle of being written (at most 1 MiB of writes).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from flashnest.errors import StoreClosedError, StoreError, StoreFullError
from flashnest.record import BoolArray, Tier, U32Array, U64Array, first_of_each
from flashnest.storage.page_io import DEFAULT_DEPTH, PAGE_BYTES, Io
from flashnest.storage.segments import SegmentLog, batch_bytes
from flashnest.storage.slots_buckets import LANE_PAGES, Buckets
from flashnest.storage.slots_file import SlotsDirectory, Superblock
from flashnest.storage.slots_log import RecordLog
from flashnest.storage.slots_scan import walk
from flashnest.storage.slots_writer import SlotsWriter
from flashnest.storage.store import ClockS, Found, State, StoreStats

MIN_CAPACITY_BYTES: Final = 1 << 20
_LEAST_LOG_BYTES, _MOST_LOG_BYTES = 64 << 10, 256 << 20
_HIT = np.uint8(State.HIT)
_SEGMENTS_PER_LOG: Final = 1.5
"""Segments are merged away at this many times the log's records: overwritten records take room there again."""


class SlotsStore:
    """A `ColdStore` of fixed-size buckets. Keys must be spread like hashes over all 64 bits, as flashnest's are."""

    def __init__(
        self,
        path: Path,
        capacity_bytes: int,
        *,
        words: int,
        owner: str = "",
        clock_s: ClockS,
        log_bytes: int | None = None,
        io: Io = "auto",
        depth: int = DEFAULT_DEPTH,
        direct: bool = True,
    ) -> None:
        """Open or create the store in directory `path`; the file has its full size at once and is filled by and by.

        `owner` says what the records were made for (model, tokenizer); a file of another owner, row width or capacity
        is refused. `log_bytes`: DRAM for the log, by default 1/64 of the capacity, 64 KiB to 256 MiB. `depth`: most
        page reads in flight. After a crash every page is read and checked here. Raises StoreFullError below 1 MiB,
        StoreError where the directory is in use, was made for another setup or cannot be made, StoreCorruptError where
        the superblock is damaged.
        """
        if capacity_bytes < MIN_CAPACITY_BYTES:
            raise StoreFullError(
                f"a slots store of {capacity_bytes} bytes is too small",
                why="besides its buckets it keeps segments of what changed",
                fix=f"give the nvme tier at least {MIN_CAPACITY_BYTES} bytes",
            )
        self.tier = Tier.NVME
        self._words, self._capacity = words, capacity_bytes
        self._pid, self._closed = os.getpid(), False
        self._read_lock, self._write_lock = threading.Lock(), threading.Lock()
        self._lookups = self._hits = 0
        self._log = RecordLog(log_bytes or min(max(capacity_bytes // 64, _LEAST_LOG_BYTES), _MOST_LOG_BYTES), words)
        segment_budget = int(_SEGMENTS_PER_LOG * batch_bytes(self._log.max_records, 0, words)) + PAGE_BYTES
        buckets = (capacity_bytes - 2 * PAGE_BYTES - segment_budget) // (PAGE_BYTES + 1)  # a byte of `clean` a bucket
        if buckets < 1:
            raise StoreFullError(
                f"a log of {self._log.bytes_used} bytes leaves no room in {capacity_bytes}",
                why=f"its segments take up to {segment_budget} bytes of the capacity",
                fix="give the slots engine fewer log_bytes, or the nvme tier more capacity",
            )
        self._directory = SlotsDirectory(path)
        try:
            facts = self._directory.open_or_create(owner, words, capacity_bytes, buckets)
            self._open(facts, segment_budget, clock_s, io, depth, direct)
        except BaseException:
            self._directory.release()
            raise

    def _open(self, facts: Superblock, segment_budget: int, clock_s: ClockS, io: Io, depth: int, direct: bool) -> None:
        directory = self._directory
        try:
            self._buckets = Buckets(directory.data, facts, io=io, depth=depth, direct=direct)
        except OSError as error:
            raise StoreError(
                f"{directory.data} cannot be opened with io `{io}`", why=str(error), fix="use io `auto` or `threads`"
            ) from error
        try:
            self._segments = SegmentLog(directory.segments, words=self._words, store_id=facts.store_id)
            self._writer = SlotsWriter(
                self._buckets,
                self._log,
                self._segments,
                path=directory.data,
                segment_budget_bytes=segment_budget,
                clock_s=clock_s,
            )
            self._recover()
        except BaseException:
            self._buckets.close()
            raise

    def _recover(self) -> None:
        clean = self._directory.read_clean(self._buckets.buckets)
        self._directory.mark_open()
        self._writer.compile()
        if clean:
            self._buckets.take_counts(clean[0])
        else:
            self._buckets.examine()
        self._writer.replay()
        if clean and not self._segments.dropped:
            self._writer.take_records(clean[1])
        else:
            self._writer.count_records()

    def __len__(self) -> int:
        return self._writer.records

    @property
    def full(self) -> bool:
        """Never: a full bucket evicts."""
        return False

    @property
    def corrupt(self) -> int:
        """Damaged buckets and segment batches met so far; each was a miss."""
        return self._buckets.corrupt + self._segments.dropped

    @property
    def value_bytes(self) -> int:
        """Bytes of key and row that one record takes in its bucket and in a segment."""
        return 8 + 4 * self._words

    @property
    def io(self) -> str:
        """How pages are read: `io_uring` or `threads`."""
        return self._buckets.lookups.file.reader

    @property
    def io_why(self) -> str:
        """Why they are read so, and what became of O_DIRECT, for the report."""
        file = self._buckets.lookups.file
        return f"{file.why}; {'O_DIRECT' if file.direct else 'through the page cache: no O_DIRECT here'}"

    @property
    def log_bytes(self) -> int:
        """DRAM that the log takes."""
        return self._log.bytes_used

    @property
    def segment_bytes(self) -> int:
        """Bytes written to segments so far."""
        return self._segments.bytes_written

    @property
    def merge_bytes(self) -> int:
        """Bytes of pages written by merges so far."""
        return self._buckets.merge_bytes

    def lookup_many(self, keys: U64Array, found: Found) -> None:
        """See `Store.lookup_many`. Reads inline and writes nothing: HITS and LAST_ACCESS come as they were stored."""
        self._check()
        n = len(keys)
        if n > found.capacity:
            raise ValueError(f"{n} keys do not fit answer buffers for {found.capacity}")
        with self._read_lock:
            self._buckets.lookups.answer(self._log, keys, found.state, found.rows)
            found.tier[:n] = Tier.NVME
            self._lookups += n
            self._hits += int(np.count_nonzero(found.state[:n] == _HIT))

    def contains_many(self, keys: U64Array) -> BoolArray:
        """See `Store.contains_many`."""
        self._check()
        found = Found.allocate(len(keys), self._words)
        with self._read_lock:
            self._buckets.lookups.answer(self._log, keys, found.state, found.rows)
        return np.equal(found.state, State.HIT)

    def insert_many(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """See `Store.insert_many`: durable when it returns. Raises StoreError where the disk fails."""
        return self.write_many(keys, rows, np.zeros(0, np.uint64))

    def remove_many(self, keys: U64Array) -> BoolArray:
        """See `Store.remove_many`: durable when it returns."""
        there = self.contains_many(keys)
        there &= first_of_each(keys)
        if there.any():
            self.write_many(np.zeros(0, np.uint64), np.zeros((0, self._words), np.uint32), keys[there])
        return there

    def write_many(self, keys: U64Array, rows: U32Array, removes: U64Array) -> BoolArray:
        """Remove `removes`, then insert records, durably; returns which were inserted, (n,): all but keys of 0.

        At most `_BATCH_RECORDS` go into one segment batch, which a crash keeps or drops whole. Raises StoreError where
        the disk fails; after a failed sync every later write is refused and reads go on.
        """
        self._check()
        if rows.shape != (len(keys), self._words):
            raise ValueError(f"{len(keys)} keys come with rows {rows.shape}, the store has {self._words} words a row")
        with self._write_lock:
            return self._writer.write_many(keys, rows, removes)

    def load_sorted(self, keys: U64Array, rows: U32Array) -> None:
        """Put records straight into their buckets, replacing what is there: for filling a store, in large batches.

        keys uint64 (n,) strictly ascending and not 0; rows with their times set. Durable when it returns; not atomic.
        """
        self._check()
        with self._write_lock:
            self._writer.load_sorted(keys, rows)

    def merge(self) -> None:
        """Move everything from log and segments into the buckets now."""
        self._check()
        with self._write_lock:
            self._writer.merge()

    def feedback_many(self, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
        """See `Store.feedback_many`: feedback is never worth a write to NVMe, so it is dropped here."""
        self._check()

    def scan(self) -> Iterator[tuple[U64Array, U32Array]]:
        """See `Store.scan`: in key order. Damaged buckets are left out and counted."""
        for keys, rows, _ in walk(self._buckets, self._log, self._write_lock, self._check):
            yield keys, rows

    def scan_keys(self) -> Iterator[U64Array]:
        """See `ColdStore.scan_keys`."""
        return (keys for keys, _ in self.scan())

    def scan_from(self, position: int, records: int) -> tuple[U64Array, U32Array, int]:
        """See `ColdStore.scan_from`; a position is the number of a bucket."""
        buckets = self._buckets
        step = min(max(1, records * buckets.buckets // max(1, len(self))), LANE_PAGES)
        parts = [(np.zeros(0, np.uint64), np.zeros((0, self._words), np.uint32))]
        wanted, where = records, 0
        for keys, rows, after in walk(buckets, self._log, self._write_lock, self._check, position, step):
            parts.append((keys, rows))
            wanted -= len(keys)
            if wanted <= 0:
                where = after if after < buckets.buckets else 0
                break
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts]), where

    def stats(self) -> StoreStats:
        """See `Store.stats`; `bytes_used` is what the buckets' file has been given and the segments."""
        writer, buckets = self._writer, self._buckets
        return StoreStats(
            records=writer.records,
            bytes_used=self._directory.allocated_bytes() + self._segments.bytes_held,
            bytes_budget=self._capacity,
            lookups=self._lookups,
            hits=self._hits,
            inserts=writer.inserts,
            updates=writer.updates,
            removes=writer.removes,
            rejected=writer.rejected,
            evicted=buckets.evicted,
            fill=min(1.0, writer.records / buckets.max_records),
        )

    def close(self) -> None:
        """Close the files and note that they are whole. A second call, or one in a forked child, does nothing.

        The log stays in its segments, and comes from there at the next open.
        """
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        with self._write_lock, self._read_lock:
            self._segments.close()
            self._buckets.close()
        if not self._writer.broken:
            self._directory.mark_clean(self._buckets.counts, self._writer.records)
        self._directory.release()

    def _check(self) -> None:
        if self._closed:
            raise StoreClosedError(f"{self._directory.path} is closed")
        if os.getpid() != self._pid:
            raise StoreError(
                f"{self._directory.path} was opened before a fork",
                why="rings and locks cannot be used across a fork",
                fix="open the store in the process that uses it",
            )
