"""A plausible run whose figures are known by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashnest.record import Tier
from flashnest.report.model import ColdFigures, MoveFigures, ReportInput
from flashnest.storage.store import StoreStats
from flashnest.telemetry.host import HostChange
from flashnest.telemetry.machine import Machine
from flashnest.telemetry.metrics import CANCELLED, RunMetrics, Step


def _metrics() -> RunMetrics:
    metrics = RunMetrics()
    metrics.start(100.0)
    for i in range(4):
        metrics.step(
            Step(0.5, 0.4, running=4, decoding=4, forward_tokens=12, committed=8, drafts=2, drafted=8, accepted=4)
        )
        metrics.lookup(duration_s=1e-6, keys=16, queries=4, hits=3)
        metrics.draft_source("dram", 1, 6, 4)
        metrics.draft_source("own_text", 1, 2, 0)
        times_s = [100.5 + 0.1 * i, 101.0 + 0.1 * i, 101.5 + 0.1 * i]
        metrics.request(
            arrived_s=100.0 + 0.1 * i,
            token_times_s=times_s,
            prompt_tokens=100,
            reused_tokens=64,
            finish=CANCELLED if i == 3 else "length",
        )
    metrics.no_draft.update(no_match=3, not_worth=5)
    metrics.stop(102.0)
    return metrics


@pytest.fixture
def given() -> ReportInput:
    """An emulated run on dgx_spark with two tiers."""
    return ReportInput(
        config={"seed": 7, "platform": {"name": "dgx_spark"}},
        platform="dgx_spark",
        tiering="hotcold",
        model="qwen3_8b",
        compute="emulated",
        dtype="w8a8",
        emulated=("forward pass: replays a reference text and takes the roofline's time of dgx_spark",),
        command=("flashnest", "+platform=dgx_spark", "report.path=my report.json"),
        started_at="2026-12-01T00:00:00+00:00",
        interrupted=False,
        machine=Machine("A CPU", 2, 25 << 30, "6.1", "Linux x86_64"),
        versions={"python": "3.11.7", "flashnest": "0.1.0"},
        commit="0123456789ab",
        workload={"source": "built-in", "measured_repeat_share": 0.49},
        metrics=_metrics(),
        tiers={
            Tier.DRAM: StoreStats(12_345_678, 7 << 30, 14 << 30, 1000, 423, 9, 8, 7, 6, 5, 0.5),
            Tier.NVME: StoreStats(456, 1 << 20, 64 << 30, 577, 12, 4, 3, 2, 1, 0, 0.25),
        },
        cold=ColdFigures(
            queued=577,
            answered=560,
            late=12,
            dropped=5,
            filter_query_total=9000,
            filter_negative_total=8400,
            filter_false_positive_total=23,
            filter_bytes=1 << 20,
            bytes_written=4096,
            engine="slots",
            io="io_uring",
        ),
        moves=(MoveFigures("promote hits >= 3 from nvme to dram at most 2000 rec/s", "promote", 41, 2952, 2, 1, 0),),
        host=HostChange(-(3 << 20), 2 << 20, 4096, 8192, 0.25, 1 << 30, 2 << 30),
        hash_mismatches=0,
    )


@pytest.fixture
def bare(given: ReportInput) -> ReportInput:
    """A run that ended before anything happened, on a host that tells nothing."""
    return replace(
        given,
        metrics=RunMetrics(),
        tiers={},
        cold=None,
        host=HostChange(None, None, None, None, None, None, None),
        hash_mismatches=None,
        interrupted=True,
        emulated=(),
        commit=None,
    )
