"""Every report has every key of design.md 9, with figures computed by hand, and null where nothing is known."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from flashnest.report.keys import REPORT_KEYS
from flashnest.report.model import EnergyFigures, Json, ReportInput, build_report

FREE_FORM = (
    "run.config",
    "run.workload",
    "run.versions",
    "run.machine",
    "throughput.finish_reasons",
    "drafts.by_source",
)
"""Sections whose inner keys depend on the run."""

DESIGN_KEYS = (
    *("run", "throughput", "latency", "ngram", "drafts", "kv", "host", "energy"),
    *("run.config", "run.platform", "run.compute", "run.storage_latency", "run.versions", "run.machine", "run.command"),
    *("run.commit", "run.interrupted", "run.emulated"),
    *(f"latency.{m}.{p}" for m in ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms") for p in ("mean", "p50", "p90", "p99")),
    *("ngram.lookup_ns.mean", "ngram.lookup_ns.p50", "ngram.lookup_ns.p99", "ngram.hit_ratio"),
    *(f"ngram.tiers.{t}.{k}" for t in ("vram", "dram", "nvme") for k in ("records", "bytes", "hits")),
    *("ngram.cold.queued", "ngram.cold.late", "ngram.cold.dropped"),
    *("drafts.proposed", "drafts.accepted", "drafts.accept_length", "kv.reused_tokens", "kv.reuse_ratio"),
    *("host.page_cache_delta_bytes", "host.page_tables_bytes", "host.disk_read_bytes", "host.disk_write_bytes"),
    "host.disk_util",
)
"""The names of design.md 9, spelt out once more: REPORT_KEYS must not drift from them."""


def _at(report: Mapping[str, Json], path: str) -> Json:
    value: Json = dict(report)
    for name in path.split("."):
        assert isinstance(value, dict)
        value = value[name]
    return value


def _leaves(value: Json, path: str = "") -> Iterator[str]:
    if isinstance(value, dict) and path not in FREE_FORM:
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    else:
        yield path


@pytest.mark.parametrize("which", ["given", "bare"])
def test_every_report_has_exactly_the_promised_keys(which: str, request: pytest.FixtureRequest) -> None:
    report = build_report(request.getfixturevalue(which))
    assert sorted(_leaves(report)) == sorted(REPORT_KEYS)
    for path in DESIGN_KEYS:
        _at(report, path)


@pytest.mark.parametrize("which", ["given", "bare"])
def test_every_report_is_plain_json(which: str, request: pytest.FixtureRequest) -> None:
    report = build_report(request.getfixturevalue(which))
    assert json.loads(json.dumps(report, allow_nan=False)) == report


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("run.compute", "emulated"),
        ("run.storage_latency", "real"),
        ("run.command", "flashnest +platform=dgx_spark 'report.path=my report.json'"),
        ("run.machine.cores", 2),
        ("throughput.duration_s", 2.0),
        ("throughput.requests", 4),
        ("throughput.requests_cancelled", 1),
        ("throughput.finish_reasons", {"cancelled": 1, "length": 3}),
        ("throughput.requests_per_s", 1.5),
        ("throughput.input_tokens", 400),
        ("throughput.output_tokens", 32),
        ("throughput.output_tok_per_s", 16.0),
        ("throughput.total_tok_per_s", 216.0),
        ("throughput.output_tok_per_s_per_request", 4.0),
        ("throughput.step_ms.p50", 500.0),
        ("ngram.hit_ratio", 0.75),
        ("ngram.lookup_ns.mean", 62.5),
        ("ngram.tiers.dram.records", 12_345_678),
        ("ngram.tiers.dram.budget_bytes", 14 << 30),
        ("ngram.tiers.nvme.hits", 12),
        ("ngram.tiers.vram.records", None),
        ("ngram.cold.late", 12),
        ("drafts.proposed", 32),
        ("drafts.accepted", 16),
        ("drafts.accept_ratio", 0.5),
        ("drafts.accept_length", 3.0),
        ("drafts.tokens_per_step", 2.0),
        ("drafts.by_source.own_text.accepted", 0),
        ("drafts.no_draft.no_match", 3),
        ("drafts.no_draft.off", 0),
        ("drafts.by_source.dram.accept_length", 5.0),
        ("kv.reused_tokens", 256),
        ("kv.reuse_ratio", 0.64),
        ("kv.hash_mismatch_total", 0),
        ("host.disk_util", 0.25),
        ("energy.joules", None),
    ],
)
def test_figure(given: ReportInput, path: str, expected: Json) -> None:
    value = _at(build_report(given), path)
    assert value == (pytest.approx(expected) if isinstance(expected, float) else expected)


def test_latencies_leave_cancelled_requests_out(given: ReportInput) -> None:
    latency = build_report(given)["latency"]
    assert isinstance(latency, dict)
    assert _at(latency, "ttft_ms.mean") == pytest.approx(500)
    assert _at(latency, "e2el_ms.p99") == pytest.approx(1500)
    assert _at(latency, "tpot_ms.mean") == pytest.approx(500)


def test_nothing_measured_is_null_never_zero_or_invented(bare: ReportInput) -> None:
    report = build_report(bare)
    for path in REPORT_KEYS:
        if path.startswith(
            (
                "latency.",
                "ngram.tiers.",
                "ngram.cold.",
                "ngram.lookup_ns",
                "ngram.lookup_step_us",
                "ngram.hits_by_tier",
                "host.",
                "energy.",
            )
        ):
            assert _at(report, path) is None, path
    for path in (
        "throughput.output_tok_per_s",
        "drafts.accept_length",
        "kv.reuse_ratio",
        "ngram.hit_ratio",
        "run.commit",
    ):
        assert _at(report, path) is None, path
    assert _at(report, "run.interrupted") is True


def test_energy_is_told_per_1000_output_tokens_with_its_source(given: ReportInput) -> None:
    report = build_report(replace(given, energy=EnergyFigures(160.0, "nvml: GPU 0")))
    assert _at(report, "energy.joules_per_1k_tokens") == pytest.approx(5000)
    assert _at(report, "energy.source") == "nvml: GPU 0"
