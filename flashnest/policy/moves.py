"""Compiled moves: which stored records a `keep`, `promote`, `demote` or `evict` takes, from arrays of their facts.

Fulfils `flashnest.storage.store.MoveRule` and `MovePlan` by shape alone; policy never imports storage. Immutable, so
any thread may ask. Moves nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flashnest.policy.evaluate import holds, matches
from flashnest.policy.facts import RecordFacts
from flashnest.policy.goals import Level
from flashnest.policy.resolved import Meaning, Numbered
from flashnest.policy.syntax import Keep, Move, Span
from flashnest.record import BoolArray, FactArrays, Tier

KEEP = "keep"


@dataclass(frozen=True, slots=True)
class MoveRule(Numbered):
    """One move. `number` goes on from the `place` rules; `text` is its canonical text.

    `source` is the tier whose records it looks at (`keep`: the tier they stay in), `target` where they go, None for
    `keep` and `evict`. Watermarks are shares of the source's room, 0..1: it starts above `when_fill` and stops below
    `until_fill`. `order` is (fact name, descending): `tokens bytes hits idle age refs accept`. `name` is its label, if
    any. A rule at level `warn` is a trial: it never decides.
    """

    number: int
    text: str
    statement: Keep | Move
    meaning: Meaning
    source: Tier
    target: Tier | None = None
    when_fill: float | None = None
    until_fill: float | None = None
    order: tuple[str, bool] | None = None
    using: str | None = None
    most_records_per_s: float | None = None
    most_bytes_per_s: float | None = None
    cooldown_s: float = 0.0
    min_residency_s: float = 0.0
    windows_s: tuple[int, ...] = ()
    """The plan's windows: `FactArrays.window_hits` has an array for each."""
    name: str | None = None
    level: Level = Level.ENFORCE

    @property
    def action(self) -> str:
        """`keep`, `promote`, `demote` or `evict`."""
        return self.statement.action if isinstance(self.statement, Move) else KEEP

    @property
    def span(self) -> Span:
        """Where the rule stands."""
        return self.statement.span

    @property
    def verb(self) -> str:
        """The rule's first word."""
        return self.action

    def matches(self, facts: FactArrays) -> BoolArray:
        """Return which records the condition takes, bool (n,); all of them without a condition."""
        return matches(self.meaning, facts, self.windows_s)

    def takes(self, record: RecordFacts, fill: float = 0.0) -> bool:
        """Return whether the rule would act on one record of its source tier while that is `fill` full, 0..1.

        For tests and explanations. Cooldown, residency and rates do not count.
        """
        return holds(self.meaning, record) and (self.when_fill is None or fill > self.when_fill)


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The moves of a policy in file order, trials among them, and the times of their `hits in TIME`, ascending."""

    rules: tuple[MoveRule, ...] = ()
    windows_s: tuple[int, ...] = ()

    @property
    def acting(self) -> MovePlan:
        """The same plan without its trials: what a sweep applies."""
        return self if all(rule.acts for rule in self.rules) else MovePlan(tuple(self._acting()), self.windows_s)

    def first(self, record: RecordFacts, tier: Tier, fill: float = 0.0, trial: int | None = None) -> MoveRule | None:
        """Return the rule that decides about one record of a tier, as `Policy.move` says."""
        here = [rule for rule in self._acting(trial) if rule.source is tier and rule.takes(record, fill)]
        keeps = [rule for rule in here if rule.action == KEEP]
        return next(iter(keeps + here), None)

    def _acting(self, trial: int | None = None) -> Iterable[MoveRule]:
        return (rule for rule in self.rules if rule.acts or rule.number == trial)
