"""Cold records in the sweep: those that were found and may be promoted, and the slow walk over NVMe. Reads no file.

An answer of the cold tier waits here for the next sweep, at most 4096 of them: promotion needs the row, and the row is
at hand only now. The walk reads through the writer's thread, never in a step.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from flashnest.record import BoolArray, Tier, U32Array, U64Array, first_of_each
from flashnest.storage.cold import ColdTier
from flashnest.storage.router_flights import Flights
from flashnest.storage.sweep_moves import Mover, Want
from flashnest.storage.sweep_pace import Pass, Watermark

QUEUE_RECORDS: Final = 4096
"""Found cold records that wait for a sweep: 256 KiB of rows; further ones are not considered this time."""
SLICE_RECORDS: Final = 128
"""Found records dealt with in one slice; each that moves costs a DRAM insert and a tombstone."""
WALK_RECORDS: Final = 512
PASS_S: Final = 3600.0
"""Time for a walk over all cold records where a rule has no watermark: 100 M records are 10 GB, 3 MB/s."""
_FILL_NS: Final = 100_000_000
"""How old the fill of the cold tier may be: asking costs a system call."""


class FoundCold:
    """Cold records that lookups found, for the rules that promote them. The tiers' owner thread calls it."""

    def __init__(self, cold: ColdTier, mover: Mover, flights: Flights) -> None:
        self._cold, self._mover, self._flights = cold, mover, flights
        self._states = mover.rules_from(Tier.NVME, "promote")
        self._waiting: deque[tuple[U64Array, U32Array]] = deque()
        self._records = 0

    def __len__(self) -> int:
        return self._records

    def answered(self, keys: U64Array, hit: BoolArray, rows: U32Array) -> None:
        """Take the answers of a drain: every key asked, (n,), which were found and their rows, (n, words)."""
        if not hit.all():
            self._flights.take_many(keys[~hit])
            keys, rows = keys[hit], rows[hit]
        self._queue(keys, rows)

    def buffered(self, keys: U64Array, rows: U32Array) -> None:
        """Take records that a lookup found at once, in the write buffer or by a blocking read; keeps them."""
        self._flights.add_many(keys)
        self._queue(keys, rows)

    def _queue(self, keys: U64Array, rows: U32Array) -> None:
        room = QUEUE_RECORDS - self._records
        if len(keys) > room:
            self._flights.take_many(keys[room:])
            keys, rows = keys[:room], rows[:room]
        if len(keys):
            self._waiting.append((keys, rows))
            self._records += len(keys)

    def slice(self) -> bool:
        """Let the rules have some of what waits; returns False where nothing does."""
        if not self._waiting:
            return False
        keys, rows = self._waiting.popleft()
        if len(keys) > SLICE_RECORDS:
            self._waiting.appendleft((keys[SLICE_RECORDS:], rows[SLICE_RECORDS:]))
            keys, rows = keys[:SLICE_RECORDS], rows[:SLICE_RECORDS]
        self._records -= len(keys)
        fresh = self._flights.take_many(keys)
        fresh &= first_of_each(keys)
        keys, rows = keys[fresh], rows[fresh]
        if len(keys):
            self._cold.facts_many(keys, rows)
            self._mover.apply(Tier.NVME, keys, rows, [Want(state, len(keys)) for state in self._states])
        return True


class ColdWalk:
    """Walks over the cold records for the rules that drop them. The tiers' owner thread calls it."""

    def __init__(self, cold: ColdTier, mover: Mover, now_ns: int) -> None:
        self._cold, self._mover = cold, mover
        states = mover.rules_from(Tier.NVME, "evict", "demote")
        self._marks = tuple(Watermark(s) for s in states if s.rule.when_fill is not None and not s.is_trial)
        self._always = tuple(s for s in states if s.rule.when_fill is None or s.is_trial)
        self._order = {id(state): place for place, state in enumerate(states)}
        self._pass = Pass(PASS_S, now_ns)
        self._asked = False
        self._records, self._room = 1, 0
        self._running: list[Watermark] = []
        self._next_fill_ns = now_ns
        self._left = {id(mark): 0 for mark in self._marks}

    @property
    def has_rules(self) -> bool:
        """Whether any rule looks at cold records by itself."""
        return bool(self._marks or self._always)

    def is_due(self, now_ns: int) -> bool:
        """Whether there may be work, at the price of a few comparisons."""
        if self._asked or self._running or now_ns >= self._next_fill_ns:
            return True
        return bool(self._always) and self._pass.is_due(self._records, now_ns)

    def slice(self, now_ns: int) -> bool:
        """Ask for a slice of records, or let the rules have the one that came; returns False where there is no work."""
        if now_ns >= self._next_fill_ns:
            self._measure(now_ns)
        if not self._asked:
            return self._ask(now_ns)
        taken = self._cold.scan_take()
        if taken is None:
            return False
        self._asked = False
        self._look(*taken, now_ns)
        return True

    def _measure(self, now_ns: int) -> None:
        """See which rules with watermarks have to run, by the tier's fill."""
        self._next_fill_ns = now_ns + _FILL_NS
        stats, now_s = self._cold.stats(), self._mover.now_s()
        self._records = max(1, stats.records)
        self._room = room = round(stats.records / stats.fill) if stats.fill > 0 else 0
        self._running = []
        for mark in self._marks:
            started = not mark.active
            need = mark.need(stats.records, room, now_s) if room else 0
            if need and started:
                self._left[id(mark)] = need
            if need and mark.state.most_now(now_s, 1):
                self._running.append(mark)

    def _ask(self, now_ns: int) -> bool:
        if self._running or (self._always and self._pass.is_due(self._records, now_ns)):
            self._cold.scan_ask(WALK_RECORDS)
            self._asked = True
        return False  # nothing more to do before the writer has read

    def _look(self, keys: U64Array, rows: U32Array, now_ns: int) -> None:
        before = {id(mark): mark.state.moved for mark in self._running}
        wants = [Want(mark.state, mark.of_slice(len(keys), self._left[id(mark)])) for mark in self._running]
        wants += [Want(state, len(keys)) for state in self._always if state.is_awake(self._records, self._room)]
        wants.sort(key=lambda want: self._order[id(want.state)])
        if len(keys):
            self._mover.apply(Tier.NVME, keys, rows, wants)
        for mark in list(self._running):
            self._count(mark, len(keys), mark.state.moved - before[id(mark)])
        self._pass.advance(len(keys))
        if self._cold.scan_position == 0:
            self._pass.end(now_ns)

    def _count(self, mark: Watermark, seen: int, moved: int) -> None:
        """Let a rule rest that has dropped its share: fill shows that only once the removals are written, after 5 s."""
        mark.seen += seen
        self._left[id(mark)] -= moved
        if self._left[id(mark)] <= 0 or mark.seen > 2 * self._records:
            mark.rest(self._mover.now_s())
            self._running.remove(mark)
