"""T201: whether the records that a workload is expected to bring fit where a policy puts them on a platform.

Records fill a tier in the order of their rules' chains; what finds no room goes on to the next tier of its chain. A
`demote` with watermarks takes the overflow of its tier to another, an `evict` drops it on purpose; what is left over is
refused, and that is the finding. Judges only; the counts come as `ExpectedRecords`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flashnest.policy.compile import Policy
from flashnest.policy.diagnostics import Diagnostic, Label, Note
from flashnest.policy.evaluate import matches
from flashnest.policy.expectations import ExpectedRecords, TierRoom
from flashnest.policy.format import format_condition
from flashnest.policy.platform_facts import PlatformFacts
from flashnest.policy.resolved import InRange, Rule
from flashnest.policy.syntax import Comparison, Name
from flashnest.record import F64Array, Tier
from flashnest.units import format_bytes

_LEAST_LOST = 0.5
"""Fewer records than this are rounding."""


@dataclass(slots=True)
class _Filling:
    """How far the tiers are filled: records by tier, and by (tier, rule index) what was asked for and was refused."""

    used: dict[Tier, float]
    asked: dict[tuple[Tier, int], float] = field(default_factory=dict)
    lost: dict[tuple[Tier, int], float] = field(default_factory=dict)

    def asked_of(self, tier: Tier) -> float:
        return sum(count for (at, _), count in self.asked.items() if at is tier)

    def lost_at(self, tier: Tier) -> float:
        return sum(count for (at, _), count in self.lost.items() if at is tier)


def check_capacity(
    policy: Policy, records: ExpectedRecords, rooms: Mapping[Tier, TierRoom], platform: PlatformFacts
) -> list[Diagnostic]:
    """Return T201 for each tier that refuses records, and for tiers larger than the machine's memory."""
    filling = _filled(policy, _demand(policy, records, policy.rules), rooms)
    found = [
        _does_not_fit(policy, records, rooms, platform, filling, tier)
        for tier in rooms
        if filling.lost_at(tier) > _LEAST_LOST
    ]
    return [*_larger_than_memory(policy, rooms, platform), *found]


