"""The table at the end of a run, from the report's dict: 80 columns, grouped and named as `vllm bench serve` does.

Takes only what `build_report` returns, so that a saved report.json prints the same. Computes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, cast

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from flashnest.report.figures import MISSING, bytes_text, count_text, number_text, share_text
from flashnest.report.model import Json, Section
from flashnest.report.requirements import value_text

_WIDTH: Final = 78
_LABEL_WIDTH: Final = 28
_LATENCIES: Final = {
    "ttft_ms": "TTFT: time to first token",
    "tpot_ms": "TPOT: time per output token",
    "itl_ms": "ITL: gap between commits",
    "e2el_ms": "E2EL: end to end",
}
_NO_DRAFT_WORDS: Final = {
    "no_match": "no match",
    "cap": "no room",
    "not_worth": "not worth it",
    "off": "switched off",
    "cold": "waiting for cold",
}
_PERCENTILES: Final = ("mean", "p50", "p90", "p99")
_COLD_READS: Final = ("queued", "answered", "late", "dropped", "failed")


def render_report(report: Mapping[str, Json]) -> RenderableType:
    """Return the whole report as something rich prints."""
    gap = Text()
    return Group(
        *(_run(report), gap, _throughput(report), gap, _latency(report), gap),
        *(_ngram(report), gap, _drafts(report), gap, _kv(report), gap),
        *(*_requirements(report), _host(report)),
    )


def print_report(report: Mapping[str, Json], console: Console | None = None) -> None:
    """Print the report; to standard output unless a console is given."""
    (console or Console()).print(render_report(report))


def _section(report: Mapping[str, Json], path: str) -> Section:
    section: Json = dict(report)
    for name in path.split("."):
        section = cast(Section, section)[name]
    return cast(Section, section)


def _number(section: Section, name: str) -> float | None:
    value = section[name]
    return float(value) if isinstance(value, int | float) else None


def _pairs(title: str, rows: list[tuple[str, str]]) -> Group:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(width=_LABEL_WIDTH, no_wrap=True)
    table.add_column(max_width=_WIDTH - _LABEL_WIDTH - 1)
    for label, value in rows:
        table.add_row(label, Text(value))
    return Group(Text(title, "bold"), table)


def _columns(first: str, first_width: int, names: tuple[str, ...], width: int) -> Table:
    """Return an empty table whose first column's name is its title."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column(first, width=first_width, no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", min_width=width, no_wrap=True)
    return table


def _run(report: Mapping[str, Json]) -> Group:
    run = _section(report, "run")
    rows = [
        ("Platform", str(run["platform"])),
        ("Model", f"{run['model']} ({run['dtype']})"),
        ("Tiering", str(run["tiering"])),
        ("Compute", str(run["compute"])),
        ("Storage latency", str(run["storage_latency"])),
    ]
    rows += [("Emulated", str(what)) for what in cast(list[Json], run["emulated"])]
    if run["interrupted"]:
        rows.append(("Interrupted", "yes: these figures cover what ran"))
    return _pairs("Run", rows)


def _throughput(report: Mapping[str, Json]) -> Group:
    section = _section(report, "throughput")
    cancelled = _number(section, "requests_cancelled")
    requests = count_text(_number(section, "requests")) + (f" ({count_text(cancelled)} cancelled)" if cancelled else "")
    return _pairs(
        "Throughput",
        [
            ("Requests", requests),
            ("Duration (s)", number_text(_number(section, "duration_s"))),
            ("Input / output tokens", _slash(section, "input_tokens", "output_tokens")),
            ("Requests per second", number_text(_number(section, "requests_per_s"))),
            ("Output tokens per second", number_text(_number(section, "output_tok_per_s"))),
            ("  for each running request", number_text(_number(section, "output_tok_per_s_per_request"))),
            ("Total tokens per second", number_text(_number(section, "total_tok_per_s"))),
            ("Mean running requests", number_text(_number(section, "mean_running"))),
        ],
    )


def _latency(report: Mapping[str, Json]) -> Table:
    table = _columns("Latency (ms)", _LABEL_WIDTH, _PERCENTILES, 9)
    rows = {f"latency.{key}": label for key, label in _LATENCIES.items()} | {"throughput.step_ms": "Engine step"}
    for path, label in rows.items():
        values = _section(report, path)
        table.add_row(label, *(number_text(_number(values, name)) for name in _PERCENTILES))
    return table


def _ngram(report: Mapping[str, Json]) -> Group:
    section = _section(report, "ngram")
    lookup_ns = _section(report, "ngram.lookup_ns")
    rows = [
        ("Lookups / hits", f"{_slash(section, 'lookups', 'hits')} ({share_text(_number(section, 'hit_ratio'))})"),
        ("Lookup ns a key", ", ".join(f"{name} {number_text(_number(lookup_ns, name))}" for name in lookup_ns)),
    ]
    rows += _cold(_section(report, "ngram.cold"))
    table = _columns("Tier", 6, ("records", "fill", "bytes", "budget", "hits", "hit rate"), 10)
    for name, stats in _section(report, "ngram.tiers").items():
        _add_tier(table, name, cast(Section, stats))
    return Group(_pairs("N-gram and chunk table", rows), table, *_moves(section))


