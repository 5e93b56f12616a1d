"""What a policy would do to a table as it stands: moves that are due, records it would place elsewhere, fill after.

Works on arrays of facts, one entry a record; moves nothing and reads nothing. Rules are taken in file order, as the
sweep does; which of the matching records go first does not change how many do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashnest.policy.compile import Policy
from flashnest.policy.evaluate import matches
from flashnest.policy.expectations import TierRoom
from flashnest.policy.moves import KEEP, MoveRule
from flashnest.policy.platform_facts import PlatformFacts
from flashnest.policy.resolved import Rule
from flashnest.record import BoolArray, FactArrays, Tier, U8Array

CodeArray = npt.NDArray[np.int16]
_STAYS = -1


@dataclass(frozen=True, slots=True)
class Present:
    """The records of a table: their facts, (n,), with `window_hits` for each of `windows_s`; their tiers uint8 (n,)."""

    facts: FactArrays
    windows_s: tuple[int, ...]
    tier: U8Array
    source: str

    def __len__(self) -> int:
        return len(self.tier)


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """What one rule would move now. `matching` records meet its condition and nothing before it decides about them;
    `records` of them go, less where watermarks or room end it; `refused` of those find no room in the target.

    `already` of the matching ones the old policy treats the same way, None without an old one. `seconds` at the pace
    that `limit` names; None where nothing limits it but the sweep's time budget. Not `due`: its tier is not
    above `when`.
    """

    rule: MoveRule
    due: bool
    matching: int
    records: int
    nbytes: int
    refused: int
    already: int | None
    seconds: float | None
    limit: str


@dataclass(frozen=True, slots=True)
class Misplaced:
    """Records in a tier that the policy's `rule` would not put there if they came now. They stay until a move takes
    them: `moved` of them are among those that a move takes now."""

    rule: Rule
    tier: Tier
    records: int
    nbytes: int
    moved: int


@dataclass(frozen=True, slots=True)
class TierFill:
    """How full a tier is before and after the moves, in records; `room` is how many it holds."""

    tier: Tier
    before: int
    after: int
    room: TierRoom


@dataclass(frozen=True, slots=True)
class Plan:
    """What a policy would do to the present table."""

    moves: tuple[PlannedMove, ...]
    misplaced: tuple[Misplaced, ...]
    fills: tuple[TierFill, ...]
    stranded: tuple[tuple[Tier, int], ...]
    """Tiers that the policy's file does not open, and the records in them: no lookup reaches those any more."""

    @property
    def records(self) -> int:
        """Records that move or are dropped."""
        return sum(move.records for move in self.moves)


def make_plan(
    present: Present,
    new: Policy,
    rooms: Mapping[Tier, TierRoom],
    platform: PlatformFacts,
    *,
    write_bytes_a_record: float,
    old: Policy | None = None,
) -> Plan:
    """Plan what `new` does to the present records. With `old` only records that the two place differently are listed as
    misplaced, and each move says how many of its records `old` moves the same way. Time grows with records x rules."""
    planner = _Planner(present, rooms, platform, write_bytes_a_record)
    already = None if old is None else planner.decided(old)
    moves, taken = planner.moves(new, already)
    return Plan(moves, planner.misplaced(new, old, taken), planner.fills(), planner.stranded())


