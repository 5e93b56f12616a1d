"""The report of a run as one JSON-ready dict with the keys of design.md 9. A number that is not known is null.

`keys.REPORT_KEYS` is the promise: every report has them all, whatever the run did. Prints and writes nothing.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Final, TypeAlias

from flashnest.record import Tier
from flashnest.report.requirements import RequirementFigures
from flashnest.storage.store import StoreStats
from flashnest.telemetry.host import HostChange
from flashnest.telemetry.machine import Machine
from flashnest.telemetry.metrics import CANCELLED, Distribution, DraftCounts, RunMetrics

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Section: TypeAlias = dict[str, Json]

PERCENTILES: Final = ("mean", "p50", "p90", "p99")
_TIER_STATE: Final = ("records", "bytes", "budget_bytes", "fill")
_TIER_COUNTERS: Final = ("lookups", "hits", "inserts", "updates", "removes", "rejected", "evicted")
TIER_KEYS: Final = (*_TIER_STATE, *_TIER_COUNTERS)
NO_DRAFT_REASONS: Final = ("no_match", "cap", "not_worth", "off", "cold")
"""Why a sequence got new tokens without a draft; docs/governor.md says what each means."""


@dataclass(frozen=True, slots=True)
class ColdFigures:
    """The cold tier since it was opened.

    Reads, in keys: asked of NVMe, answered in time, answered late, given up, failed. The filter in front: keys asked,
    refused, let through in vain, its bytes. `engine` and `io` say what reads the drive; bytes_written: records' own;
    disk_bytes: what the drive was sent for them; batches: writes.
    """

    queued: int
    answered: int
    late: int
    dropped: int
    failed: int = 0
    filter_query_total: int = 0
    filter_negative_total: int = 0
    filter_false_positive_total: int = 0
    filter_bytes: int = 0
    bytes_written: int = 0
    disk_bytes: int = 0
    batches: int = 0
    engine: str = ""
    io: str = ""


COLD_KEYS: Final = tuple(field.name for field in fields(ColdFigures))


@dataclass(frozen=True, slots=True)
class MoveFigures:
    """What one rule of the policy moved: records and their bytes; refused: there was no room where they should go.

    ping_pongs: moves of records that had just come the other way; suspensions: times the rule was stopped for that.
    is_trial: it only counts the records that it would have moved, each once.
    """

    rule: str
    action: str
    moved: int
    bytes: int
    refused: int
    ping_pongs: int
    suspensions: int
    is_trial: bool = False
    would_have: int = 0


@dataclass(frozen=True, slots=True)
class EnergyFigures:
    """Energy of the measured span and who said so, such as "nvml: GPU 0". Only what was measured, never a sheet."""

    joules: float
    source: str


@dataclass(frozen=True, slots=True)
class ReportInput:
    """Everything a report is made of.

    config: the whole run configuration, JSON-ready; compute: the back end's name; emulated: one sentence for each part
    that is emulated, empty where nothing is; storage_latency: "real" or "modelled"; command: argv; started_at: ISO
    8601; workload: what the prompts are and their measured shares; tiers: figures of the open tiers; cold: None without
    a cold tier; moves: one for each rule that moves records; requirements: one for each `require`; hash_mismatches: KV
    hits refused by comparing tokens.
    """

    config: Mapping[str, Json]
    platform: str
    tiering: str
    model: str
    compute: str
    dtype: str
    emulated: tuple[str, ...]
    command: tuple[str, ...]
    started_at: str
    interrupted: bool
    machine: Machine
    versions: Mapping[str, str]
    commit: str | None
    workload: Mapping[str, Json]
    metrics: RunMetrics
    tiers: Mapping[Tier, StoreStats]
    cold: ColdFigures | None
    host: HostChange
    hash_mismatches: int | None = None
    moves: tuple[MoveFigures, ...] = ()
    requirements: tuple[RequirementFigures, ...] = ()
    storage_latency: str = "real"
    energy: EnergyFigures | None = None


def build_report(given: ReportInput) -> Section:
    """Return the report: the sections run, throughput, latency, ngram, drafts, kv, requirements, host, energy."""
    return {
        "run": _run(given),
        "throughput": _throughput(given.metrics),
        "latency": {name: _distribution(values) for name, values in given.metrics.latencies_ms().items()},
        "ngram": _ngram(given),
        "drafts": _drafts(given.metrics),
        "kv": _kv(given),
        "requirements": [_requirement(requirement) for requirement in given.requirements],
        "host": dict(asdict(given.host)),
        "energy": _energy(given),
    }


def _run(given: ReportInput) -> Section:
    return {
        "platform": given.platform,
        "tiering": given.tiering,
        "model": given.model,
        "compute": given.compute,
        "dtype": given.dtype,
        "emulated": list(given.emulated),
        "storage_latency": given.storage_latency,
        "workload": dict(given.workload),
        "interrupted": given.interrupted,
        "started_at": given.started_at,
        "command": shlex.join(given.command),
        "commit": given.commit,
        "versions": dict(given.versions),
        "machine": dict(asdict(given.machine)),
        "config": dict(given.config),
    }


def _throughput(metrics: RunMetrics) -> Section:
    duration_s = metrics.duration_s()
    running = metrics.mean_running()
    output_per_s = _ratio(metrics.committed, duration_s)
    return {
        "duration_s": duration_s,
        "requests": metrics.requests_done,
        "requests_cancelled": metrics.finishes[CANCELLED],
        "requests_warmup": metrics.warmup_requests,
        "finish_reasons": dict(sorted(metrics.finishes.items())),
        "input_tokens": metrics.prompt_tokens,
        "output_tokens": metrics.committed,
        "requests_per_s": _ratio(metrics.requests_done - metrics.finishes[CANCELLED], duration_s),
        "output_tok_per_s": output_per_s,
        "total_tok_per_s": _ratio(metrics.prompt_tokens + metrics.committed, duration_s),
        "output_tok_per_s_per_request": output_per_s / running if output_per_s is not None and running else None,
        "mean_running": running,
        "steps": metrics.steps,
        "step_ms": _distribution(metrics.steps_ms()),
        "forward_s": metrics.forward_s,
        "forward_tokens": metrics.forward_tokens,
    }


def _ngram(given: ReportInput) -> Section:
    lookups = given.metrics.lookups()
    lookup_ns: Section = {"mean": lookups.mean_ns, "p50": lookups.p50_ns, "p99": lookups.p99_ns}
    cold: Section = dict.fromkeys(COLD_KEYS)
    if given.cold is not None:
        cold = dict(asdict(given.cold))
    return {
        "lookup_ns": lookup_ns,
        "lookup_step_us": _scaled(given.metrics.lookup_steps_s(), 1e6),
        "lookups": lookups.queries,
        "hits": lookups.hits,
        "hit_ratio": lookups.hit_ratio,
        "hits_by_tier": _tier_hits(given.metrics),
        "keys": lookups.keys,
        "tiers": {tier.name.lower(): _tier(given.tiers.get(tier)) for tier in Tier},
        "cold": cold,
        "moves": [dict(asdict(rule)) for rule in given.moves],
        "sweep_s": given.metrics.sweep_s,
        "sweep_max_ms": given.metrics.sweep_max_s * 1e3,
    }


def _tier_hits(metrics: RunMetrics) -> Section:
    """Return how many questions each tier answered: a question has several keys and one answer."""
    hits = dict(enumerate(metrics.tier_hits))
    return {tier.name.lower(): hits.get(tier) for tier in Tier}


def _requirement(figures: RequirementFigures) -> Section:
    """Return a requirement as it was kept; a value without end is null."""
    section: Section = dict(asdict(figures))
    if figures.measured is not None and not math.isfinite(figures.measured):
        section["measured"] = None
    return section


def _scaled(values: Distribution | None, factor: float) -> Section:
    if values is None:
        return dict.fromkeys(PERCENTILES)
    return {name: factor * value for name, value in asdict(values).items()}


def _tier(stats: StoreStats | None) -> Section:
    """Return one tier's figures: all null for a tier that is not open."""
    if stats is None:
        return dict.fromkeys(TIER_KEYS)
    counters: Section = {name: getattr(stats, name) for name in _TIER_COUNTERS}
    return {
        "records": stats.records,
        "bytes": stats.bytes_used,
        "budget_bytes": stats.bytes_budget,
        "fill": stats.fill,
        **counters,
    }


