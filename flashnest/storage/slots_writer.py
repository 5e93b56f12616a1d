"""The writing half of the slots tier (Kangaroo's shape, SOSP'21): segment and log first, buckets in large merges.

A batch goes key-sorted to a segment, is synced, and is answered from the DRAM log; when the log or the segments are
full, all of it is merged into the buckets, synced, and the segments are dropped. So a changed record costs its own
bytes at once, and 4096 / (records a bucket gets in one merge) bytes at the merge: a larger log makes merges cheaper.

What a crash loses. kill -9: nothing of a `write_many` that returned. Power cut: the same; a page that was half written
when the power went loses the older records of its bucket (at most `slots`, counted `corrupt`), those of the merge come
again from the segments. A batch that was not synced is dropped whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from flashnest.errors import StoreError
from flashnest.record import INSERTED, LAST_ACCESS, META, BoolArray, U8Array, U32Array, U64Array
from flashnest.storage.sealed import keep_facts
from flashnest.storage.segments import Batch, SegmentLog, batch_bytes
from flashnest.storage.slots_buckets import Buckets
from flashnest.storage.slots_log import RecordLog
from flashnest.storage.slots_page import TOMBSTONE
from flashnest.storage.store import ClockS, State

_BATCH_RECORDS: Final = 16384
"""Most records of one segment batch: one sync, and 1.2 MB of rows, at most."""


class SlotsWriter:
    """Writes records to log, segments and buckets. One thread at a time."""

    def __init__(
        self,
        buckets: Buckets,
        log: RecordLog,
        segments: SegmentLog,
        *,
        path: Path,
        segment_budget_bytes: int,
        clock_s: ClockS,
    ) -> None:
        self._path = path
        self._buckets, self._log, self._segments, self._clock_s = buckets, log, segments, clock_s
        self._segment_budget = segment_budget_bytes
        self.inserts = self.updates = self.removes = self.rejected = 0
        self.broken = ""
        self._unmerged = 0  # records that the log adds to the buckets, less those it removes from them

    @property
    def records(self) -> int:
        """Records stored."""
        return self._buckets.records + self._unmerged

    def compile(self) -> None:
        """Load or compile the kernels, writing nothing."""
        none, rows = np.zeros(0, np.uint64), np.zeros((0, self._buckets.words), np.uint32)
        self._buckets.compile()
        self._old(none)
        keep_facts(rows, np.zeros(0, np.bool_), rows)
        self._log.put_many(none, rows)

    def replay(self) -> None:
        """Take the segments of an earlier run into the log; merges where the log is smaller than it was then."""
        for batch in self._segments.replay():
            for removes, records in _parts(len(batch.removes), len(batch.keys), self._log.max_records):
                if self._log.room < len(batch.removes[removes]) + len(batch.keys[records]):
                    self._or_break(self._make_room)
                self._log.bury_many(batch.removes[removes])
                self._log.put_many(batch.keys[records], batch.rows[records])

    def _make_room(self) -> None:
        self._buckets.merge(*self._log.records())
        self._log.clear()
        self._unmerged = 0

    def take_records(self, records: int) -> None:
        """Start from the number of records that a clean close noted."""
        self._unmerged = records - self._buckets.evicted - self._buckets.records

    def count_records(self) -> None:
        """Find out how many records of the log are not in the buckets, by reading the buckets they belong to."""
        keys, rows = self._log.records()
        alive = rows[:, META] & 0xFF != TOMBSTONE
        order = np.argsort(keys)
        known = 0
        for at in range(0, len(order), _BATCH_RECORDS):
            part = order[at : at + _BATCH_RECORDS]
            state = np.full(len(part), State.PENDING, np.uint8)
            self._buckets.writer.ask_pages(keys[part], state, np.empty((len(part), rows.shape[1]), np.uint32))
            known += int(np.count_nonzero(state == State.HIT))
        self._unmerged = int(np.count_nonzero(alive)) - known

    def write_many(self, keys: U64Array, rows: U32Array, removes: U64Array) -> BoolArray:
        """See `SlotsStore.write_many`."""
        self._or_break(lambda: None)
        stored: BoolArray = keys != 0
        self.rejected += int(len(keys) - np.count_nonzero(stored))
        gone = np.unique(removes)
        gone = gone[self._there(gone)] if len(gone) else gone
        distinct, from_end = np.unique(keys[::-1], return_index=True)
        last = len(keys) - 1 - from_end[distinct != 0]
        for gone_part, last_part in _parts(len(gone), len(last), min(_BATCH_RECORDS, self._log.max_records)):
            at = last[last_part]
            self._write(Batch(keys[at], rows[at], gone[gone_part]))
        return stored

    def _there(self, keys: U64Array) -> BoolArray:
        there: BoolArray = self._old(keys)[0] == State.HIT
        return there

    def _old(self, keys: U64Array) -> tuple[U8Array, U32Array]:
        state, rows = np.empty(len(keys), np.uint8), np.empty((len(keys), self._buckets.words), np.uint32)
        self._buckets.writer.answer(self._log, keys, state, rows)
        return state, rows

    def _write(self, batch: Batch) -> None:
        changes = len(batch.keys) + len(batch.removes)
        size = batch_bytes(len(batch.keys), len(batch.removes), self._buckets.words)
        if self._log.room < changes or self._segments.bytes_held + size > self._segment_budget:
            self.merge()
        state, old = self._old(batch.keys)
        state[np.isin(batch.keys, batch.removes, assume_unique=True)] = State.MISS
        keep_facts(old, state == State.HIT, batch.rows)
        self._stamp(batch.rows)
        self._append(batch)
        self._log.bury_many(batch.removes)
        self._log.put_many(batch.keys, batch.rows)
        updated = int(np.count_nonzero(state == State.HIT))
        self.inserts += len(batch.keys) - updated
        self.updates += updated
        self.removes += len(batch.removes)
        self._unmerged += len(batch.keys) - updated - len(batch.removes)

    def _stamp(self, rows: U32Array) -> None:
        """Give rows their times that have none."""
        fresh = rows[:, INSERTED] == 0
        rows[fresh, INSERTED] = self._clock_s()
        fresh |= rows[:, LAST_ACCESS] == 0  # or it would be the first that its bucket evicts
        rows[fresh, LAST_ACCESS] = self._clock_s()

    def _append(self, batch: Batch) -> None:
        try:
            self._segments.write(batch)
        except OSError as error:
            raise self._error(str(error)) from error
        self._or_break(self._segments.sync)

    def merge(self) -> None:
        """Put everything of the log into the buckets and drop the segments. Raises StoreError where the disk fails."""
        self._or_break(self._make_room)
        self._or_break(self._segments.drop)

    def load_sorted(self, keys: U64Array, rows: U32Array) -> None:
        """See `SlotsStore.load_sorted`."""
        if len(self._log):
            self.merge()
        self._or_break(lambda: self._buckets.merge(keys, rows))

    def _or_break(self, work: Callable[[], None]) -> None:
        # a failed sync leaves pages that a second one would wrongly report as written: never try again
        if self.broken:
            raise self._error(self.broken)
        try:
            work()
        except OSError as error:
            self.broken = str(error)
            raise self._error(self.broken) from error

    def _error(self, why: str) -> StoreError:
        return StoreError(
            f"{self._path} cannot be written",
            why=why,
            fix="free space on its disk and restart; reads go on, new records are refused",
        )


def _parts(removes: int, records: int, most: int) -> Iterator[tuple[slice, slice]]:
    """Cut removals, then records, into parts of at most `most` together."""
    for start in range(0, removes + records, most):
        stop = min(start + most, removes + records)
        yield slice(min(start, removes), min(stop, removes)), slice(max(start - removes, 0), max(stop - removes, 0))
