"""What a simulation's numbers mean: whether requirements hold, what an operator should be told. Computes no figure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from flashnest.policy import Policy
from flashnest.policy.goals import Level, Requirement
from flashnest.policy.moves import MoveRule
from flashnest.policy.platform_facts import PlatformFacts
from flashnest.policy.resolved import Rule, ranges
from flashnest.record import I64Array, Kind, Tier
from flashnest.simulate.latency import batch_read_seconds
from flashnest.simulate.result import Quantiles
from flashnest.simulate.trace import Trace
from flashnest.simulate.wear import YEAR_S

MOST: Final = 0.5
"""A tier with more than this share of the hits has most of them."""
_TELLING: Final = 0.05
"""Lengths with less than this share of a tier's hits are left out where a message names lengths."""
_REJECTED: Final = 0.01
_WONDERS: Final = 0.9
_FEW_RECORDS: Final = 1000
"""Too few to speak of one-hit wonders."""
_QUEUE_READS: Final = 4096
"""Cold reads under way at most by default (`storage.cold_options`)."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What the messages are about. hits_by_tokens int64 (3, 256): hits by tier and by length."""

    hits: Mapping[Tier, int]
    hits_by_tokens: I64Array
    lookup_s: Quantiles | None
    step_s: Quantiles | None
    has_base: bool
    nvme_bytes_per_s: float
    drive_life_years: float | None
    cold_reads: Quantiles
    rejected: int
    inserts: int
    one_hit_wonders: float
    stored_records: int
    moved: Mapping[int, int]
    refused: Mapping[int, int]
    suspensions: Mapping[int, int]


def measured(requirement: Requirement, figures: Figures, *, duration_s: float) -> tuple[float | None, str]:
    """Return the value that a requirement bounds, in its unit, or None and why it cannot be told."""
    hits = sum(figures.hits.values())
    timed = "" if duration_s > 0 else "the trace has no time"
    match requirement.metric:
        case "lookup p50":
            return _of(figures.lookup_s, "p50"), "no platform is given"
        case "lookup p99":
            return _of(figures.lookup_s, "p99"), "no platform is given"
        case "step p99":
            known = figures.step_s if figures.has_base else None
            return _of(known, "p99"), "no platform is given" if figures.step_s is None else "no base step time is given"
        case "nvme writes":
            return None if timed else figures.nvme_bytes_per_s, timed
        case "nvme life":
            years = None if timed else figures.drive_life_years
            return None if years is None else years * YEAR_S, timed or "the platform names no endurance"
        case "dram hits":
            return figures.hits.get(Tier.DRAM, 0) / hits if hits else None, "nothing was found"
    return None, "this release does not measure it"


def _of(quantiles: Quantiles | None, name: str) -> float | None:
    return None if quantiles is None else float(getattr(quantiles, name))


def judge(
    policy: Policy, figures: Figures, *, duration_s: float
) -> tuple[tuple[tuple[str, bool], ...], tuple[str, ...], tuple[str, ...]]:
    """Return every requirement that can be told with whether it holds, those enforced that do not, and warnings."""
    told: list[tuple[str, bool]] = []
    broken, warnings = [], []
    for requirement in policy.requirements:
        value, why = measured(requirement, figures, duration_s=duration_s)
        if value is None:
            warnings.append(f"`{requirement.text}` cannot be told: {why}")
            continue
        holds = requirement.holds(value)
        told.append((requirement.text, holds))
        if not holds and requirement.level is Level.ENFORCE:
            broken.append(requirement.text)
        elif not holds:
            warnings.append(f"`{requirement.text}` does not hold")
    return tuple(told), tuple(broken), tuple(warnings)