def _drafts(metrics: RunMetrics) -> Section:
    by_source: Section = {name: dict(_counts(counts)) for name, counts in sorted(metrics.drafts_by_source.items())}
    return {
        **_counts(metrics.drafts),
        "tokens_per_step": _ratio(metrics.committed, metrics.decoding),
        "by_source": by_source,
        "no_draft": {reason: metrics.no_draft[reason] for reason in NO_DRAFT_REASONS},
    }


def _counts(counts: DraftCounts) -> Section:
    """Return drafts in vLLM's terms: acceptance length = 1 + accepted / drafts, the model's own token included."""
    accepted_per_draft = _ratio(counts.accepted, counts.drafts)
    return {
        "drafts": counts.drafts,
        "proposed": counts.drafted,
        "accepted": counts.accepted,
        "accept_ratio": _ratio(counts.accepted, counts.drafted),
        "accept_length": None if accepted_per_draft is None else 1 + accepted_per_draft,
    }


def _kv(given: ReportInput) -> Section:
    metrics = given.metrics
    return {
        "prompt_tokens": metrics.prompt_tokens,
        "reused_tokens": metrics.reused_tokens,
        "reuse_ratio": _ratio(metrics.reused_tokens, metrics.prompt_tokens),
        "hash_mismatch_total": given.hash_mismatches,
    }


def _energy(given: ReportInput) -> Section:
    energy, tokens = given.energy, given.metrics.committed
    if energy is None:
        return {"joules": None, "joules_per_1k_tokens": None, "source": None}
    return {
        "joules": energy.joules,
        "joules_per_1k_tokens": _ratio(1000 * energy.joules, tokens),
        "source": energy.source,
    }


def _distribution(values: Distribution | None) -> Section:
    return dict.fromkeys(PERCENTILES) if values is None else dict(asdict(values))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
