"""Carries out what rules ask of one batch of records: chooses, brakes, moves, counts. Does not look for records.

The order is the language's: what a `keep` names stays; of the other rules the first in file order that takes a record
moves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flashnest.record import KEY_BYTES, BoolArray, FactArrays, I64Array, Tier, U32Array, U64Array
from flashnest.storage.moves import RuleState, first_by, first_unused, read_facts
from flashnest.storage.ping_pong import RecentMoves
from flashnest.storage.router_tiers import Tiers
from flashnest.storage.sketch import WindowedCounts
from flashnest.storage.store import ClockS, MovePlan, MoveRule


@dataclass(frozen=True, slots=True)
class Want:
    """A rule, and the most records of a batch that it may take."""

    state: RuleState
    most: int


class Mover:
    """The rules of a plan over the tiers of a run. The tiers' owner thread calls it."""

    def __init__(self, tiers: Tiers, plan: MovePlan, words: int, clock_s: ClockS, window_keys: int) -> None:
        self._tiers, self._clock_s = tiers, clock_s
        self._words, self._record_bytes = words, KEY_BYTES + 4 * words
        keeps = [rule for rule in plan.rules if rule.action == "keep" and rule.acts]
        self._keeps_in = {tier: tuple(rule for rule in keeps if rule.source is tier) for tier in Tier}
        self._windows = tuple(
            WindowedCounts(window, clock_s=clock_s, expected_keys=window_keys) for window in plan.windows_s
        )
        self.states = tuple(RuleState(rule, self._record_bytes) for rule in plan.rules if rule.action != "keep")
        self._recent = RecentMoves() if self.states else None
        self.sees_hits = bool(self._windows)
        """Whether a rule asks for hits within a time, so that `saw` has a use."""

    def compile(self) -> None:
        """Load or compile the kernels, so that no step waits for it."""
        keys, rows = np.zeros(0, np.uint64), np.zeros((0, self._words), np.uint32)
        self._facts(keys, rows)
        self.saw(keys)

    def now_s(self) -> int:
        """Return the time by which facts and brakes go."""
        return self._clock_s()

    def saw(self, keys: U64Array) -> None:
        """Count a hit of each key, uint64 (n,)."""
        for window in self._windows:
            window.add_many(keys)

    def rules_from(self, tier: Tier, *actions: str) -> tuple[RuleState, ...]:
        """Return the rules with one of `actions` that look at the records of `tier`, in file order."""
        return tuple(s for s in self.states if s.rule.source is tier and s.rule.action in actions)

    def has_keeps(self, tier: Tier) -> bool:
        """Whether a rule keeps records of `tier` there."""
        return bool(self._keeps_in[tier])

    def keeps(self, tier: Tier, keys: U64Array, rows: U32Array) -> BoolArray:
        """Return which records of `tier` have to stay there, (n,)."""
        keeps = self._keeps_in[tier]
        return self._kept(keeps, self._facts(keys, rows)) if keeps else np.zeros(len(keys), np.bool_)

    def _facts(self, keys: U64Array, rows: U32Array) -> FactArrays:
        return read_facts(keys, rows, self._clock_s(), self._record_bytes, self._windows)

    @staticmethod
    def _kept(keeps: Sequence[MoveRule], facts: FactArrays) -> BoolArray:
        kept = np.zeros(len(facts.tokens), np.bool_)
        for rule in keeps:
            kept |= rule.matches(facts)
        return kept

    def apply(self, tier: Tier, keys: U64Array, rows: U32Array, wants: Sequence[Want]) -> BoolArray:
        """Let rules take records of `tier`, keys (n,) and rows (n, words); returns which left it, (n,)."""
        facts, now_s = self._facts(keys, rows), self._clock_s()
        left = np.zeros(len(keys), np.bool_)
        free = ~self._kept(self._keeps_in[tier], facts)
        ages_s = None
        if self._recent is not None and any(want.state.asks_for_rest for want in wants):
            ages_s = self._recent.ages_many(keys, now_s)
        for want in wants:
            if want.state.is_trial:
                at = want.state.rested(facts, ages_s, np.flatnonzero(want.state.rule.matches(facts) & free))
                want.state.try_many(keys[at], now_s)
                continue
            most = want.state.most_now(now_s, want.most)
            if not most:
                continue
            at = want.state.rested(facts, ages_s, np.flatnonzero(want.state.rule.matches(facts) & free))
            at = _choose(want.state.rule, facts, at, most)
            if len(at):
                took = self._carry(want.state, keys[at], rows[at], now_s)
                left[at[took]] = True
                free[at[took]] = False
        return left

    def _carry(self, state: RuleState, keys: U64Array, rows: U32Array, now_s: int) -> BoolArray:
        rule, tiers = state.rule, self._tiers
        if rule.target is None:
            took = tiers.drop(rule.source, keys)
        else:
            took = tiers.move(rule.source, rule.target, keys, rows)
        moved, returned = int(np.count_nonzero(took)), 0
        if moved and self._recent is not None:
            returned = self._recent.note_many(keys[took], now_s, rule.source, rule.target, state.return_window_s)
        if moved < len(keys):
            state.stopped = True
        state.note(moved, len(keys) - moved, returned, now_s)
        return took


def _choose(rule: MoveRule, facts: FactArrays, at: I64Array, most: int) -> I64Array:
    if rule.using is not None and rule.order is None:
        return first_unused(facts, rule.using, at, most)
    return first_by(facts, rule.order, at, most)
