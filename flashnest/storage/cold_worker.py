"""The thread that writes to a cold store, and does errands when nothing waits to be written. Owns no records.

A batch always goes first; an errand is done a slice at a time, so a batch waits for one slice at most.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from flashnest.record import META, U64Array
from flashnest.storage.cold_pace import Errand, give_way
from flashnest.storage.store import ColdStore
from flashnest.storage.table import DramTable
from flashnest.storage.write_meter import thread_write_bytes

TOMBSTONE: Final = 3
"""Kind code of a removal; no record has it, and it fits the two bits that a table keeps of a kind."""

NO_KEYS: Final = np.zeros(0, np.uint64)
_log = logging.getLogger("flashnest.storage")


@dataclass(slots=True)
class WriteJob:
    """One sealed batch: a table that no longer changes, and the keys that were removed while it gathered.

    Removals go first, so a key that was removed and then stored again starts afresh. The worker fills the rest, then
    sets `done`. keys: of the records, without tombstones; lost: of these, what was not stored; disk_bytes: what
    the drive was sent.
    """

    table: DramTable
    removes: U64Array
    keys: U64Array = field(default_factory=lambda: NO_KEYS)
    lost: U64Array = field(default_factory=lambda: NO_KEYS)
    stored: int = 0
    disk_bytes: int = 0
    failed: bool = False
    done: bool = False


class ColdWorker:
    """Does jobs and errands in a thread of its own, or, without `threaded`, in the caller's when told to."""

    def __init__(self, store: ColdStore, *, threaded: bool) -> None:
        self._store = store
        self._job: WriteJob | None = None
        self._errands: deque[Errand] = deque()
        self._changed = threading.Condition()
        self._stopping = self._complained = False
        self._thread = (
            threading.Thread(target=self._run, name="flashnest-cold-writes", daemon=True) if threaded else None
        )
        if self._thread:
            self._thread.start()

    def submit(self, job: WriteJob) -> None:
        """Take a job; the last one must be done."""
        with self._changed:
            self._job = job
            self._changed.notify_all()

    def run_errand(self, errand: Errand, *, first: bool = False) -> None:
        """Take an errand, to start after the job at hand; `first`: before the other errands."""
        with self._changed:
            if first:
                self._errands.appendleft(errand)
            else:
                self._errands.append(errand)
            self._changed.notify_all()

    def wait_for(self, job: WriteJob) -> None:
        """Return when a job is done."""
        if self._thread is None:
            self._write_waiting()
        else:
            with self._changed:
                self._changed.wait_for(lambda: job.done)

    def work(self) -> bool:
        """Write the job at hand or do a slice of an errand; returns False where there was nothing to do.

        For the worker's thread; without one, for the caller's.
        """
        if self._write_waiting():
            return True
        if not self._errands:
            return False
        errand = self._errands[0]
        if self._finished(errand):
            with self._changed:
                self._errands.remove(errand)
        return True

    def close(self) -> None:
        """Stop after the job or slice at hand; errands are left undone."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread:
            self._thread.join()
        self._errands.clear()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._is_waiting() or bool(self._errands))
                if self._stopping:
                    return
            self.work()
            give_way()

    def _is_waiting(self) -> bool:
        return self._job is not None and not self._job.done

    def _write_waiting(self) -> bool:
        job = self._job
        if job is None or job.done:
            return False
        self._write(job)
        with self._changed:
            job.done = True
            self._changed.notify_all()
        return True

    def _finished(self, errand: Errand) -> bool:
        try:
            return errand.step()
        except Exception as error:  # whatever an engine or a disk raises: the run goes on without it
            _log.warning("background work on the cold tier fails: %s", error)
            errand.fail(error)
            return True

    def _write(self, job: WriteJob) -> None:
        parts = list(job.table.scan())
        keys, rows = np.concatenate([k for k, _ in parts]), np.concatenate([r for _, r in parts])
        live = (rows[:, META] & 0xFF) != TOMBSTONE
        if not live.all():
            keys, rows = keys[live], rows[live]
        job.keys = keys
        before, merged = thread_write_bytes(), self._store.merge_bytes
        try:
            stored = self._store.write_many(keys, rows, job.removes)
            job.stored, job.lost = int(np.count_nonzero(stored)), keys[~stored]
        except Exception as error:  # whatever an engine or a disk raises: the run goes on without these records
            job.failed, job.lost = True, keys
            if not self._complained:
                self._complained = True
                _log.warning("cold writes fail, their records are dropped: %s", error)
        after = thread_write_bytes()
        sent = 0 if before is None or after is None else after - before
        own = job.stored * self._store.value_bytes + self._store.merge_bytes - merged
        job.disk_bytes = max(sent, own)  # what io_uring's own threads write is not this thread's
