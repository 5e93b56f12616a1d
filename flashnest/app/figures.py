"""Translates what engine and tiers say into what telemetry and reports take. Decides and prints nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flashnest.app.build import App
from flashnest.record import Tier
from flashnest.report.model import ColdFigures, MoveFigures
from flashnest.runtime.drafts import SOURCE_OF_TIER, Source
from flashnest.runtime.events import StepEvent
from flashnest.runtime.governor import NoDraft
from flashnest.storage.router import Router
from flashnest.storage.store import StoreStats
from flashnest.telemetry.metrics import RunMetrics, Step
from flashnest.telemetry.snapshot import Snapshot, TierFill

SOURCE_NAMES: Final = {source: source.name.lower() for source in SOURCE_OF_TIER.values()} | {
    Source.OWN: "own_text",
    Source.RECENT: "recent",
}

NO_DRAFT_NAMES: Final = tuple(reason.name.lower() for reason in NoDraft)


def feed(metrics: RunMetrics, event: StepEvent) -> None:
    """Give one step's event to the metrics."""
    drafts, drafted, accepted = (int(n) for n in event.drafts.sum(axis=0))
    if event.forward_tokens:
        metrics.step(
            Step(
                duration_s=event.duration_s,
                forward_s=event.forward_s,
                running=event.running,
                decoding=event.scored,
                forward_tokens=event.forward_tokens,
                committed=event.committed,
                drafts=drafts,
                drafted=drafted,
                accepted=accepted,
                sweep_s=event.sweep_s,
            )
        )
    for source, name in SOURCE_NAMES.items():
        if event.drafts[source].any():
            metrics.draft_source(name, *(int(n) for n in event.drafts[source]))
    for reason, count in zip(NO_DRAFT_NAMES, event.no_draft.tolist(), strict=True):
        metrics.no_draft[reason] += count
    lookups = event.lookups
    metrics.lookup(
        duration_s=lookups.ns * 1e-9,
        keys=lookups.keys,
        queries=lookups.queries,
        hits=lookups.hits,
        tier_hits=lookups.tier_hits,
    )
    for request in event.finished:
        metrics.request(
            arrived_s=request.arrived_s,
            token_times_s=request.token_times_s,
            prompt_tokens=request.prompt_length,
            reused_tokens=request.reused_tokens,
            finish=request.finish.value if request.finish is not None else "",
        )


def tier_stats(router: Router, open_tiers: tuple[str, ...]) -> Mapping[Tier, StoreStats]:
    """Return the figures of the tiers that the run names."""
    return {tier: stats for tier, stats in router.stats().tiers.items() if tier.name.lower() in open_tiers}


def cold_figures(app: App) -> ColdFigures | None:
    """Return the cold tier's counters; None without one."""
    cold = app.router.stats().cold
    if cold is None:
        return None
    engine, io = app.nvme_reader
    return ColdFigures(
        queued=cold.queued,
        answered=cold.answered,
        late=cold.late,
        dropped=cold.dropped,
        failed=cold.errors,
        filter_query_total=cold.filter_queries,
        filter_negative_total=cold.filter_negative,
        filter_false_positive_total=cold.filter_false_positive,
        filter_bytes=cold.filter_bytes,
        bytes_written=cold.bytes_written,
        disk_bytes=cold.disk_bytes,
        batches=cold.batches,
        engine=engine,
        io=io,
    )


def move_figures(router: Router) -> tuple[MoveFigures, ...]:
    """Return what each rule that moves records did."""
    return tuple(
        MoveFigures(
            r.text, r.action, r.moved, r.nbytes, r.refused, r.ping_pongs, r.suspensions, r.is_trial, r.would_have
        )
        for r in router.stats().moves
    )


def snapshot(app: App, metrics: RunMetrics, now_s: float, event: StepEvent) -> Snapshot:
    """Return this moment for the live display."""
    tiers = tier_stats(app.router, app.open_tiers)
    return Snapshot(
        elapsed_s=metrics.duration_s(now_s),
        phase="running",
        requests_done=metrics.requests_done,
        requests_running=event.running,
        requests_waiting=event.waiting,
        requests_total=len(app.prompts),
        prompt_tokens=metrics.prompt_tokens,
        reused_tokens=metrics.reused_tokens,
        output_tokens=metrics.committed,
        drafts=metrics.drafts.drafts,
        drafted=metrics.drafts.drafted,
        accepted=metrics.drafts.accepted,
        tiers=tuple(
            TierFill(tier.name.lower(), s.records, s.fill, s.bytes_budget, s.lookups, s.hits)
            for tier, s in sorted(tiers.items())
        ),
    )