class _Planner:
    """One pass over the rules of a policy, keeping the number of records in each tier."""

    def __init__(
        self, present: Present, rooms: Mapping[Tier, TierRoom], platform: PlatformFacts, write_bytes: float
    ) -> None:
        self._present, self._rooms, self._platform, self._write_bytes = present, rooms, platform, write_bytes
        counts = np.bincount(present.tier, minlength=len(Tier))
        self._before = {tier: int(counts[tier]) for tier in Tier}
        self._now = dict(self._before)

    def fills(self) -> tuple[TierFill, ...]:
        """Return the tiers that are open."""
        return tuple(TierFill(tier, self._before[tier], self._now[tier], room) for tier, room in self._rooms.items())

    def stranded(self) -> tuple[tuple[Tier, int], ...]:
        """Return the tiers that are not open and hold records, with how many."""
        return tuple((tier, count) for tier, count in self._before.items() if count and tier not in self._rooms)

    def decided(self, policy: Policy) -> CodeArray:
        """Return what a policy does to each record at the present fill, int16 (n,): a code of action and target."""
        codes = np.full(len(self._present), _STAYS, np.int16)
        for rule, mask in self._matching(policy, dict(self._before)):
            codes[mask] = _code(rule)
        return codes

    def moves(self, policy: Policy, already: CodeArray | None) -> tuple[tuple[PlannedMove, ...], BoolArray]:
        """Apply the rules one after the other; returns them and which records they take, bool (n,)."""
        taken = np.zeros(len(self._present), np.bool_)
        planned = []
        for rule, mask in self._matching(policy, self._now):
            if rule.action == KEEP:
                continue
            due = self._is_due(rule, self._now)
            at = np.flatnonzero(mask)
            records = self._going(rule, len(at))
            going = min(records, self._free(rule.target, records))
            taken[at[:going]] = True
            self._now[rule.source] -= going
            if rule.target is not None:
                self._now[rule.target] += going
            same = None if already is None else int(np.count_nonzero(already[at] == _code(rule)))
            nbytes = int(self._present.facts.nbytes[at].sum(dtype=np.int64) * going / max(1, len(at)))
            seconds, limit = self._pace(rule, going, nbytes)
            planned.append(PlannedMove(rule, due, len(at), going, nbytes, records - going, same, seconds, limit))
        return tuple(planned), taken

    def misplaced(self, new: Policy, old: Policy | None, taken: BoolArray) -> tuple[Misplaced, ...]:
        """Return, by rule and tier, the records in a tier that is not in their rule's chain."""
        facts, tier = self._present.facts, self._present.tier
        rules = self._rules_of(new)
        outside = ~_allowed(new.rules)[rules, tier]
        if old is not None:
            outside &= (
                _targets(new.rules, old.rules)[0][rules] != _targets(new.rules, old.rules)[1][self._rules_of(old)]
            )
        pair = rules[outside].astype(np.int64) * len(Tier) + tier[outside]
        most = len(new.rules) * len(Tier)
        counts = np.bincount(pair, minlength=most)
        sizes = np.bincount(pair, weights=facts.nbytes[outside], minlength=most)
        moved = np.bincount(pair[taken[outside]], minlength=most)
        return tuple(
            Misplaced(new.rules[i // len(Tier)], Tier(i % len(Tier)), int(counts[i]), int(sizes[i]), int(moved[i]))
            for i in np.flatnonzero(counts).tolist()
        )

    def _rules_of(self, policy: Policy) -> npt.NDArray[np.uint16]:
        facts = self._present.facts
        return policy.placement.rule_codes(facts.tokens, facts.kind, facts.namespace, facts.nbytes)

    def _matching(self, policy: Policy, held: Mapping[Tier, int]) -> Iterator[tuple[MoveRule, BoolArray]]:
        """Yield each acting rule with the records that it decides about: a `keep` first, then in file order. A rule
        with watermarks decides only where its tier, `held` when it is its turn, is above them."""
        rules = [rule for rule in policy.moves.rules if rule.acts and rule.source in self._rooms]
        ordered = [*(rule for rule in rules if rule.action == KEEP), *(rule for rule in rules if rule.action != KEEP)]
        left = np.ones(len(self._present), np.bool_)
        for rule in ordered:
            if not self._is_due(rule, held):
                yield rule, np.zeros(len(left), np.bool_)
                continue
            mask = left & (self._present.tier == rule.source)
            mask &= matches(rule.meaning, self._present.facts, self._present.windows_s)
            left &= ~mask
            yield rule, mask

    def _is_due(self, rule: MoveRule, held: Mapping[Tier, int]) -> bool:
        return rule.when_fill is None or held[rule.source] > rule.when_fill * self._rooms[rule.source].records

    def _going(self, rule: MoveRule, matching: int) -> int:
        """Return how many of the matching records go: all, or what brings the tier below `until`."""
        if rule.until_fill is None:
            return matching
        room = self._rooms[rule.source].records
        return min(matching, max(0, self._now[rule.source] - math.ceil(rule.until_fill * room) + 1))

    def _free(self, target: Tier | None, wanted: int) -> int:
        """Return how many of the wanted records the target has room for."""
        if target is None:
            return wanted
        return max(0, self._rooms[target].records - self._now[target]) if target in self._rooms else 0

    def _pace(self, rule: MoveRule, records: int, nbytes: int) -> tuple[float | None, str]:
        """Return the seconds that a move takes and what sets them: its rates, or the drive's reads and writes."""
        if not records:
            return 0.0, ""
        paces: list[tuple[float, str]] = []
        if rule.most_records_per_s is not None:
            paces.append((records / rule.most_records_per_s, f"{rule.most_records_per_s:g} rec/s"))
        if rule.most_bytes_per_s is not None:
            paces.append((nbytes / rule.most_bytes_per_s, f"{rule.most_bytes_per_s / 1e6:g} MB/s"))
        if rule.source is Tier.NVME and rule.target is not None:
            paces.append((records / self._platform.nvme_iops, "drive reads"))
        if Tier.NVME in (rule.source, rule.target):
            written = records * self._write_bytes
            paces.append((written / self._platform.nvme_sequential_bytes_per_s, "drive writes"))
        return max(paces) if paces else (None, "the sweep's time")


def _code(rule: MoveRule) -> int:
    if rule.action == KEEP:
        return _STAYS
    return len(Tier) if rule.target is None else int(rule.target)


def _allowed(rules: Sequence[Rule]) -> npt.NDArray[np.bool_]:
    """Return bool (rules, tiers): the tiers of each rule's chain."""
    return np.array([[tier in rule.chain for tier in Tier] for rule in rules], np.bool_)


def _targets(new: Sequence[Rule], old: Sequence[Rule]) -> tuple[CodeArray, CodeArray]:
    """Return a number for the chain of each rule, int16 (rules,): the same for the same chain of both policies."""
    numbers: dict[tuple[Tier, ...], int] = {}
    for rule in (*new, *old):
        numbers.setdefault(rule.chain, len(numbers))
    both = [np.array([numbers[rule.chain] for rule in rules], np.int16) for rules in (new, old)]
    return both[0], both[1]
