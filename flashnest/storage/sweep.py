"""Moves records between tiers by the policy's rules, between decode steps, within a time budget. Never in a lookup.

Work is cut into slices well under 200 us; the clock is read between them. Tasks take turns, so that a long pass over
one tier never holds up promotions. What is not done in one sweep goes on in the next.
"""

from __future__ import annotations

from collections.abc import Callable

from flashnest.record import BoolArray, Tier, U32Array, U64Array
from flashnest.storage.moves import RuleStats
from flashnest.storage.router_flights import Flights
from flashnest.storage.router_tiers import Tiers
from flashnest.storage.store import ClockS, MovePlan
from flashnest.storage.sweep_cold import ColdWalk, FoundCold
from flashnest.storage.sweep_moves import Mover
from flashnest.storage.sweep_tables import TableSweep


class Sweep:
    """The moves of a plan. The tiers' owner thread calls it."""

    def __init__(
        self,
        tiers: Tiers,
        plan: MovePlan,
        words: int,
        *,
        window_keys: int,
        clock_s: ClockS,
        clock_ns: Callable[[], int],
    ) -> None:
        """Take notice of the rules whose tiers are open; hook `keep` rules and flights into `tiers`."""
        self._clock_ns = clock_ns
        self._mover = Mover(tiers, plan, words, clock_s, window_keys)
        now_ns = clock_ns()
        tables = [TableSweep(table, self._mover, now_ns) for table in tiers.tables]
        self._tables = tuple(table for table in tables if table.has_rules)
        self._found: FoundCold | None = None
        self._walk: ColdWalk | None = None
        if tiers.cold is not None:
            if self._mover.rules_from(Tier.NVME, "promote"):
                tiers.flights = Flights()
                self._found = FoundCold(tiers.cold, self._mover, tiers.flights)
            walk = ColdWalk(tiers.cold, self._mover, now_ns)
            self._walk = walk if walk.has_rules else None
        if any(self._mover.has_keeps(Tier(table.tier)) for table in tiers.tables):
            tiers.keeps = self._mover.keeps
        self.sees_hits = self._mover.sees_hits

    def compile(self) -> None:
        """Load or compile the kernels, so that no step waits for it."""
        self._mover.compile()
        for table in self._tables:
            table.compile()

    @property
    def decides(self) -> bool:
        """Whether rules move records between NVMe and the tables, so that learning one again should not."""
        acting = (state.rule for state in self._mover.states if not state.is_trial)
        return any(Tier.NVME in (rule.source, rule.target) for rule in acting)

    def saw(self, keys: U64Array) -> None:
        """Count a hit of each key, uint64 (n,), for rules that ask for hits within a time."""
        self._mover.saw(keys)

    def answered(self, keys: U64Array, hit: BoolArray, rows: U32Array) -> None:
        """Take a drain's answers; see `FoundCold.answered`."""
        if self.sees_hits:
            self._mover.saw(keys[hit])
        if self._found is not None:
            self._found.answered(keys, hit, rows)

    def buffered(self, keys: U64Array, rows: U32Array) -> None:
        """Take cold records found at once; see `FoundCold.buffered`."""
        if self.sees_hits:
            self._mover.saw(keys)
        if self._found is not None:
            self._found.buffered(keys, rows)

    def run(self, budget_s: float) -> None:
        """Work until there is nothing left to do or the budget is used; the last slice may end up to 200 us late."""
        now_ns = self._clock_ns()
        if not self._is_due(now_ns):
            return
        for state in self._mover.states:
            state.stopped = False
        deadline_ns = now_ns + int(budget_s * 1e9)
        while now_ns < deadline_ns and self._round(now_ns, deadline_ns):
            now_ns = self._clock_ns()

    def _is_due(self, now_ns: int) -> bool:
        if self._found is not None and len(self._found):
            return True
        if self._walk is not None and self._walk.is_due(now_ns):
            return True
        return any(table.is_due(now_ns) for table in self._tables)

    def _round(self, now_ns: int, deadline_ns: int) -> bool:
        """Do one slice of every task that has work, as far as the time goes; returns whether any had."""
        worked = self._found is not None and self._found.slice()
        for task in (*self._tables, *((self._walk,) if self._walk is not None else ())):
            now_ns = self._clock_ns()
            if now_ns >= deadline_ns:
                return False
            worked |= task.slice(now_ns)
        return worked

    def stats(self) -> tuple[RuleStats, ...]:
        """Return the figures of every rule that moves records, in file order."""
        return tuple(state.stats() for state in self._mover.states)