def count_words(count: float) -> str:
    """Return a number of records for people: `80.0M`, `173.1k`, `812`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f}{letter}"
    return f"{count:.0f}"


def _demand(policy: Policy, records: ExpectedRecords, rules: Sequence[Rule]) -> F64Array:
    """Return how many records each rule takes, (rules,). A rule with `after` takes those learnt often enough."""
    facts, left = records.facts, np.ones(len(records.tokens), np.bool_)
    demand = np.zeros(len(rules))
    for i, rule in enumerate(rules):
        if not rule.acts:
            continue
        taken = left & matches(rule.meaning, facts, ())
        left &= ~taken
        if rule.admission is not None and records.learnt is not None:
            taken &= records.learnt >= rule.admission.hits
        demand[i] = records.counts[taken].sum()
    return demand


def _filled(policy: Policy, demand: F64Array, rooms: Mapping[Tier, TierRoom]) -> _Filling:
    filling = _Filling(dict.fromkeys(rooms, 0.0))
    left = demand.copy()
    for depth in range(max((len(rule.chain) for rule in policy.rules), default=0)):
        for tier in rooms:
            here = [i for i, rule in enumerate(policy.rules) if rule.chain[depth : depth + 1] == (tier,) and left[i]]
            share = _store(policy, filling, rooms, tier, here, left)
            for i in here:
                left[i] *= 1 - share
                if len(policy.rules[i].chain) == depth + 1 and left[i] > 0:
                    filling.lost[tier, i] = filling.lost.get((tier, i), 0.0) + left[i]
    return filling


def _store(
    policy: Policy,
    filling: _Filling,
    rooms: Mapping[Tier, TierRoom],
    tier: Tier,
    rules: Sequence[int],
    left: F64Array,
) -> float:
    """Put what some rules have left into a tier as far as it has room; return the share that is stored or moved on."""
    wanted = float(left[list(rules)].sum())
    if not wanted:
        return 1.0
    for i in rules:
        filling.asked[tier, i] = filling.asked.get((tier, i), 0.0) + left[i]
    stored = min(wanted, max(0.0, rooms[tier].records - filling.used[tier]))
    filling.used[tier] += stored
    return (stored + _relieved(policy, filling, rooms, tier, wanted - stored)) / wanted


def _relieved(policy: Policy, filling: _Filling, rooms: Mapping[Tier, TierRoom], tier: Tier, over: float) -> float:
    """Return how many of a tier's overflowing records its moves take: dropped by an `evict`, or by a `demote` into
    another tier as far as that has room or drops records itself."""
    seen: set[Tier] = set()
    taken, at = 0.0, tier
    while at not in seen:
        seen.add(at)
        moves = [one for one in policy.moves.rules if one.acts and one.source is at and one.when_fill is not None]
        if any(move.action == "evict" for move in moves):
            return over
        target = next((move.target for move in moves if move.target in rooms), None)
        if target is None:
            return taken
        room = max(0.0, rooms[target].records - filling.used[target])
        moved = min(over - taken, room)
        filling.used[target] += moved
        taken, at = taken + moved, target
    return taken


def _does_not_fit(
    policy: Policy,
    records: ExpectedRecords,
    rooms: Mapping[Tier, TierRoom],
    platform: PlatformFacts,
    filling: _Filling,
    tier: Tier,
) -> Diagnostic:
    room, name = rooms[tier], tier.name.lower()
    asked = {i: count for (at, i), count in filling.asked.items() if at is tier}
    largest = max((i for at, i in filling.lost if at is tier), key=lambda i: asked[i])
    rule, wanted = policy.rules[largest], sum(asked.values())
    message = (
        f"{format_bytes(wanted * room.record_bytes)} expected in `{name}`, platform `{platform.name}` gives it "
        f"{format_bytes(room.capacity_bytes)}: {count_words(filling.lost_at(tier))} records are refused"
    )
    text = (
        f"{count_words(asked[largest])} records x {room.record_bytes:.1f} B = "
        f"{format_bytes(asked[largest] * room.record_bytes)}"
    )
    if wanted - asked[largest] > _LEAST_LOST:
        text += f"; other rules {format_bytes((wanted - asked[largest]) * room.record_bytes)}"
    notes = [
        Note("note", records.source),
        Note("note", f"a record takes {room.record_bytes:.1f} B there: {room.words}"),
    ]
    remedies = [*_moved_bound(policy, records, rooms, tier, rule), *_next_tier(policy, rooms, filling, tier, rule)]
    remedies.append(f"give `{name}` {format_bytes(wanted * room.record_bytes)} (`tiers.{name}.capacity`)")
    notes.append(Note("help", ", or ".join(remedies)))
    return Diagnostic("T201", message, policy.document.source, Label(rule.place.span, text), notes=tuple(notes))


def _next_tier(policy: Policy, rooms: Mapping[Tier, TierRoom], filling: _Filling, tier: Tier, rule: Rule) -> list[str]:
    """Offer `else` and a slower tier that has room for what is refused."""
    lost = filling.lost_at(tier)
    for other in (one for one in rooms if one > tier and one not in rule.chain):
        after = filling.used[other] + lost
        if after <= rooms[other].records:
            room = rooms[other]
            used, whole = format_bytes(after * room.record_bytes), format_bytes(room.capacity_bytes)
            return [f"add `else {other.name.lower()}` (predicted {used} of {whole} there)"]
    return []


def _moved_bound(
    policy: Policy, records: ExpectedRecords, rooms: Mapping[Tier, TierRoom], tier: Tier, rule: Rule
) -> list[str]:
    """Offer another bound of a rule with one atom on tokens: the nearest expected length with which all fits."""
    atom, meaning = rule.place.condition, rule.meaning
    if not isinstance(atom, Comparison) or not isinstance(meaning, InRange) or meaning.fact.name != "tokens":
        return []
    lengths = sorted({int(tokens) for tokens in records.tokens})
    if atom.operator in (">=", ">"):
        tried = [(f"tokens >= {n}", replace(meaning, low=n)) for n in lengths if n > meaning.low]
    elif atom.operator in ("<=", "<"):
        tried = [(f"tokens <= {n}", replace(meaning, high=n)) for n in reversed(lengths) if n < meaning.high]
    else:
        return []
    for words, narrower in tried:
        rules = [replace(one, meaning=narrower) if one is rule else one for one in policy.rules]
        demand = _demand(policy, records, rules)
        filling = _filled(policy, demand, rooms)
        if sum(filling.lost.values()) <= _LEAST_LOST and demand.sum() >= _demand(policy, records, policy.rules).sum():
            used = format_bytes(filling.used[tier] * rooms[tier].record_bytes)
            if isinstance(atom.value, Name) and atom.operator in (">=", "<="):
                return [f"set `{atom.value.text}` to {words.split()[-1]} tokens (predicted {used})"]
            return [f"change `{format_condition(atom)}` to `{words}` (predicted {used})"]
    return []


def _larger_than_memory(policy: Policy, rooms: Mapping[Tier, TierRoom], platform: PlatformFacts) -> list[Diagnostic]:
    """Return T201 where a tier's capacity, or on unified memory two tiers' together, exceeds the machine's memory."""
    found = []
    asked: dict[Tier, int] = {tier: room.capacity_bytes for tier, room in rooms.items() if tier is not Tier.NVME}
    groups: list[tuple[tuple[Tier, ...], int | None]]
    groups = (
        [(tuple(asked), platform.memory_dram_bytes)]
        if platform.unified_memory
        else [
            ((Tier.DRAM,), platform.memory_dram_bytes),
            ((Tier.VRAM,), platform.memory_vram_bytes),
        ]
    )
    for tiers, memory in groups:
        wanted = sum(asked.get(tier, 0) for tier in tiers)
        if memory is not None and wanted > memory:
            names = " and ".join(f"`{tier.name.lower()}`" for tier in tiers if tier in asked)
            message = (
                f"{names} {'get' if ' and ' in names else 'gets'} {format_bytes(wanted)}, platform "
                f"`{platform.name}` has {format_bytes(memory)} of memory for it"
            )
            note = Note("help", "lower the capacity under `tiers:`, or in the platform's `table:`")
            found.append(Diagnostic("T201", message, policy.document.source, notes=(note,)))
    return found