def warnings_of(
    policy: Policy,
    trace: Trace,
    figures: Figures,
    *,
    moves: tuple[MoveRule, ...],
    capacities: Mapping[Tier, int],
    platform: PlatformFacts | None,
    eviction: str,
    base_step_s: float | None,
) -> tuple[str, ...]:
    """Return what an operator should know, most telling first."""
    return (
        *_most_on_nvme(figures),
        *_closed(policy, capacities),
        *_rules(moves, figures, eviction),
        *_records(policy, figures),
        *_drive(policy, figures, platform, base_step_s),
        *_unknown_facts(policy, trace),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _most_on_nvme(figures: Figures) -> Iterator[str]:
    hits, cold = sum(figures.hits.values()), figures.hits.get(Tier.NVME, 0)
    if not hits or cold <= MOST * hits:
        return
    lengths = figures.hits_by_tokens[Tier.NVME]
    telling = np.flatnonzero(lengths >= _TELLING * cold)
    which = f"{telling[0]}..{telling[-1]}" if len(telling) > 1 else f"{telling[0]}"
    share = lengths[telling].sum() / cold
    yield (
        f"this policy puts most hits ({_percent(cold / hits)}) on NVMe: records of {which} tokens take "
        f"{_percent(share)} of those, one step late"
    )


def _closed(policy: Policy, capacities: Mapping[Tier, int]) -> Iterator[str]:
    for tier in sorted(policy.tiers - capacities.keys()):
        yield f"the policy names {tier.name.lower()}, which has no capacity here: its records go where else they may"


def _rules(moves: tuple[MoveRule, ...], figures: Figures, eviction: str) -> Iterator[str]:
    for rule in moves:
        if rule.action == "keep" or not rule.acts:
            continue
        number = rule.number
        if figures.suspensions.get(number):
            yield f"rule {number} was suspended {figures.suspensions[number]} times: it moved records to and fro"
        if figures.refused.get(number, 0) > max(figures.moved.get(number, 0), 100):
            yield (
                f"rule {number} found its target full for {figures.refused[number]} records and moved "
                f"{figures.moved.get(number, 0)}"
            )
        if rule.source is Tier.DRAM and rule.using not in (None, eviction):
            yield f"rule {number} says `using {rule.using}`, the dram tier evicts by {eviction}"


def _records(policy: Policy, figures: Figures) -> Iterator[str]:
    if figures.inserts and figures.rejected > _REJECTED * figures.inserts and _rejects_by_room(policy):
        yield (
            f"{figures.rejected} inserts ({_percent(figures.rejected / figures.inserts)}) found no tier of their chain "
            "with room"
        )
    gated = any(admission is not None for admission in policy.placement.admissions)
    if figures.stored_records >= _FEW_RECORDS and figures.one_hit_wonders >= _WONDERS and not gated:
        yield (
            f"{_percent(figures.one_hit_wonders)} of the records stored were never found: `after 2 hits in TIME` "
            "keeps such records out"
        )


def _rejects_by_room(policy: Policy) -> bool:
    return all(chain for chain in policy.placement.chains)


def _drive(
    policy: Policy, figures: Figures, platform: PlatformFacts | None, base_step_s: float | None
) -> Iterator[str]:
    most = figures.cold_reads.most
    if most > _QUEUE_READS:
        yield f"up to {most:.0f} cold reads in one step: beyond {_QUEUE_READS} under way a run drops them"
    if platform is not None and base_step_s:
        seconds = batch_read_seconds(figures.cold_reads.p99, platform)
        if seconds > base_step_s:
            yield (
                f"the drive takes {1000 * seconds:.1f} ms for the cold reads of a step (P99), longer than the step: "
                "answers come late"
            )
    flush = policy.flush
    if flush is not None and flush.most_bytes_per_s is not None and figures.nvme_bytes_per_s > flush.most_bytes_per_s:
        yield (
            f"{figures.nvme_bytes_per_s / 1e6:.1f} MB/s are to be written, `{flush.text}` allows "
            f"{flush.most_bytes_per_s / 1e6:.1f}: records wait, then are refused"
        )
    if platform is not None and platform.drive_assumed and not math.isnan(most) and most > 0:
        yield f"platform {platform.name} names no drive: the figures of facts F15 stand in"


def _unknown_facts(policy: Policy, trace: Trace) -> Iterator[str]:
    asked: dict[str, MoveRule | Rule] = {}
    for rule in policy.moves.rules:
        for atom in ranges(rule.meaning):
            asked.setdefault(atom.fact.name, rule)
    if "accept" in asked:
        yield f"rule {asked['accept'].number} asks for `accept`, which a trace does not have: it counts as 100 %"
    if "refs" in asked and bool((trace.kind == Kind.CHUNK).any()):
        yield (
            f"rule {asked['refs'].number} asks for `refs`: a trace does not say which requests hold a chunk, so it "
            "counts as 0; for an n-gram it is how often it was learnt again"
        )
