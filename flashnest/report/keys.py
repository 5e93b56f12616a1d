"""The dotted paths that every report.json has: what readers of it may count on. Builds no report."""

from __future__ import annotations

from typing import Final

from flashnest.report.model import COLD_KEYS, NO_DRAFT_REASONS, PERCENTILES, TIER_KEYS


def _under(section: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for name in names)


_RUN_KEYS: Final = (
    *("platform", "tiering", "model", "compute", "dtype", "emulated", "storage_latency", "workload", "interrupted"),
    *("started_at", "command", "commit", "versions", "machine", "config"),
)
_THROUGHPUT_KEYS: Final = (
    *("duration_s", "requests", "requests_cancelled", "requests_warmup", "finish_reasons", "input_tokens"),
    *("output_tokens", "requests_per_s", "output_tok_per_s", "total_tok_per_s", "output_tok_per_s_per_request"),
    *("mean_running", "steps", *_under("step_ms", PERCENTILES), "forward_s", "forward_tokens"),
)
_NGRAM_KEYS: Final = (
    *_under("lookup_ns", ("mean", "p50", "p99")),
    *_under("lookup_step_us", PERCENTILES),
    *("lookups", "hits", "hit_ratio", *_under("hits_by_tier", ("vram", "dram", "nvme")), "keys"),
    *(f"tiers.{t}.{k}" for t in ("vram", "dram", "nvme") for k in TIER_KEYS),
    *_under("cold", COLD_KEYS),
    *("moves", "sweep_s", "sweep_max_ms"),
)
_DRAFT_KEYS: Final = (
    *("drafts", "proposed", "accepted", "accept_ratio", "accept_length", "tokens_per_step", "by_source"),
    *_under("no_draft", NO_DRAFT_REASONS),
)
_HOST_KEYS: Final = (
    *("page_cache_delta_bytes", "page_tables_bytes", "disk_read_bytes", "disk_write_bytes", "disk_util"),
    *("rss_bytes", "peak_rss_bytes"),
)

REPORT_KEYS: Final[tuple[str, ...]] = (
    *_under("run", _RUN_KEYS),
    *_under("throughput", _THROUGHPUT_KEYS),
    *(f"latency.{name}.{p}" for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms") for p in PERCENTILES),
    *_under("ngram", _NGRAM_KEYS),
    *_under("drafts", _DRAFT_KEYS),
    *_under("kv", ("prompt_tokens", "reused_tokens", "reuse_ratio", "hash_mismatch_total")),
    "requirements",
    *_under("host", _HOST_KEYS),
    *_under("energy", ("joules", "joules_per_1k_tokens", "source")),
)
"""Dotted paths that every report has. Adding one is fine; removing or renaming one breaks readers of report.json."""
