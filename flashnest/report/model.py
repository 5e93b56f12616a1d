"""The report of a run as one JSON-ready dict with the keys of design.md 9. A number that is not known is null.

`REPORT_KEYS` is the promise: every report has them all, whatever the run did. Prints and writes nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final, TypeAlias

from flashnest.record import Tier
from flashnest.storage.store import StoreStats
from flashnest.telemetry.host import HostChange
from flashnest.telemetry.machine import Machine
from flashnest.telemetry.metrics import CANCELLED, Distribution, DraftCounts, RunMetrics

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Section: TypeAlias = dict[str, Json]

_PERCENTILES: Final = ("mean", "p50", "p90", "p99")
_TIER_STATE: Final = ("records", "bytes", "budget_bytes", "fill")
_TIER_COUNTERS: Final = ("lookups", "hits", "inserts", "updates", "removes", "rejected", "evicted")


@dataclass(frozen=True, slots=True)
class ColdFigures:
    """The cold tier since it was opened.

    Reads, in keys: asked of NVMe, answered in time, answered late, given up, failed. The filter in front: keys asked,
    refused, let through in vain, its bytes. `engine` and `io` say what reads the drive; bytes_written: records' own.
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
    engine: str = ""
    io: str = ""


@dataclass(frozen=True, slots=True)
class MoveFigures:
    """What one rule of the policy moved: records and their bytes; refused: there was no room where they should go.

    ping_pongs: moves of records that had just come the other way; suspensions: times the rule was stopped for that.
    """

    rule: str
    action: str
    moved: int
    bytes: int
    refused: int
    ping_pongs: int
    suspensions: int


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
    a cold tier; moves: one for each rule that moves records; hash_mismatches: KV hits refused by comparing tokens.
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
    storage_latency: str = "real"
    energy: EnergyFigures | None = None


def build_report(given: ReportInput) -> Section:
    """Return the report: the sections run, throughput, latency, ngram, drafts, kv, host, energy."""
    return {
        "run": _run(given),
        "throughput": _throughput(given.metrics),
        "latency": {name: _distribution(values) for name, values in given.metrics.latencies_ms().items()},
        "ngram": _ngram(given),
        "drafts": _drafts(given.metrics),
        "kv": _kv(given),
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
    cold: Section = dict.fromkeys(ColdFigures.__slots__)
    if given.cold is not None:
        cold = dict(asdict(given.cold))
    return {
        "lookup_ns": lookup_ns,
        "lookups": lookups.queries,
        "hits": lookups.hits,
        "hit_ratio": lookups.hit_ratio,
        "keys": lookups.keys,
        "tiers": {tier.name.lower(): _tier(given.tiers.get(tier)) for tier in Tier},
        "cold": cold,
        "moves": [dict(asdict(rule)) for rule in given.moves],
        "sweep_s": given.metrics.sweep_s,
        "sweep_max_ms": given.metrics.sweep_max_s * 1e3,
    }


def _tier(stats: StoreStats | None) -> Section:
    """Return one tier's figures: all null for a tier that is not open."""
    if stats is None:
        return dict.fromkeys((*_TIER_STATE, *_TIER_COUNTERS))
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
    return dict.fromkeys(_PERCENTILES) if values is None else dict(asdict(values))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _under(section: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for name in names)


_RUN_KEYS: Final = (
    *("platform", "tiering", "model", "compute", "dtype", "emulated", "storage_latency", "workload", "interrupted"),
    *("started_at", "command", "commit", "versions", "machine", "config"),
)
_THROUGHPUT_KEYS: Final = (
    *("duration_s", "requests", "requests_cancelled", "requests_warmup", "finish_reasons", "input_tokens"),
    *("output_tokens", "requests_per_s", "output_tok_per_s", "total_tok_per_s", "output_tok_per_s_per_request"),
    *("mean_running", "steps", *_under("step_ms", _PERCENTILES), "forward_s", "forward_tokens"),
)
_NGRAM_KEYS: Final = (
    *_under("lookup_ns", ("mean", "p50", "p99")),
    *("lookups", "hits", "hit_ratio", "keys"),
    *(f"tiers.{t}.{k}" for t in ("vram", "dram", "nvme") for k in (*_TIER_STATE, *_TIER_COUNTERS)),
    *_under("cold", tuple(ColdFigures.__slots__)),
    *("moves", "sweep_s", "sweep_max_ms"),
)
_HOST_KEYS: Final = (
    *("page_cache_delta_bytes", "page_tables_bytes", "disk_read_bytes", "disk_write_bytes", "disk_util"),
    *("rss_bytes", "peak_rss_bytes"),
)

REPORT_KEYS: Final[tuple[str, ...]] = (
    *_under("run", _RUN_KEYS),
    *_under("throughput", _THROUGHPUT_KEYS),
    *(f"latency.{name}.{p}" for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms") for p in _PERCENTILES),
    *_under("ngram", _NGRAM_KEYS),
    *_under(
        "drafts", ("drafts", "proposed", "accepted", "accept_ratio", "accept_length", "tokens_per_step", "by_source")
    ),
    *_under("kv", ("prompt_tokens", "reused_tokens", "reuse_ratio", "hash_mismatch_total")),
    *_under("host", _HOST_KEYS),
    *_under("energy", ("joules", "joules_per_1k_tokens", "source")),
)
"""Dotted paths that every report has. Adding one is fine; removing or renaming one breaks readers of report.json."""
