"""The cold tier as the router sees it: write buffer, filter, asynchronous reads over a store. Never blocks a step.

Order of a lookup: the write buffer (in DRAM, answered at once), the membership filter (surely absent is a miss at
once), then the read queue, whose answer comes out of a later `drain`. With `blocking` the store is read in line, one
key after the other, as the field report's L2 did (facts F7, R3).
"""

from __future__ import annotations

import time

import numpy as np

from flashnest.record import BoolArray, I64Array, Tier, U32Array, U64Array
from flashnest.storage.cold_intake import ColdIntake
from flashnest.storage.cold_options import ColdOptions, ColdStats
from flashnest.storage.cold_reads import Clock, ColdAnswers, ReadQueue
from flashnest.storage.cold_scan import ColdScan
from flashnest.storage.cold_writes import WriteBuffer
from flashnest.storage.filter import MembershipFilter
from flashnest.storage.fuse import build_fuse
from flashnest.storage.packed import TOKEN_BITS
from flashnest.storage.store import ClockS, ColdStore, Found, State, StoreStats
from flashnest.storage.touches import Touches

__all__ = ["ColdOptions", "ColdStats", "ColdTier"]


_DEFAULTS = ColdOptions()


class ColdTier:
    """An NVMe store behind a write buffer, a filter and a read queue. One thread owns it; it has two of its own."""

    def __init__(
        self,
        store: ColdStore,
        *,
        words: int,
        clock_s: ClockS,
        options: ColdOptions = _DEFAULTS,
        clock: Clock = time.monotonic,
        token_bits: int = TOKEN_BITS,
    ) -> None:
        """Read every key of the store into a fresh filter and start the threads. Takes the store over.

        Buffered continuations end before a token of more than `token_bits` bits, as in `DramTable`.
        """
        self.tier = Tier.NVME
        self._store, self._options, self._clock_s = store, options, clock_s
        self._one = Found.allocate(1, words)
        self._at = np.empty(1024, np.int64)
        self._filter = MembershipFilter(build_fuse(store.scan_keys(), len(store)))
        self._touches = Touches(options.touch_bytes)
        threaded = options.threaded
        self._writes = WriteBuffer(
            store,
            words=words,
            budget_bytes=options.buffer_bytes,
            flush_records=options.flush_records,
            flush_interval_s=options.flush_interval_s,
            most_bytes_per_s=options.most_bytes_per_s,
            clock=clock,
            clock_s=clock_s,
            token_bits=token_bits,
            threaded=threaded,
        )
        self._scan = ColdScan(store, self._writes, words)
        self._intake = ColdIntake(store, self._writes, self._filter, self._touches)
        self._reads = ReadQueue(
            store,
            words=words,
            depth=options.queue_keys,
            batch_keys=options.batch_keys,
            deadline_s=options.deadline_s,
            clock=clock,
            threaded=threaded and not options.blocking,
        )
        self._closed = False
        self._lookups = self._hits = self._buffered_hits = self._inline_reads = 0

    def compile(self) -> None:
        """Load or compile the kernels; see `Router`."""
        self._intake.compile()
        self._writes.compile()
        self._touches.compile()

    @property
    def blocking(self) -> bool:
        """Whether reads are done in line."""
        return self._options.blocking

    def lookup_buffered(self, keys: U64Array, found: Found) -> BoolArray:
        """Answer what needs no reading; returns which keys need no further asking, (n,).

        Those that the filter has not (most of them, in one kernel call) and removed ones are a MISS, buffered ones are
        a HIT.
        """
        n = len(keys)
        if n > len(self._at):
            self._at = np.empty(2 * n, np.int64)
        known = np.empty(n, np.bool_)
        left = self._filter.open_many(keys, found.state, known, self._at)
        self._lookups += n
        if left and len(self._writes):
            hits, frozen = self._writes.lookup_at(keys, self._at[:left], found, known)
            if len(frozen):
                self.touch_many(keys[frozen])
            self._buffered_hits += hits
            self._hits += hits
        return known

    def ask(self, keys: U64Array, tickets: I64Array) -> BoolArray:
        """Queue keys that `lookup_buffered` left open; returns which are PENDING now, (n,); the others are misses."""
        pending = np.ones(len(keys), np.bool_)
        pending[self._reads.ask(keys, tickets) :] = False
        return pending

    def read_now(self, key: U64Array) -> U32Array | None:
        """Read one key, (1,), that `lookup_buffered` left open, in line; returns its row (words,), or None.

        The row is overwritten by the next call.
        """
        self._store.lookup_many(key, self._one)
        self._inline_reads += 1
        if self._one.state[0] != State.HIT:
            self._intake.missed(key)
            return None
        self._hits += 1
        self.touch_many(key)
        row: U32Array = self._one.rows[0]
        return row

    def submit(self) -> None:
        """Hand this step's questions to the reader; see to the writer."""
        self._reads.submit()
        self._intake.tick()

    def drain(self) -> ColdAnswers:
        """Return the answers that are ready; see `ReadQueue.drain`."""
        answers = self._reads.drain()
        if len(answers):
            found = answers.keys[answers.hit]
            self._hits += len(found)
            self.touch_many(found)
        absent = self._reads.take_absent()
        if len(absent):
            self._intake.missed(absent)
        return answers

    def wait(self, timeout_s: float) -> None:
        """Sleep until an answer is ready; see `ReadQueue.wait`."""
        self._reads.wait(timeout_s)

    def may_hold(self, keys: U64Array) -> BoolArray:
        """Return which keys may be here, buffered or stored, (n,); False is certain. Reads nothing."""
        return self._filter.may_hold(keys)

    def insert_many(self, keys: U64Array, rows: U32Array, *, replace: bool = False) -> BoolArray:
        """Take records; returns which are here afterwards, (n,).

        A key that the filter knows is left as it is and counted `known`, so that learning the same text again writes
        nothing, unless its drafts failed (`feedback_many`), it was removed before, or `replace` is given. A false
        positive of the filter (under 1 % of new keys) counts as known until a read has found nothing.
        """
        return self._intake.replace_many(keys, rows) if replace else self._intake.insert_many(keys, rows)

    def forget_many(self, keys: U64Array) -> BoolArray:
        """Remove records that may be here; returns which removals were taken, (n,). They answer MISS from now on."""
        return self._intake.forget_many(keys)

    def feedback_many(self, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
        """Note what became of drafts, in DRAM only: where drafts keep failing the next learn replaces the record."""
        self._intake.feedback_many(keys, drafted, accepted)

    def touch_many(self, keys: U64Array) -> None:
        """Note a hit of cold records, (n,), in DRAM: never a write to NVMe. `drain` and `read_now` do so themselves."""
        self._touches.touch_many(keys, self._clock_s())

    def facts_many(self, keys: U64Array, rows: U32Array) -> None:
        """Add what DRAM knows of the use of cold records to their rows, (n, words), in place: HITS, LAST_ACCESS."""
        self._touches.merge_many(keys, rows)

    @property
    def scan_position(self) -> int:
        """Where the next `scan_ask` starts, the store's own; 0: a new pass over all records."""
        return self._scan.position

    def scan_ask(self, records: int) -> None:
        """Have the writer read about `records` more records when it has nothing to write. One question at a time."""
        self._scan.ask(records)

    def scan_take(self) -> tuple[U64Array, U32Array] | None:
        """Return, once, what `scan_ask` read: keys (n,), rows (n, words) with facts merged in; None until it is ready.

        Records that were replaced or removed meanwhile, or whose newer row waits in the buffer, are left out. A failed
        read brings none and starts the next pass.
        """
        taken = self._scan.take()
        if taken is not None:
            self.facts_many(*taken)
        return taken

    @property
    def free_records(self) -> int:
        """How many more records the write buffer takes before a batch must be sealed."""
        return self._writes.free_records

    @property
    def is_writing(self) -> bool:
        """Whether the writer is at work on a batch: once the buffer is full too, records are refused."""
        return self._writes.is_writing

    def flush(self) -> None:
        """Return when every record taken is on disk, or was given up as unwritable."""
        self._writes.flush()
        self._intake.tick()

    def pump(self) -> None:
        """Do the threads' work in the caller's thread. Only without `threaded`."""
        self._reads.pump()
        self._writes.pump()
        self._intake.tick()

    def pump_slice(self) -> bool:
        """Like `pump` for one batch or one slice of background work; returns False where there was nothing to do."""
        return self._writes.pump_slice()

    def stats(self) -> StoreStats:
        """Return the tier's figures: `records` and `fill` count what is stored and what waits in the buffer."""
        disk = self._store.stats()
        return StoreStats(
            records=self._intake.room.records,
            bytes_used=disk.bytes_used,
            bytes_budget=disk.bytes_budget,
            lookups=self._lookups,
            hits=self._hits,
            inserts=self._intake.inserts,
            updates=disk.updates,
            removes=self._intake.removes,
            rejected=self._intake.rejected + self._writes.rejected,
            evicted=disk.evicted,
            fill=self._intake.room.fill(disk),
        )

    def cold_stats(self) -> ColdStats:
        """Return the counters that only a cold tier has."""
        reads, writes, seen = self._reads, self._writes, self._filter
        return ColdStats(
            queued=reads.queued + self._inline_reads,
            answered=reads.answered + self._inline_reads,
            late=reads.late,
            dropped=reads.dropped,
            errors=reads.errors,
            filter_queries=seen.queries,
            filter_negative=seen.negatives,
            filter_false_positive=seen.false_positives,
            filter_bytes=seen.bytes_used,
            filter_rebuilds=seen.rebuilds,
            buffered_hits=self._buffered_hits,
            buffer_bytes=writes.bytes_used,
            known=self._intake.known,
            bytes_written=writes.bytes_written,
            disk_bytes=writes.disk_bytes,
            batches=writes.batches,
            write_errors=writes.errors,
            corrupt=self._store.corrupt,
        )

    def close(self) -> None:
        """Flush, stop the threads, close the store. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._reads.close()
            self._writes.close()
            self._store.close()
