"""Requests, steps and lookups sum up to hand-computed figures in vllm bench serve's terms."""

from __future__ import annotations

import numpy as np
import pytest

from flashnest.telemetry.metrics import CANCELLED, Distribution, DraftCounts, RunMetrics, Step
from flashnest.telemetry.snapshot import Snapshot, TierFill


def _started() -> RunMetrics:
    metrics = RunMetrics()
    metrics.start(10.0)
    return metrics


def _finish(metrics: RunMetrics, arrived_s: float, times_s: list[float], finish: str = "length") -> None:
    metrics.request(arrived_s=arrived_s, token_times_s=times_s, prompt_tokens=100, reused_tokens=32, finish=finish)


def _mean_ms(metrics: RunMetrics, name: str) -> float:
    values = metrics.latencies_ms()[name]
    assert values is not None
    return values.mean


def test_distribution_agrees_with_numpy() -> None:
    samples = np.random.default_rng(1).exponential(size=501)
    found = Distribution.of(samples.tolist())
    assert found is not None
    assert found.mean == pytest.approx(samples.mean())
    assert [found.p50, found.p90, found.p99] == pytest.approx(np.percentile(samples, [50, 90, 99]).tolist())


def test_distribution_of_nothing_is_none() -> None:
    assert Distribution.of([]) is None


def test_latencies_of_one_request() -> None:
    metrics = _started()
    _finish(metrics, 10.0, [10.5, 10.6, 10.8, 11.1])
    assert _mean_ms(metrics, "ttft_ms") == pytest.approx(500)
    assert _mean_ms(metrics, "e2el_ms") == pytest.approx(1100)
    assert _mean_ms(metrics, "tpot_ms") == pytest.approx(200)
    assert _mean_ms(metrics, "itl_ms") == pytest.approx(200)


def test_tokens_of_one_draft_make_one_gap() -> None:
    """Three tokens committed at once: ITL is the gap between the two commits, TPOT spreads it over the tokens."""
    metrics = _started()
    _finish(metrics, 10.0, [10.5, 10.7, 10.7, 10.7])
    assert _mean_ms(metrics, "itl_ms") == pytest.approx(200)
    assert _mean_ms(metrics, "tpot_ms") == pytest.approx(200 / 3)


def test_single_token_has_no_tpot_and_no_token_no_latency() -> None:
    metrics = _started()
    _finish(metrics, 10.0, [10.5])
    _finish(metrics, 10.0, [])
    found = metrics.latencies_ms()
    assert found["tpot_ms"] is None
    assert found["itl_ms"] is None
    assert _mean_ms(metrics, "ttft_ms") == pytest.approx(500)
    assert metrics.requests_done == 2


def test_cancelled_request_counts_but_gives_no_latency() -> None:
    metrics = _started()
    _finish(metrics, 10.0, [10.5, 10.6], CANCELLED)
    assert metrics.latencies_ms()["ttft_ms"] is None
    assert metrics.finishes == {CANCELLED: 1}
    assert metrics.prompt_tokens == 100


def test_warm_up_is_counted_apart() -> None:
    metrics = RunMetrics()
    _finish(metrics, 1.0, [2.0])
    metrics.step(Step(1.0, 0.9, 4, 4, 4, 4, 1, 2, 1))
    metrics.draft_source("dram", 1, 2, 1)
    metrics.lookup(duration_s=1.0, keys=4, queries=1, hits=1)
    metrics.start(10.0)
    _finish(metrics, 9.0, [11.0])  # arrived before the start, ends after it
    _finish(metrics, 10.5, [11.0])
    assert metrics.warmup_requests == 2
    assert metrics.requests_done == 1
    assert metrics.committed == metrics.steps == metrics.drafts.drafted == 0
    assert metrics.drafts_by_source == {}
    assert not metrics.no_draft
    assert metrics.lookups().queries == 0
    assert _mean_ms(metrics, "ttft_ms") == pytest.approx(500)


def test_duration_runs_until_stopped() -> None:
    metrics = RunMetrics()
    assert metrics.duration_s(5.0) == 0.0
    metrics.start(10.0)
    assert metrics.duration_s() == 0.0
    assert metrics.duration_s(12.0) == 2.0
    metrics.stop(13.0)
    assert metrics.duration_s(99.0) == 3.0


def test_steps_sum_up() -> None:
    metrics = _started()
    metrics.step(Step(duration_s=0.01, forward_s=0.008, running=4, decoding=4, forward_tokens=10, committed=6))
    metrics.step(Step(0.03, 0.02, 8, 6, 20, 9, drafts=3, drafted=12, accepted=3))
    assert metrics.steps == 2
    assert metrics.committed == 15
    assert metrics.decoding == 10
    assert metrics.forward_tokens == 30
    assert metrics.forward_s == pytest.approx(0.028)
    assert metrics.drafts == DraftCounts(3, 12, 3)
    assert metrics.mean_running() == pytest.approx((4 * 0.01 + 8 * 0.03) / 0.04)
    steps_ms = metrics.steps_ms()
    assert steps_ms is not None
    assert steps_ms.mean == pytest.approx(20)


def test_no_step_has_no_mean() -> None:
    assert _started().mean_running() is None
    assert _started().steps_ms() is None


def test_draft_sources_add_up() -> None:
    metrics = _started()
    metrics.draft_source("dram", 2, 8, 4)
    metrics.draft_source("nvme", 1, 4, 0)
    metrics.draft_source("dram", 1, 4, 4)
    assert metrics.drafts_by_source == {"dram": DraftCounts(3, 12, 8), "nvme": DraftCounts(1, 4, 0)}


def test_lookup_mean_weighs_keys_and_percentiles_weigh_batches() -> None:
    metrics = _started()
    metrics.lookup(duration_s=1e-6, keys=1, queries=1, hits=1)
    metrics.lookup(duration_s=3e-6, keys=99, queries=25, hits=12)
    metrics.lookup(duration_s=0.0, keys=0, queries=0, hits=0)
    found = metrics.lookups()
    assert found.mean_ns == pytest.approx(40)
    assert found.p50_ns == pytest.approx((1000 + 3000 / 99) / 2)
    assert found.hit_ratio == pytest.approx(13 / 26)
    assert found.keys == 100


def test_no_lookup_is_none_not_zero() -> None:
    found = _started().lookups()
    assert (found.mean_ns, found.p50_ns, found.p99_ns, found.hit_ratio) == (None, None, None, None)


def test_snapshot_ratios_are_none_before_there_is_anything() -> None:
    empty = TierFill("dram", 0, 0.0, 0, 0, 0)
    assert empty.hit_ratio is None
    tier = TierFill("dram", 10, 0.25, 100, 8, 2)
    assert tier.hit_ratio == 0.25
    nothing = Snapshot(0.0, "warm-up", 0, 0, 0, None, 0, 0, 0, 0, 0, 0)
    assert nothing.accept_length is None
    assert Snapshot(1.0, "x", 0, 0, 0, 1, 0, 0, 9, drafts=4, drafted=8, accepted=6).accept_length == 2.5
