"""Asks and fills the tiers in the order that a compiled policy gives. Knows no policy text, no model, no request.

A lookup asks the DRAM table for all keys in one call; what it has not goes to the cold tier's buffer, filter and read
queue. A record is placed by its chain: the first tier that takes it owns it, and no other tier keeps it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flashnest.record import (
    KEY_BYTES,
    NAMESPACE,
    BoolArray,
    I64Array,
    Tier,
    U32Array,
    U64Array,
    row_kinds,
    row_tokens,
)
from flashnest.storage.cold import ColdStats, ColdTier
from flashnest.storage.cold_reads import ColdAnswers
from flashnest.storage.lookup_times import LookupNs, LookupTimes
from flashnest.storage.store import Found, PlacementMap, State, StoreStats
from flashnest.storage.table import DramTable


@dataclass(frozen=True, slots=True)
class RouterStats:
    """Figures for the report. `rejected`: records that no tier of their chain took."""

    tiers: dict[Tier, StoreStats]
    cold: ColdStats | None
    lookup_ns: LookupNs
    rejected: int


class Router:
    """The table as the decode loop sees it. One thread owns it; the cold tier's threads are its own affair."""

    def __init__(
        self,
        dram: DramTable,
        cold: ColdTier | None,
        placement: PlacementMap,
        *,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """Take over the tiers: `close` closes them."""
        self._dram, self._cold, self._placement, self._clock_ns = dram, cold, placement, clock_ns
        self._times = LookupTimes()
        self._scratch = Found.allocate(256, dram.words)
        self._record_bytes = KEY_BYTES + 4 * dram.words
        self._rejected = 0
        self._compile()

    def _compile(self) -> None:
        """Load or compile every kernel now, so that no lookup waits for it and no figure contains it."""
        keys, none, no_keys = np.zeros(0, np.uint64), np.zeros(0, np.uint32), np.zeros((0, 1), np.uint64)
        self._dram.lookup_many(keys, self._scratch)
        self._dram.longest_many(no_keys, self._scratch, np.zeros(0, np.int64))
        self._dram.contains_many(keys)
        self._dram.insert_fitting(keys, np.zeros((0, self.words), np.uint32))
        self._dram.remove_many(keys)
        self._dram.feedback_many(keys, none, none)
        self._dram.evict_many(0)
        if self._cold is not None:
            self._cold.compile()

    @property
    def words(self) -> int:
        """uint32 words in a row."""
        return self._dram.words

    def lookup_many(self, keys: U64Array, tickets: I64Array, found: Found) -> None:
        """Answer a batch; keys uint64 (n,), tickets int64 (n,).

        Writes HIT, PENDING or MISS for each key; a PENDING key's answer comes out of a later `drain` under its ticket.
        A key of 0 is a MISS.
        """
        started = self._clock_ns()
        self._dram.lookup_many(keys, found)
        if self._cold is not None:
            left = np.flatnonzero((found.state[: len(keys)] == State.MISS) & (keys != 0))
            if len(left):
                self._lookup_cold(self._cold, keys, tickets, found, left)
        self._times.add(len(keys), self._clock_ns() - started)

    def _lookup_cold(self, cold: ColdTier, keys: U64Array, tickets: I64Array, found: Found, left: I64Array) -> None:
        scratch = self._scratch_for(len(left))
        known = cold.lookup_buffered(keys[left], scratch)
        hits = np.flatnonzero(scratch.state[: len(left)] == State.HIT)
        found.state[left[hits]], found.tier[left[hits]] = State.HIT, Tier.NVME
        found.rows[left[hits]] = scratch.rows[hits]
        left = left[~known]
        if cold.blocking:
            for i in left.tolist():
                self._read_now(cold, keys[i : i + 1], found, i)
        elif len(left):
            found.state[left[cold.ask(keys[left], tickets[left])]] = State.PENDING

    def _read_now(self, cold: ColdTier, key: U64Array, found: Found, i: int) -> bool:
        row = cold.read_now(key)
        if row is not None:
            found.state[i], found.tier[i], found.rows[i] = State.HIT, Tier.NVME, row
        return row is not None

    def longest_many(self, keys: U64Array, tickets: I64Array, found: Found, index: I64Array) -> None:
        """Find the longest n-gram at hand for each sequence.

        keys uint64 (n, k): a sequence's keys, shortest length first, 0 where there is none; tickets int64 (n,): length
        i is asked of the cold tier under ticket + i; index int64 (capacity,) receives the length found, -1 for none.
        The cold tier is asked only for lengths longer than what is at hand. PENDING where it was and nothing is.
        """
        started = self._clock_ns()
        self._dram.longest_many(keys, found, index)
        if self._cold is not None:
            lengths = np.arange(keys.shape[1])
            longer = np.flatnonzero(((lengths > index[: len(keys), None]) & (keys != 0)).ravel())
            if len(longer):
                self._longer_cold(self._cold, keys, tickets, found, index, longer)
        self._times.add(keys.size, self._clock_ns() - started)

    def _longer_cold(
        self, cold: ColdTier, keys: U64Array, tickets: I64Array, found: Found, index: I64Array, at: I64Array
    ) -> None:
        flat, scratch = keys.ravel(), self._scratch_for(len(at))
        row, length = np.divmod(at, keys.shape[1])
        known = cold.lookup_buffered(flat[at], scratch)
        hits = np.flatnonzero(scratch.state[: len(at)] == State.HIT)
        if len(hits):  # ascending: of a row's hits the longest is assigned last and stays
            index[row[hits]] = length[hits]
            found.state[row[hits]], found.tier[row[hits]] = State.HIT, Tier.NVME
            found.rows[row[hits]] = scratch.rows[hits]
        ask = np.flatnonzero(~known & (length > index[row]))
        if cold.blocking:
            for i in ask[::-1].tolist():
                r = int(row[i])
                if length[i] > index[r] and self._read_now(cold, flat[at[i] : at[i] + 1], found, r):
                    index[r] = length[i]
        elif len(ask):
            pending = ask[cold.ask(flat[at[ask]], tickets[row[ask]] + length[ask])]
            waiting = row[pending]
            found.state[waiting[index[waiting] < 0]] = State.PENDING

    def _scratch_for(self, n: int) -> Found:
        if n > self._scratch.capacity:
            self._scratch = Found.allocate(2 * n, self.words)
        return self._scratch

    def submit(self) -> None:
        """Hand this step's cold questions to the reader, and old or large write batches to the writer."""
        if self._cold is not None:
            self._cold.submit()

    def drain(self) -> ColdAnswers:
        """Return the cold answers that are ready; every PENDING key gets exactly one; late or failed = a miss."""
        if self._cold is not None:
            return self._cold.drain()
        none = np.zeros(0, np.uint64)
        return ColdAnswers(np.zeros(0, np.int64), none, np.zeros(0, np.bool_), np.zeros((0, self.words), np.uint32))

    def wait(self, timeout_s: float) -> None:
        """Sleep until a cold answer is ready, at most `timeout_s`; returns at once where none is under way."""
        if self._cold is not None:
            self._cold.wait(timeout_s)

    def insert_many(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """Place records by the policy; returns which have an owner now, (n,).

        Each goes to the first tier of its chain that has room. Where none has and DRAM is in the chain, DRAM evicts.
        """
        in_dram, in_cold = np.zeros(len(keys), np.bool_), np.zeros(len(keys), np.bool_)
        nbytes = np.full(len(keys), self._record_bytes, np.uint32)
        codes = self._placement.chain_codes(row_tokens(rows), row_kinds(rows), rows[:, NAMESPACE].copy(), nbytes)
        evicted = self._dram.evicted
        for code in np.unique(codes).tolist():
            at = np.flatnonzero((codes == code) & (keys != 0))
            self._place(self._placement.chains[code], keys, rows, at, in_dram, in_cold)
        if self._dram.evicted != evicted:  # the clock hand may have taken what this call put in before
            in_dram &= self._dram.contains_many(keys)
        stored: BoolArray = in_dram | in_cold
        self._rejected += int(len(keys) - np.count_nonzero(stored))
        return stored

    def _place(
        self,
        chain: tuple[Tier, ...],
        keys: U64Array,
        rows: U32Array,
        left: I64Array,
        in_dram: BoolArray,
        in_cold: BoolArray,
    ) -> None:
        for tier in chain:
            if tier is Tier.DRAM:
                took = self._put_dram(keys[left], rows[left], evict=False)
                in_dram[left[took]] = True
            elif tier is Tier.NVME and self._cold is not None:
                took = self._put_cold(self._cold, keys[left], rows[left])
                in_cold[left[took]] = True
            else:
                continue  # a tier that this run does not have
            left = left[~took]
            if not len(left):
                return
        if Tier.DRAM in chain:
            in_dram[left] = self._put_dram(keys[left], rows[left], evict=True)

    def _put_dram(self, keys: U64Array, rows: U32Array, *, evict: bool) -> BoolArray:
        moving = self._only_cold(keys)
        took = self._dram.insert_evicting(keys, rows) if evict else self._dram.insert_fitting(keys, rows)
        if self._cold is not None and (moving & took).any():
            at = np.flatnonzero(moving & took)
            stuck = at[~self._cold.forget_many(keys[at])]
            self._dram.remove_many(keys[stuck])  # the removal could not be noted: the cold tier stays the owner
            took[stuck] = False
        return took

    def _only_cold(self, keys: U64Array) -> BoolArray:
        """Return which keys the cold tier may own, (n,)."""
        if self._cold is None:
            return np.zeros(len(keys), np.bool_)
        moving = self._cold.may_hold(keys)
        at = np.flatnonzero(moving)
        moving[at] = ~self._dram.contains_many(keys[at])
        return moving

    def _put_cold(self, cold: ColdTier, keys: U64Array, rows: U32Array) -> BoolArray:
        if not len(self._dram):
            return cold.insert_many(keys, rows)
        mine = self._dram.contains_many(keys)
        took = np.zeros(len(keys), np.bool_)
        took[~mine] = cold.insert_many(keys[~mine], rows[~mine])
        if mine.any():  # the cold tier has none of these, whatever its filter says
            took[mine] = cold.insert_many(keys[mine], rows[mine], replace=True)
            self._dram.remove_many(keys[mine & took])
        return took

    def remove_many(self, keys: U64Array) -> BoolArray:
        """Remove records wherever they are; returns which were there, (n,).

        Of a key that only the cold tier may hold, True means that its removal is noted: it answers MISS from now on.
        """
        cold = self._only_cold(keys)
        removed = self._dram.remove_many(keys)
        if self._cold is not None and cold.any():
            removed[cold] = self._cold.forget_many(keys[cold])
        return removed

    def feedback_many(self, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
        """Add drafted and accepted token counts, uint32 (n,), to the records; never a write to NVMe."""
        self._dram.feedback_many(keys, drafted, accepted)
        cold = self._only_cold(keys)
        if self._cold is not None and cold.any():
            self._cold.feedback_many(keys[cold], drafted[cold], accepted[cold])

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
        tiers = {self._dram.tier: self._dram.stats()}
        if self._cold is not None:
            tiers[Tier.NVME] = self._cold.stats()
        cold = self._cold.cold_stats() if self._cold is not None else None
        return RouterStats(tiers, cold, self._times.summary(), self._rejected)

    def close(self) -> None:
        """Flush and close all tiers. A second call does nothing."""
        if self._cold is not None:
            self._cold.close()
        self._dram.close()
