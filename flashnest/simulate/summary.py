"""From a play's counters to a `Simulation`: bytes, predictions, wear, requirements, warnings. Plays nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flashnest.policy import Policy
from flashnest.policy.evaluate import matches
from flashnest.record import FactArrays, Tier
from flashnest.simulate import program as rule_at
from flashnest.simulate import state as at
from flashnest.simulate.findings import Figures, judge, warnings_of
from flashnest.simulate.latency import lookup_seconds
from flashnest.simulate.playing import Play
from flashnest.simulate.result import Quantiles, Simulation
from flashnest.simulate.trace import INSERT, Trace
from flashnest.simulate.wear import life_years, lmdb_bytes, slots_bytes


def summarise(play: Play, optimum: float | None) -> Simulation:
    """Return what a play found. `optimum`: Belady's share of the questions."""
    policy, trace, counts, tiers = play.policy, play.trace, play.state.counts, play.state.tiers
    hits = {tier: int(tiers[tier, at.TIER_HITS]) for tier in play.rooms}
    peaks = {tier: room.bytes_of(int(tiers[tier, at.PEAK])) for tier, room in play.rooms.items()}
    marks = play.state.lines[:, at.MARKS]
    stored = int(np.count_nonzero(marks & at.STORED))
    asked = int(np.count_nonzero((marks & at.STORED != 0) & (marks & at.ASKED != 0)))
    figures = _figures(play, hits, stored, asked)
    told, broken, untold = judge(policy, figures, duration_s=trace.duration_s)
    return Simulation(
        policy=policy.source,
        trace=trace.name,
        platform=None if play.platform is None else play.platform.name,
        questions=int(counts[at.QUESTIONS]),
        misses=int(counts[at.MISSES]),
        hits=hits,
        hits_by_rule={rule.number: int(play.hits_by_rule[i]) for i, rule in enumerate(policy.rules)},
        rules=_numbered(policy),
        would_have=_would_have(play),
        capacities=play.capacities,
        peak_bytes=peaks,
        end_bytes={tier: room.bytes_of(int(tiers[tier, at.COUNT])) for tier, room in play.rooms.items()},
        end_records={tier: int(tiers[tier, at.COUNT]) for tier in play.rooms},
        series=play.series,
        cold_reads_per_step=figures.cold_reads,
        cold_reads=int(play.reads.sum()),
        false_reads=int(counts[at.FALSE_READS]),
        step_ms=_scaled(figures.step_s, 1e3),
        lookup_us=_scaled(figures.lookup_s, 1e6),
        nvme_written_bytes=_written_bytes(play),
        nvme_changes=int(counts[at.NVME_INSERTS] + counts[at.NVME_REMOVES]),
        nvme_bytes_per_s=figures.nvme_bytes_per_s,
        drive_life_years=figures.drive_life_years,
        moved_by_rule=dict(figures.moved),
        refused_by_rule=dict(figures.refused),
        suspensions=dict(figures.suspensions),
        ping_pongs=int(play.rules.counts[:, rule_at.PING_PONGS].sum()),
        rejected=int(counts[at.REJECTED]),
        not_admitted=int(counts[at.NOT_ADMITTED]),
        pushed_out=int(counts[at.PUSHED_OUT]),
        stored_records=stored,
        one_hit_wonders=figures.one_hit_wonders,
        hits_per_stored_byte=sum(hits.values()) / max(1, sum(peaks.values())),
        belady_hit_share=optimum,
        accesses=len(trace),
        accesses_per_s=len(trace) / play.seconds if play.seconds else 0.0,
        requirements=told,
        broken=broken,
        warnings=(*_warnings(play, figures), *untold),
    )


def _warnings(play: Play, figures: Figures) -> tuple[str, ...]:
    return warnings_of(
        play.policy,
        play.trace,
        figures,
        moves=play.moves,
        capacities=play.capacities,
        platform=play.platform,
        eviction=play.eviction,
        base_step_s=play.options.base_step_s,
    )


def _figures(play: Play, hits: Mapping[Tier, int], stored: int, asked: int) -> Figures:
    counts, platform, options = play.state.counts, play.platform, play.options
    lookup = step = None
    if platform is not None:
        seconds = lookup_seconds(play.keys, play.answers, play.reads, platform, blocking=options.blocking)
        lookup, step = Quantiles.of(seconds), Quantiles.of(seconds + (options.base_step_s or 0.0))
    duration_s = play.trace.duration_s
    per_s = _written_bytes(play) / duration_s if duration_s else 0.0
    return Figures(
        hits=hits,
        hits_by_tokens=play.hits_by_tokens,
        lookup_s=lookup,
        step_s=step,
        has_base=options.base_step_s is not None,
        nvme_bytes_per_s=per_s,
        drive_life_years=life_years(None if platform is None else platform.nvme_endurance_bytes, per_s),
        cold_reads=Quantiles.of(play.reads),
        rejected=int(counts[at.REJECTED]),
        inserts=int(np.count_nonzero(play.trace.op == INSERT)),
        one_hit_wonders=1.0 - asked / stored if stored else 0.0,
        stored_records=stored,
        moved=_by_rule(play, rule_at.MOVED),
        refused=_by_rule(play, rule_at.REFUSED),
        suspensions={number: count for number, count in _by_rule(play, rule_at.SUSPENSIONS).items() if count},
    )


def _by_rule(play: Play, column: int) -> dict[int, int]:
    return {
        rule.number: int(play.rules.counts[i, column])
        for i, rule in enumerate(play.moves)
        if rule.action != "keep" and rule.acts
    }


def _written_bytes(play: Play) -> int:
    """Return what the drive has written, with what still waits in the last batch."""
    if Tier.NVME not in play.rooms:
        return 0
    counts = play.state.counts
    if play.options.engine == "lmdb":
        return lmdb_bytes(counts[at.MILLILEAVES] / 1000 + at.leaves_of(play.state))
    changes = int(counts[at.NVME_INSERTS] + counts[at.NVME_REMOVES])
    return slots_bytes(changes, play.record_bytes, play.capacities[Tier.NVME])


def _would_have(play: Play) -> dict[int, int]:
    """Return for each trial rule how many records it would have placed or moved."""
    trials = {
        rule.number: int(play.rules.counts[i, rule_at.WOULD_HAVE]) for i, rule in enumerate(play.moves) if not rule.acts
    }
    decided = play.state.lines[:, at.RULE]
    for index, rule in enumerate(play.policy.rules):
        if not rule.acts:
            taken = matches(rule.meaning, _fixed_facts(play.trace), ()) & (decided > index)
            trials[rule.number] = int(np.count_nonzero(taken))
    return dict(sorted(trials.items()))


def _numbered(policy: Policy) -> tuple[tuple[int, str], ...]:
    placed = tuple((rule.number, rule.text) for rule in policy.rules)
    return placed + tuple((rule.number, rule.text) for rule in policy.moves.rules)


def _scaled(quantiles: Quantiles | None, factor: float) -> Quantiles | None:
    if quantiles is None:
        return None
    return Quantiles(quantiles.p50 * factor, quantiles.p99 * factor, quantiles.most * factor)


def _fixed_facts(trace: Trace) -> FactArrays:
    """Return the facts that `place` may ask for; the others are zeros."""
    none = np.zeros(trace.records, np.uint32)
    bytes_ = np.zeros(trace.records, np.uint8)
    return FactArrays(
        tokens=trace.tokens,
        kind=trace.kind,
        namespace=trace.namespace,
        nbytes=trace.nbytes,
        hits=none,
        idle_s=none,
        age_s=none,
        refs=none,
        accept_percent=bytes_,
    )