def _cold(cold: Section) -> list[tuple[str, str]]:
    if cold["queued"] is None:
        return []
    asked, negative = _number(cold, "filter_query_total"), _number(cold, "filter_negative_total")
    wrong = _number(cold, "filter_false_positive_total")
    reads = ", ".join(f"{name} {count_text(_number(cold, name))}" for name in _COLD_READS)
    engine = f"{cold['engine']}, {cold['io']}" if cold["io"] else str(cold["engine"])
    return [
        ("Cold reads", f"{reads} ({engine})"),
        (
            "Cold filter",
            f"{count_text(asked)} asked, {share_text(_of(negative, asked))} absent, "
            f"{share_text(_of(wrong, asked))} read in vain, {bytes_text(_number(cold, 'filter_bytes'))}",
        ),
    ]


def _moves(section: Section) -> list[RenderableType]:
    """Return the rules that move records, where the policy has any."""
    rules = cast(list[Section], section["moves"])
    if not rules:
        return []
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("Rule", max_width=_WIDTH - 34)
    for name in ("moved", "refused", "ping-pong"):
        table.add_column(name, justify="right", min_width=10, no_wrap=True)
    for rule in rules:
        figures = [count_text(_number(rule, name)) for name in ("moved", "refused", "ping_pongs")]
        if rule["is_trial"]:
            figures = [f"would {count_text(_number(rule, 'would_have'))}", MISSING, MISSING]
        table.add_row(Text(str(rule["rule"])), *figures)
    return [Text(), table]


def _of(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _add_tier(table: Table, name: str, stats: Section) -> None:
    if stats["records"] is None:
        return
    lookups, hits = _number(stats, "lookups"), _number(stats, "hits")
    rate = _of(hits, lookups)
    used, budget = bytes_text(_number(stats, "bytes")), bytes_text(_number(stats, "budget_bytes"))
    fill = share_text(_number(stats, "fill"))
    table.add_row(name, count_text(_number(stats, "records")), fill, used, budget, count_text(hits), share_text(rate))


def _drafts(report: Mapping[str, Json]) -> Group:
    section = _section(report, "drafts")
    rows = [
        ("Drafted / accepted tokens", f"{_slash(section, 'proposed', 'accepted')} ({_share(section, 'accept_ratio')})"),
        ("Acceptance length", number_text(_number(section, "accept_length"))),
        ("Tokens per sequence and step", number_text(_number(section, "tokens_per_step"))),
    ]
    for source, counts in _section(report, "drafts.by_source").items():
        figures = cast(Section, counts)
        rows.append(
            (f"  from {source}", f"{_slash(figures, 'proposed', 'accepted')} ({_share(figures, 'accept_ratio')})")
        )
    rows += _no_draft(_section(report, "drafts.no_draft"))
    return _pairs("Drafts", rows)


def _no_draft(counts: Section) -> list[tuple[str, str]]:
    """Say why sequences got no draft, the most frequent reason first."""
    reasons = sorted(((count, name) for name in counts if (count := _number(counts, name))), reverse=True)
    if not reasons:
        return []
    return [("Without a draft", ", ".join(f"{_NO_DRAFT_WORDS[name]} {count_text(n)}" for n, name in reasons))]


def _kv(report: Mapping[str, Json]) -> Group:
    section = _section(report, "kv")
    reused = f"{_slash(section, 'prompt_tokens', 'reused_tokens')} ({_share(section, 'reuse_ratio')})"
    rows = [
        ("Prompt / reused tokens", reused),
        ("Hash mismatches", count_text(_number(section, "hash_mismatch_total"))),
    ]
    return _pairs("KV reuse", rows)


def _requirements(report: Mapping[str, Json]) -> list[RenderableType]:
    """Return what became of the policy's requirements, where it has any."""
    rules = cast(list[Section], report["requirements"])
    if not rules:
        return []
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("Requirement", max_width=_WIDTH - 34)
    for name in ("measured", "level", "held"):
        table.add_column(name, justify="right", min_width=10, no_wrap=True)
    for rule in rules:
        held = {True: "yes", False: "NO", None: MISSING}[cast("bool | None", rule["held"])]
        measured = value_text(
            str(rule["metric"]), math.inf if rule["held"] and rule["measured"] is None else _number(rule, "measured")
        )
        table.add_row(Text(str(rule["text"])), measured, str(rule["level"]), held)
    return [table, Text()]


def _host(report: Mapping[str, Json]) -> Group:
    host, energy = _section(report, "host"), _section(report, "energy")
    rows = [
        ("Page cache change", bytes_text(_number(host, "page_cache_delta_bytes"))),
        ("Page tables", bytes_text(_number(host, "page_tables_bytes"))),
        ("Disk read / written", f"{_bytes(host, 'disk_read_bytes')} / {_bytes(host, 'disk_write_bytes')}"),
        ("Disk utilisation", _share(host, "disk_util")),
        ("Memory (RSS), peak", f"{_bytes(host, 'rss_bytes')}, {_bytes(host, 'peak_rss_bytes')}"),
    ]
    if energy["joules"] is not None:
        per_1k = number_text(_number(energy, "joules_per_1k_tokens"))
        rows.append(("Energy per 1000 tokens (J)", f"{per_1k} ({energy['source'] or MISSING})"))
    return _pairs("Host", rows)


def _slash(section: Section, first: str, second: str) -> str:
    return f"{count_text(_number(section, first))} / {count_text(_number(section, second))}"


def _share(section: Section, name: str) -> str:
    return share_text(_number(section, name))


def _bytes(section: Section, name: str) -> str:
    return bytes_text(_number(section, name))
