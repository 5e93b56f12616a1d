"""Asks and fills the tiers in the order that a compiled policy gives. Knows no policy text, no model, no request.

A lookup asks the VRAM table (where there is one) and the DRAM table for all keys; what they have not goes to the cold
tier's buffer, filter and read queue. A record is placed by its chain: the first tier that takes it owns it, and no
other tier keeps it. A lookup never moves a record: `sweep` does, between steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flashnest.record import BoolArray, I32Array, I64Array, Tier, U32Array, U64Array
from flashnest.storage.cold import ColdStats, ColdTier
from flashnest.storage.cold_reads import ColdAnswers
from flashnest.storage.lookup_times import LookupNs, LookupTimes
from flashnest.storage.moves import RuleStats
from flashnest.storage.router_lookup import Lookup
from flashnest.storage.router_placing import Placer
from flashnest.storage.router_tiers import Table, Tiers
from flashnest.storage.sketch import DEFAULT_KEYS
from flashnest.storage.step_clock import StepClock
from flashnest.storage.store import ClockS, Found, MovePlan, PlacementMap, StoreStats
from flashnest.storage.sweep import Sweep
from flashnest.storage.table import DramTable


@dataclass(frozen=True, slots=True)
class RouterStats:
    """Figures for the report. `rejected`: records that no tier of their chain took; `not_admitted`: not learnt often
    enough yet; `pushed_out`: taken out of full tables by insertion, around what the policy keeps (those that a table
    took by itself are its own `evicted`); `moves`: one for each rule that moves records, in file order."""

    tiers: dict[Tier, StoreStats]
    cold: ColdStats | None
    lookup_ns: LookupNs
    rejected: int
    not_admitted: int = 0
    pushed_out: int = 0
    moves: tuple[RuleStats, ...] = ()


class Router:
    """The table as the decode loop sees it. One thread owns it; the cold tier's threads are its own affair."""

    def __init__(
        self,
        dram: DramTable,
        cold: ColdTier | None,
        placement: PlacementMap,
        *,
        vram: Table | None = None,
        moves: MovePlan | None = None,
        window_keys: int = DEFAULT_KEYS,
        clock_s: ClockS = lambda: 1 + int(time.monotonic()),
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """Take over the tiers: `close` closes them. `clock_s` must be the clock of the tables, `clock_ns` times.

        `window_keys`: different keys expected within a rule's time (`hits in`, `after`), 11 to 21 bytes each a time.
        """
        self._step_clock = clock_s if isinstance(clock_s, StepClock) else None
        self._words, self._clock_ns = dram.words, clock_ns
        self._times = LookupTimes()
        self._tiers = Tiers(dram, cold, vram, dram.words)
        self._dram, self._cold = dram, cold
        self._sweep = None
        if moves is not None and moves.rules:
            self._sweep = Sweep(
                self._tiers, moves, dram.words, window_keys=window_keys, clock_s=clock_s, clock_ns=clock_ns
            )
        stays = self._sweep is not None and self._sweep.decides
        self._placer = Placer(self._tiers, placement, dram.words, clock_s, stays=stays, window_keys=window_keys)
        self._lookup = Lookup(self._tiers, dram, self._sweep, dram.words)
        self._compile()

    def _compile(self) -> None:
        """Load or compile every kernel now, so that no lookup waits for it and no figure contains it."""
        keys, none, no_keys = np.zeros(0, np.uint64), np.zeros(0, np.uint32), np.zeros((0, 1), np.uint64)
        found, tickets = Found.allocate(1, self._words), np.zeros(0, np.int64)
        rows = np.zeros((0, self._words), np.uint32)
        for table in self._tiers.tables:
            table.lookup_many(keys, found)
            table.contains_many(keys)
            table.insert_fitting(keys, rows)
            table.remove_many(keys)
            table.feedback_many(keys, none, none)
        self._lookup.many(keys, tickets, found)
        self._lookup.longest_many(no_keys, tickets, found, np.zeros(1, np.int64))
        no_tokens, lengths = np.zeros((0, 1), np.int32), np.ones(1, np.int32)
        ends, index = np.zeros(0, np.int32), np.zeros(1, np.int64)
        self._lookup.longest_tails_many(no_tokens, ends, keys, lengths, tickets, no_keys, found, index)
        self._lookup.compile()
        if self._tiers.flights is not None:
            self._tiers.flights.compile()
        if self._sweep is not None:
            self._sweep.compile()
        self._placer.insert_many(keys, rows)
        self._dram.evict_many(0)
        if self._cold is not None:
            self._cold.compile()

    @property
    def words(self) -> int:
        """uint32 words in a row."""
        return self._words

    def lookup_many(self, keys: U64Array, tickets: I64Array, found: Found) -> None:
        """Answer a batch; keys uint64 (n,), tickets int64 (n,).

        Writes HIT, PENDING or MISS for each key; a PENDING key's answer comes out of a later `drain` under its ticket.
        A key of 0 is a MISS.
        """
        started = self._clock_ns()
        self._lookup.many(keys, tickets, found)
        self._times.add(len(keys), self._clock_ns() - started)

    def longest_many(self, keys: U64Array, tickets: I64Array, found: Found, index: I64Array) -> None:
        """Find the longest n-gram at hand for each sequence.

        keys uint64 (n, k): a sequence's keys, shortest length first, 0 where there is none; tickets int64 (n,): length
        i is asked of the cold tier under ticket + i; index int64 (capacity,) receives the length found, -1 for none.
        The cold tier is asked only for lengths longer than what is at hand. PENDING where it was and nothing is.
        """
        started = self._clock_ns()
        self._lookup.longest_many(keys, tickets, found, index)
        self._times.add(keys.size, self._clock_ns() - started)

    def longest_tails_many(
        self,
        tokens: I32Array,
        ends: I32Array,
        salts: U64Array,
        lengths: I32Array,
        tickets: I64Array,
        keys: U64Array,
        found: Found,
        index: I64Array,
    ) -> None:
        """Hash the tails of n sequences and find the longest n-gram at hand for each, in one call.

        tokens int32 (n, width), ends int32 (n,), salts uint64 (n,), lengths int32 (k,) as in `hashing.hash_tails`;
        keys uint64 (n, k) receives the keys; the rest as in `longest_many`.
        """
        started = self._clock_ns()
        self._lookup.longest_tails_many(tokens, ends, salts, lengths, tickets, keys, found, index)
        self._times.add(keys.size, self._clock_ns() - started)

    def extend_tails_many(
        self,
        tokens: I32Array,
        ends: I32Array,
        salts: U64Array,
        lengths: I32Array,
        keys: U64Array,
        found: Found,
        index: I64Array,
    ) -> None:
        """Like `longest_tails_many`, asking the tables alone: for tails that end in tokens nobody has said yet.

        A guess is not worth a cold read, and its answer would come when the guess is judged.
        """
        started = self._clock_ns()
        self._lookup.in_tables(tokens, ends, salts, lengths, keys, found, index)
        self._times.add(keys.size, self._clock_ns() - started)

    def submit(self) -> None:
        """Hand this step's cold questions to the reader, and old or large write batches to the writer."""
        if self._cold is not None:
            self._cold.submit()

    def drain(self) -> ColdAnswers:
        """Return the cold answers that are ready; every PENDING key gets exactly one; late or failed = a miss.

        A step begins with it: a `StepClock` is read here.
        """
        if self._step_clock is not None:
            self._step_clock.tick()
        if self._cold is not None:
            answers = self._cold.drain()
            if self._sweep is not None and len(answers):
                self._sweep.answered(answers.keys, answers.hit, answers.rows)
            return answers
        none = np.zeros(0, np.uint64)
        return ColdAnswers(np.zeros(0, np.int64), none, np.zeros(0, np.bool_), np.zeros((0, self.words), np.uint32))

    def wait(self, timeout_s: float) -> None:
        """Sleep until a cold answer is ready, at most `timeout_s`; returns at once where none is under way."""
        if self._cold is not None:
            self._cold.wait(timeout_s)

    def sweep(self, budget_s: float) -> None:
        """Move records as the policy's rules say, for about `budget_s` seconds: slices of less than 200 us."""
        if self._sweep is not None:
            self._sweep.run(budget_s)

    def insert_many(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """Place records by the policy; returns which have an owner now, (n,).

        A record that a table owns is overwritten there. A new one goes to the first tier of its chain that has room;
        where none has and DRAM is in the chain, DRAM evicts what no rule keeps.
        """
        return self._placer.insert_many(keys, rows)

    def remove_many(self, keys: U64Array) -> BoolArray:
        """Remove records wherever they are; returns which were there, (n,).

        Of a key that only the cold tier may hold, True means that its removal is noted: it answers MISS from now on.
        """
        return self._tiers.remove_many(keys)

    def feedback_many(self, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
        """Add drafted and accepted token counts, uint32 (n,), to the records; never a write to NVMe."""
        self._tiers.feedback_many(keys, drafted, accepted)

    def flush(self) -> None:
        """Return when every cold record is on disk."""
        if self._cold is not None:
            self._cold.flush()

    @property
    def lookup_totals(self) -> tuple[int, int]:
        """Keys looked up so far and the nanoseconds that took; cheap enough to read every step."""
        return self._times.totals

    def stats(self) -> RouterStats:
        """Return the figures of all tiers."""
        tiers = {Tier(table.tier): table.stats() for table in self._tiers.tables}
        if self._cold is not None:
            tiers[Tier.NVME] = self._cold.stats()
        return RouterStats(
            tiers=tiers,
            cold=self._cold.cold_stats() if self._cold is not None else None,
            lookup_ns=self._times.summary(),
            rejected=self._placer.rejected,
            not_admitted=self._placer.not_admitted,
            pushed_out=self._tiers.kept_out,
            moves=self._sweep.stats() if self._sweep is not None else (),
        )

    def close(self) -> None:
        """Flush and close all tiers. A second call does nothing."""
        self._tiers.close()
