"""New records of a cold tier: gathered in DRAM, written in batches by a thread of their own. Never grows.

Two tables of fixed size take turns: one gathers, the other is being written and does not change. While the writer is
behind, what does not fit is refused. A removal is a record too, a tombstone, until the batch that carries it is on
disk.
"""

from __future__ import annotations

import numpy as np

from flashnest.record import META, BoolArray, I64Array, Tier, U32Array, U64Array
from flashnest.storage.cold_pace import Errand
from flashnest.storage.cold_reads import Clock
from flashnest.storage.cold_worker import NO_KEYS, TOMBSTONE, ColdWorker, WriteJob
from flashnest.storage.store import ClockS, ColdStore, Found, State
from flashnest.storage.table import DramTable


class WriteBuffer:
    """Gathers records within `budget_bytes` for both tables. Its owner's thread calls everything but the writer's loop.

    A batch is sealed at `flush_records` records or `flush_interval_s` after its first one, with `most_bytes_per_s` not
    before the drive has had that time for what the last one cost it; what does not fit meanwhile is refused. `flush`
    and `close` do not wait for that. Without `threaded` nothing is written until `pump`.
    """

    def __init__(
        self,
        store: ColdStore,
        *,
        words: int,
        budget_bytes: int,
        flush_records: int,
        flush_interval_s: float,
        most_bytes_per_s: float | None,
        clock: Clock,
        clock_s: ClockS,
        token_bits: int,
        threaded: bool,
    ) -> None:
        """Allocate. Raises StoreFullError where the budget holds no record."""
        self._store, self._words, self._clock = store, words, clock
        self._active, self._sealed = (
            DramTable(
                budget_bytes // 2,
                words=words,
                clock_s=clock_s,
                tier=Tier.NVME,
                evict=False,
                eviction="lru",  # it never evicts, and this needs no memory
                token_bits=token_bits,
            )
            for _ in range(2)
        )
        self._found = Found.allocate(64, words)
        self._flush_records = min(flush_records, self._active.max_records)
        self._flush_interval_s = flush_interval_s
        self._seconds_a_byte = 0.0 if most_bytes_per_s is None else 1.0 / most_bytes_per_s
        self._sealed_at = self._ready_at = float("-inf")
        self._since: float | None = None
        self._removes: list[U64Array] = []
        self._removing = 0
        self._job: WriteJob | None = None
        self._boundary = False
        self._watched: list[U64Array] | None = None
        self.rejected = self.errors = self.bytes_written = self.disk_bytes = self.batches = 0
        self._lost = NO_KEYS
        self._worker = ColdWorker(store, threaded=threaded)

    @property
    def bytes_used(self) -> int:
        """Bytes of DRAM allocated."""
        return self._active.bytes_used + self._sealed.bytes_used

    def __len__(self) -> int:
        return len(self._active) + len(self._sealed)

    @property
    def free_records(self) -> int:
        """How many more records fit before a batch must be sealed."""
        return self._active.free_records

    @property
    def is_writing(self) -> bool:
        """Whether a sealed batch is not on disk yet: the next one has to wait for it."""
        return self._job is not None and not self._job.done

    @property
    def growth(self) -> int:
        """Records that what waits here will add to the store, about; removals count against it."""
        removing = self._removing + (len(self._job.removes) if self._job is not None else 0)
        return len(self) - 2 * removing  # a removal is a record here and takes one there

    def compile(self) -> None:
        """Load or compile the kernels, so that no step waits for it."""
        keys = NO_KEYS
        self._active.lookup_many(keys, self._found)
        self._active.peek_many(np.zeros(1, np.uint64), self._found)  # key 0 is a miss; no key would load nothing
        self._active.contains_many(keys)
        self._active.insert_fitting(keys, np.zeros((0, self._words), np.uint32))
        self._sealed.scan_slice(0, 1)
        self._sealed.clear()

    def lookup_at(self, keys: U64Array, at: I64Array, found: Found, known: BoolArray) -> tuple[int, I64Array]:
        """Answer those keys at positions `at` that the buffer knows; returns how many were hits, and frozen ones.

        Sets `known` and, for hits, `found`, where a key is here, or was removed and is therefore a MISS. A hit counts
        in the record that gathers; frozen: positions of hits in the batch being written, which must not change.
        """
        gathering = self._answer(self._active, keys, at, found, known)
        frozen = gathering[:0]
        if len(self._sealed):
            frozen = self._answer(self._sealed, keys, at[~known[at]], found, known)
        return len(gathering) + len(frozen), frozen

    def _answer(self, table: DramTable, keys: U64Array, at: I64Array, found: Found, known: BoolArray) -> I64Array:
        """Answer from one table; returns the positions of the hits."""
        if not len(table) or not len(at):
            return at[:0]
        if len(at) > self._found.capacity:
            self._found = Found.allocate(2 * len(at), self._words)
        mine = self._found
        if table is self._active:
            table.lookup_many(keys[at], mine)
        else:
            table.peek_many(keys[at], mine)
        there = np.flatnonzero(mine.state[: len(at)])
        if not len(there):
            return at[:0]
        known[at[there]] = True
        there = there[(mine.rows[there, META] & 0xFF) != TOMBSTONE]
        hits: I64Array = at[there]
        found.state[hits], found.tier[hits], found.rows[hits] = State.HIT, Tier.NVME, mine.rows[there]
        return hits

    def gathers_many(self, keys: U64Array) -> BoolArray:
        """Return which keys wait in the table that still gathers, (n,)."""
        return self._active.contains_many(keys)

    def put_many(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """Gather records; returns which were taken, (n,). What does not fit while the writer is behind is refused."""
        self.tick()
        stored = self._active.insert_fitting(keys, rows)
        if not stored.all() and self._may_seal() and self._seal():
            left = np.flatnonzero(~stored & (keys != 0))
            stored[left] = self._active.insert_fitting(keys[left], rows[left])
        if self._since is None and len(self._active):
            self._since = self._clock()
        return stored

    def forget_many(self, keys: U64Array) -> BoolArray:
        """Gather removals; returns which were taken, (n,)."""
        rows = np.zeros((len(keys), self._words), np.uint32)
        rows[:, META] = TOMBSTONE
        taken = self.put_many(keys, rows)
        if taken.any():
            self._removes.append(keys[taken])
            self._removing += int(np.count_nonzero(taken))
        return taken

    def feedback_many(self, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
        """Add draft counts to records that still gather."""
        if len(self._active):
            self._active.feedback_many(keys, drafted, accepted)

    def tick(self) -> None:
        """Take notice of a finished write; seal a batch that is large or old enough."""
        self._reap()
        if self._since is None:
            return
        due = len(self._active) >= self._flush_records or self._clock() - self._since >= self._flush_interval_s
        if due and self._may_seal():
            self._seal()

    def _may_seal(self) -> bool:
        """Whether the drive has had its time for the last batch, and that one is on disk."""
        self._reap()
        return self._job is None and self._clock() >= self._ready_at

    def _seal(self) -> bool:
        """Hand the gathered records to the writer; returns False where it is still busy with the last ones."""
        self._reap()
        if self._job is not None or not len(self._active):
            return False
        removes = np.concatenate(self._removes) if self._removes else NO_KEYS
        self._job = WriteJob(self._active, removes)
        self._removes.clear()
        self._removing = 0
        self._active, self._sealed = self._sealed, self._active
        self._since, self._boundary = None, True
        self._sealed_at = self._clock()
        self._worker.submit(self._job)
        return True

    def take_boundary(self) -> bool:
        """Return, once, whether a batch was sealed, or none gathers and none is under way.

        An errand run now starts after that batch, so it finds on disk all that came before this moment.
        """
        boundary, self._boundary = self._boundary, False
        return boundary or (self._job is None and not len(self._active))

    def run_errand(self, errand: Errand, *, first: bool = False) -> None:
        """Have the writer's thread do an errand; see `ColdWorker.run_errand`."""
        self._worker.run_errand(errand, first=first)

    def watch(self) -> None:
        """Remember from now on which keys are written or removed, until `unwatch`."""
        self._watched = []

    def changed_many(self, keys: U64Array) -> BoolArray:
        """Return which keys wait here, or were written or removed since `watch`, (n,)."""
        self._reap()
        changed = self._active.contains_many(keys)
        if len(self._sealed):
            changed |= self._sealed.contains_many(keys)
        for part in self._watched or ():
            changed |= np.isin(keys, part)
        return changed

    def unwatch(self) -> None:
        """End a `watch`."""
        self._watched = None

    def pump(self) -> None:
        """Write the sealed batch, if any, and finish the errands, in the caller's thread. Only without `threaded`."""
        while self._worker.work():
            pass

    def pump_slice(self) -> bool:
        """Like `pump`, one batch or one slice of an errand; returns False where there was nothing to do."""
        return self._worker.work()

    def _reap(self) -> None:
        job = self._job
        if job is None or not job.done:
            return
        self._job = None
        self.batches += 1
        self.disk_bytes += job.disk_bytes
        self._ready_at = self._sealed_at + job.disk_bytes * self._seconds_a_byte
        self._sealed.clear()
        if self._watched is not None:
            self._watched += [job.keys, job.removes]
        if len(job.lost):
            self._lost = np.concatenate([self._lost, job.lost])
        if job.failed:
            self.errors += len(job.keys) + len(job.removes)
        else:
            self.rejected += len(job.lost)
            self.bytes_written += job.stored * self._store.value_bytes

    def take_lost(self) -> U64Array:
        """Return the keys of records that were gathered and could not be written, once."""
        lost, self._lost = self._lost, NO_KEYS
        return lost

    def flush(self) -> None:
        """Write everything and return when it is on disk, or was given up as unwritable."""
        self._finish_job()
        if self._seal():
            self._finish_job()

    def _finish_job(self) -> None:
        if self._job is not None:
            self._worker.wait_for(self._job)
            self._reap()

    def close(self) -> None:
        """Flush, stop the writer and give the memory back."""
        self.flush()
        self._worker.close()
        self._active.close()
        self._sealed.close()
