"""What becomes of a record, as a value to compare and as words: where `place` puts it, what moves do to it in a tier.

Two policies mean the same where these values are equal, however their rules are written. Looks at no cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from flashnest.policy.facts import REJECT, time_words
from flashnest.policy.moves import KEEP, MoveRule
from flashnest.policy.resolved import Rule
from flashnest.record import Admission, Tier


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a new record goes: the tiers to try in order, `()` where it is rejected, and what it has to do first."""

    chain: tuple[Tier, ...]
    admission: Admission | None = None

    def __str__(self) -> str:
        chain = " else ".join(tier.name.lower() for tier in self.chain) or REJECT
        if self.admission is None:
            return f"in {chain}"
        return f"in {chain} after {self.admission.hits} hits in {time_words(self.admission.window_s)}"


@dataclass(frozen=True, slots=True)
class Act:
    """What one move does to the records that it takes, with all that bounds it."""

    action: str
    target: Tier | None
    until_fill: float | None
    order: tuple[str, bool] | None
    using: str | None
    most_records_per_s: float | None
    most_bytes_per_s: float | None
    cooldown_s: float
    min_residency_s: float

    def __str__(self) -> str:
        words = [self.action if self.target is None else f"{self.action} to {self.target.name.lower()}"]
        if self.until_fill is not None:
            words.append(f"until fill < {100 * self.until_fill:.4g}%")
        if self.order is not None:
            words.append(f"by {self.order[0]} {'desc' if self.order[1] else 'asc'}")
        words += [f"using {self.using}"] if self.using else []
        words += [f"at most {self.most_records_per_s:.10g} rec/s"] if self.most_records_per_s is not None else []
        words += [f"at most {self.most_bytes_per_s / 1e6:.10g} MB/s"] if self.most_bytes_per_s is not None else []
        words += [f"cooldown {_time(self.cooldown_s)}"] if self.cooldown_s else []
        words += [f"min residency {_time(self.min_residency_s)}"] if self.min_residency_s else []
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Moved:
    """What moves do to a record while its tier fills: steps (fill above which, act), highest fill first.

    A fill below 0 in a step means always. No step: the record stays.
    """

    steps: tuple[tuple[float, Act], ...] = ()

    def at(self, fill: float) -> Act | None:
        """Return what is done to the record while its tier is `fill` full, 0..1; None: it stays."""
        return next((act for above, act in self.steps if fill > above), None)

    def __str__(self) -> str:
        words = [f"{act}" if above < 0 else f"{act} when fill > {100 * above:.4g}%" for above, act in self.steps]
        return ", else ".join(words) or "stay"


def placed(rule: Rule) -> Placed:
    """Return what a `place` rule does."""
    return Placed(rule.chain, rule.admission)


def moved(rules: Iterable[MoveRule]) -> tuple[Moved, tuple[MoveRule, ...]]:
    """Return what becomes of a record that all of `rules` match, in file order, and the rules that have a part in it.

    A `keep` comes before all others. A rule with watermarks leaves the record to the rules after it while the tier is
    less full; one that an earlier rule always precedes has no part.
    """
    matching = list(rules)
    keeps = [rule for rule in matching if rule.action == KEEP]
    if keeps:
        return Moved(), (keeps[0],)
    steps: list[tuple[float, Act]] = []
    parts: list[MoveRule] = []
    lowest = 1.0
    for rule in matching:
        above = -1.0 if rule.when_fill is None else rule.when_fill
        if above < lowest:
            steps.append((above, _act(rule)))
            parts.append(rule)
            lowest = above
    return Moved(_joined(steps)), tuple(parts)


def telling_fill(old: Moved, new: Moved) -> float:
    """Return a fill, 0..1, at which two outcomes differ: the lowest of those halfway between their watermarks."""
    marks = sorted({0.0, 1.0, *(above for outcome in (old, new) for above, _ in outcome.steps if above > 0)})
    tried = [(low + high) / 2 for low, high in pairwise(marks)]
    return next((fill for fill in tried if old.at(fill) != new.at(fill)), 1.0)


def _joined(steps: Sequence[tuple[float, Act]]) -> tuple[tuple[float, Act], ...]:
    """Leave out a step whose act the next one, from a lower fill on, does anyway."""
    acts = [act for _, act in steps]
    return tuple(step for i, step in enumerate(steps) if step[1] not in acts[i + 1 : i + 2])


def _act(rule: MoveRule) -> Act:
    return Act(
        rule.action,
        rule.target,
        rule.until_fill,
        rule.order,
        rule.using,
        rule.most_records_per_s,
        rule.most_bytes_per_s,
        rule.cooldown_s,
        rule.min_residency_s,
    )


def _time(seconds: float) -> str:
    return time_words(int(seconds)) if seconds == int(seconds) else f"{seconds:g}s"
