"""The buckets of a slots store: read and checked, searched, listed, rewritten by merges. Knows no segment, no owner.

Locking. A `Lane` is a file handle, a ring and pages of its own: one for lookups, one for the writer, each under its
owner's lock, so reads never wait for a merge. A read that meets a merge's write in the middle sees a bad checksum; it
is made again under `_page_lock`, which merges hold while they write (at most `LANE_PAGES` pages, 1 MiB). Only a page
that is bad then is damaged. `counts` and `records` change under the same lock.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

import numpy as np

from flashnest.record import BoolArray, I64Array, U8Array, U32Array, U64Array
from flashnest.storage.page_io import PAGE_BYTES, Io, PageFile, PageMemory
from flashnest.storage.slots_file import Superblock
from flashnest.storage.slots_log import RecordLog
from flashnest.storage.slots_page import (
    DAMAGED,
    EMPTY,
    WHOLE,
    buckets_of,
    check_pages,
    find_rows,
    list_pages,
    merge_pages,
    page_counts,
    plan_reads,
    slots_for,
)

LANE_PAGES: Final = 256
_LOOKUP_SHARE: Final = 4
"""Merges keep a quarter of the depth in flight. Measured here, 18 cold keys while another thread writes and merges
without a pause, median us of a lookup (300 undisturbed) and s of a merge of 65 K records into 22 K buckets: depth 64
750 and 0.77, 16 550 and 0.82, 4 440 and 1.1."""


class Buckets:
    """All buckets of one file. `counts` uint8 (buckets,): records in each; those with 0 are not read."""

    def __init__(self, path: Path, facts: Superblock, *, io: Io, depth: int, direct: bool) -> None:
        """Open the file twice, see the module. Raises OSError."""
        self.words, self.slots = facts.words, slots_for(facts.words)
        self.store_id, self.buckets = np.uint64(facts.store_id), facts.buckets
        self.counts = np.zeros(facts.buckets, np.uint8)
        self.records = self.corrupt = self.evicted = self.merge_bytes = 0
        self.page_lock = threading.Lock()
        self.lookups = Lane(self, path, io=io, depth=depth, direct=direct)
        try:
            self.writer = Lane(self, path, io=io, depth=max(1, depth // _LOOKUP_SHARE), direct=direct)
        except BaseException:
            self.lookups.close()
            raise
        self._fresh = PageMemory(LANE_PAGES)

    def compile(self) -> None:
        """Load or compile the kernels, reading and writing nothing: the first lookup would wait for them."""
        none, numbers = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        rows, state = np.zeros((0, self.words), np.uint32), np.zeros(0, np.uint8)
        lane, memory = self.lookups, self.lookups.memory
        lane.ask_pages(none, state, rows)
        lane.listed(lane.load(numbers))
        find_rows(memory.words64, memory.words32, state, self.slots, 0, numbers, none, state, rows)
        page_counts(memory.words64, state, state)
        buckets_of(none, self.buckets, numbers)
        self._merge_part(numbers, np.zeros(1, np.int64), none, rows, numbers)

    @property
    def max_records(self) -> int:
        """Records that fit when every bucket is full."""
        return self.buckets * self.slots

    def take_counts(self, counts: U8Array) -> None:
        """Start from the counts of a clean close."""
        self.counts[:] = counts
        self.records = int(counts.sum())

    def examine(self) -> None:
        """Read and check every page that was ever written, counting its records."""
        page = self.writer.file.next_data(1)
        while page is not None and page <= self.buckets:
            first, stop = page - 1, min(page - 1 + LANE_PAGES, self.buckets)
            self.counts[first:stop] = 1  # or they would not be read
            status = self.writer.load(np.arange(first, stop))
            page_counts(self.writer.memory.words64, status, self.counts[first:stop])
            page = self.writer.file.next_data(stop + 1)
        self.records = int(self.counts.sum())

    def lose(self, bucket: int, *, read: bool) -> None:
        """Count a damaged bucket; one that could be read and is wrong is taken as empty from now on."""
        self.corrupt += 1
        if read:
            self.records -= int(self.counts[bucket])
            self.counts[bucket] = 0

    def merge(self, keys: U64Array, rows: U32Array) -> None:
        """Put records, keys uint64 (n,) distinct, into their buckets, durably; removals erase. For the writer.

        A bucket that would pass its slots evicts what was used longest ago. Raises OSError where the disk fails.
        """
        order = np.argsort(keys, kind="stable")
        bucket = np.empty(len(keys), np.int64)
        buckets_of(keys[order], self.buckets, bucket)
        starts = np.flatnonzero(np.append(True, bucket[1:] != bucket[:-1])) if len(keys) else np.zeros(0, np.int64)
        numbers, starts = bucket[starts], np.append(starts, len(keys))
        for at in range(0, len(numbers), LANE_PAGES):
            part = numbers[at : at + LANE_PAGES]
            self._merge_part(part, starts[at : at + len(part) + 1], keys, rows, order)
        self.writer.file.sync()

    def _merge_part(
        self, numbers: I64Array, starts: I64Array, keys: U64Array, rows: U32Array, order: I64Array
    ) -> None:  # fmt: skip
        lane, new = self.writer, self._fresh
        status = lane.load(numbers)
        counts = np.empty(len(numbers), np.uint8)
        self.evicted += merge_pages(
            lane.memory.words64, lane.memory.words32, status, new.words64, new.words32, numbers, starts, keys, rows,
            order, self.slots, self.store_id, counts,
        )  # fmt: skip
        with self.page_lock:
            lane.file.write_pages(numbers + 1, new)
            self.records += int(counts.sum()) - int(self.counts[numbers].sum())
            self.counts[numbers] = counts
        self.merge_bytes += len(numbers) * PAGE_BYTES

    def between(self, first: int, stop: int) -> tuple[U64Array, U32Array]:
        """Return the records of buckets first..stop-1, at most `LANE_PAGES` of them, by key. For the writer."""
        return self.writer.listed(self.writer.load(np.arange(first, stop)))

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self.lookups.close()
        self.writer.close()


class Lane:
    """A way to read buckets, for one thread at a time."""

    def __init__(self, owner: Buckets, path: Path, *, io: Io, depth: int, direct: bool) -> None:
        self._owner = owner
        self.file = PageFile(path, io=io, depth=depth, direct=direct)
        self.memory = PageMemory(LANE_PAGES)
        self._at, self._came = np.arange(LANE_PAGES), np.ones(LANE_PAGES, np.bool_)

    def load(self, numbers: I64Array) -> U8Array:
        """Read buckets, int64 (n,) ascending, n at most `LANE_PAGES`; returns EMPTY, WHOLE or DAMAGED for each."""
        status = np.full(len(numbers), EMPTY, np.uint8)
        at = np.flatnonzero(self._owner.counts[numbers])
        if len(at) == len(numbers):
            return self._load_all(numbers)
        came = self._came
        if (some := self.file.read_pages(numbers[at] + 1, self.memory, at)) is not None:
            came = np.ones(len(numbers), np.bool_)
            came[at] = some
        return self._checked(numbers, came, at, status)

    def _load_all(self, numbers: I64Array) -> U8Array:
        n = len(numbers)
        came = self.file.read_pages(numbers + 1, self.memory, self._at[:n])
        return self._checked(numbers, self._came if came is None else came, self._at[:n], np.empty(n, np.uint8))

    def _checked(self, numbers: I64Array, came: BoolArray, at: I64Array, status: U8Array) -> U8Array:
        owner = self._owner
        if check_pages(self.memory.words64, numbers, came, at, owner.slots, owner.store_id, status):
            for i in np.flatnonzero(status == DAMAGED).tolist():
                self._load_again(numbers, i, status)
        return status

    def _load_again(self, numbers: I64Array, i: int, status: U8Array) -> None:
        owner, at = self._owner, np.array([i])
        with owner.page_lock:
            came = self.file.read_pages(numbers[i : i + 1] + 1, self.memory, at)
            if came is not None:
                owner.lose(int(numbers[i]), read=False)
            elif check_pages(self.memory.words64, numbers, self._came, at, owner.slots, owner.store_id, status):
                owner.lose(int(numbers[i]), read=True)

    def listed(self, status: U8Array) -> tuple[U64Array, U32Array]:
        """Copy the records of the pages just loaded out, in key order."""
        room = int(np.count_nonzero(status == WHOLE)) * self._owner.slots
        keys, rows = np.empty(room, np.uint64), np.empty((room, self._owner.words), np.uint32)
        n = list_pages(self.memory.words64, self.memory.words32, status, self._owner.slots, keys, rows)
        return keys[:n], rows[:n]

    def answer(self, log: RecordLog, keys: U64Array, state: U8Array, rows: U32Array) -> None:
        """Look keys up, (n,): first the log, then the pages. state uint8 (n..,): HIT or MISS; rows where HIT."""
        log.find_many(keys, state, rows)
        self.ask_pages(keys, state, rows)

    def ask_pages(self, keys: U64Array, state: U8Array, rows: U32Array) -> None:
        """Look those keys up whose state is PENDING, in the pages alone."""
        owner, memory = self._owner, self.memory
        wanted, page_of = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
        pages = plan_reads(keys, state, owner.counts, wanted, page_of)
        for first in range(0, pages, LANE_PAGES):
            status = self._load_all(wanted[first : min(first + LANE_PAGES, pages)])
            find_rows(memory.words64, memory.words32, status, owner.slots, first, page_of, keys, state, rows)

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self.file.close()
