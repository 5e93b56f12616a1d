"""New records of a cold tier: gathered in DRAM, written in batches by a thread of their own. Never grows.

Two tables of fixed size take turns: one gathers, the other is being written. While the writer is behind, what does not
fit is refused. A removal is a record too, a tombstone, until the batch that carries it is on disk.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Final

import numpy as np

from flashnest.record import META, BoolArray, Tier, U32Array, U64Array
from flashnest.storage.cold_reads import Clock
from flashnest.storage.store import ClockS, ColdStore, Found, State
from flashnest.storage.table import DramTable

_TOMBSTONE: Final = 0xFF
"""Kind code of a removal; no record has it."""

_log = logging.getLogger("flashnest.storage")


@dataclass(slots=True)
class _Job:
    """One sealed batch. The writer fills `stored` or `failed`, then sets `done`."""

    keys: U64Array
    rows: U32Array
    removes: U64Array
    stored: BoolArray | None = None
    done: bool = False


class WriteBuffer:
    """Gathers records within `budget_bytes` for both tables. Its owner's thread calls everything but the writer's loop.

    A batch is sealed at `flush_records` records or `flush_interval_s` after its first one. Without `threaded` nothing
    is written until `pump`.
    """

    def __init__(
        self,
        store: ColdStore,
        *,
        words: int,
        budget_bytes: int,
        flush_records: int,
        flush_interval_s: float,
        clock: Clock,
        clock_s: ClockS,
        threaded: bool,
    ) -> None:
        """Allocate. Raises StoreFullError where the budget holds no record."""
        self._store, self._words, self._clock = store, words, clock
        self._active, self._sealed = (
            DramTable(budget_bytes // 2, words=words, clock_s=clock_s, tier=Tier.NVME, evict=False) for _ in range(2)
        )
        self._flush_records = min(flush_records, self._active.max_records)
        self._flush_interval_s = flush_interval_s
        self._since: float | None = None
        self._job: _Job | None = None
        self._changed = threading.Condition()
        self._stopping = self._complained = False
        self.rejected = self.errors = self.bytes_written = 0
        self.lost = np.zeros(0, np.uint64)
        self._thread = (
            threading.Thread(target=self._run, name="flashnest-cold-writes", daemon=True) if threaded else None
        )
        if self._thread:
            self._thread.start()

    @property
    def bytes_used(self) -> int:
        """Bytes of DRAM allocated."""
        return self._active.bytes_used + self._sealed.bytes_used

    def __len__(self) -> int:
        return len(self._active) + len(self._sealed)

    def lookup_many(self, keys: U64Array, found: Found) -> BoolArray:
        """Answer from the buffer; returns which keys it knows, (n,): found here, or removed and therefore a MISS."""
        n = len(keys)
        if len(self) == 0:
            found.state[:n] = State.MISS
            return np.zeros(n, np.bool_)
        self._active.lookup_many(keys, found)
        known: BoolArray = found.state[:n] == State.HIT
        if len(self._sealed):
            rest = np.flatnonzero(~known)
            older = Found.allocate(len(rest), self._words)
            self._sealed.lookup_many(keys[rest], older)
            hits = older.state == State.HIT
            found.state[rest[hits]], found.tier[rest[hits]] = State.HIT, Tier.NVME
            found.rows[rest[hits]] = older.rows[hits]
            known[rest[hits]] = True
        gone = known & ((found.rows[:n, META] & 0xFF) == _TOMBSTONE)
        found.state[:n][gone] = State.MISS
        return known

    def gathers_many(self, keys: U64Array) -> BoolArray:
        """Return which keys wait in the table that still gathers, (n,)."""
        return self._active.contains_many(keys)

    def put_many(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """Gather records; returns which were taken, (n,). What does not fit while the writer is behind is refused."""
        self.tick()
        stored = self._active.insert_fitting(keys, rows)
        if not stored.all() and self._seal():
            left = np.flatnonzero(~stored & (keys != 0))
            stored[left] = self._active.insert_fitting(keys[left], rows[left])
        if self._since is None and len(self._active):
            self._since = self._clock()
        self.tick()
        return stored

    def forget_many(self, keys: U64Array) -> BoolArray:
        """Gather removals; returns which were taken, (n,)."""
        rows = np.zeros((len(keys), self._words), np.uint32)
        rows[:, META] = _TOMBSTONE
        return self.put_many(keys, rows)

    def feedback_many(self, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
        """Add draft counts to records that still gather."""
        self._active.feedback_many(keys, drafted, accepted)

    def tick(self) -> None:
        """Take notice of a finished write; seal a batch that is large or old enough."""
        self._reap()
        due = self._since is not None and self._clock() - self._since >= self._flush_interval_s
        if len(self._active) >= self._flush_records or (due and len(self._active)):
            self._seal()

    def _seal(self) -> bool:
        """Hand the gathered records to the writer; returns False where it is still busy with the last ones."""
        self._reap()
        if self._job is not None or not len(self._active):
            return False
        parts = list(self._active.scan())
        keys, rows = np.concatenate([k for k, _ in parts]), np.concatenate([r for _, r in parts])
        gone = (rows[:, META] & 0xFF) == _TOMBSTONE
        job = _Job(keys[~gone], rows[~gone], keys[gone])
        self._active, self._sealed = self._sealed, self._active
        self._since = None
        with self._changed:
            self._job = job
            self._changed.notify_all()
        return True

    def pump(self) -> None:
        """Write the sealed batch, if any, in the caller's thread. Only without `threaded`."""
        if self._job is not None and not self._job.done:
            self._write(self._job)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or (self._job is not None and not self._job.done))
                if self._stopping:
                    return
                job = self._job
            if job is not None:
                self._write(job)

    def _write(self, job: _Job) -> None:
        try:
            job.stored = self._store.write_many(job.keys, job.rows, job.removes)
        except Exception as error:  # whatever an engine or a disk raises: the run goes on without these records
            if not self._complained:
                self._complained = True
                _log.warning("cold writes fail, their records are dropped: %s", error)
        with self._changed:
            job.done = True
            self._changed.notify_all()

    def _reap(self) -> None:
        job = self._job
        if job is None or not job.done:
            return
        self._job = None
        self._sealed.clear()
        if job.stored is None:
            self.errors += len(job.keys) + len(job.removes)
            self.lost = job.keys
        else:
            self.rejected += int(len(job.keys) - np.count_nonzero(job.stored))
            self.lost = job.keys[~job.stored]
            self.bytes_written += int(np.count_nonzero(job.stored)) * self._store.value_bytes

    def take_lost(self) -> U64Array:
        """Return the keys of records that were gathered and could not be written, once."""
        lost, self.lost = self.lost, np.zeros(0, np.uint64)
        return lost

    def flush(self) -> None:
        """Write everything and return when it is on disk, or was given up as unwritable."""
        self._finish_job()
        if self._seal():
            self._finish_job()

    def _finish_job(self) -> None:
        if self._job is None:
            return
        if self._thread is None:
            self.pump()
        else:
            job = self._job
            with self._changed:
                self._changed.wait_for(lambda: job.done)
        self._reap()

    def close(self) -> None:
        """Flush, stop the writer and give the memory back."""
        self.flush()
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread:
            self._thread.join()
        self._active.close()
        self._sealed.close()
