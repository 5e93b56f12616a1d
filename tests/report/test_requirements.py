"""Requirements of a policy against a run's figures, and what is said of them."""

from __future__ import annotations

import math
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from flashnest.policy import compile_policy
from flashnest.policy.goals import Requirement
from flashnest.report.model import ReportInput, build_report
from flashnest.report.requirements import judge_requirements, value_text
from flashnest.report.terminal import print_report
from flashnest.telemetry.metrics import RunMetrics, Step

MB = 10**6
YEAR_S = 365 * 86400


def required(text: str) -> tuple[Requirement, ...]:
    return compile_policy(f"place otherwise in dram else nvme\n{text}").requirements


def ten_seconds() -> RunMetrics:
    """100 steps of 10..109 ms with lookups of 100 us each, the last one of 1 ms; DRAM answered 3 of 4 hits."""
    metrics = RunMetrics()
    metrics.start(0.0)
    for i in range(100):
        metrics.step(Step(0.010 + 0.001 * i, 0.005, running=1, decoding=1, forward_tokens=1, committed=1))
        metrics.lookup(duration_s=1e-3 if i == 99 else 1e-4, keys=100, queries=8, hits=4, tier_hits=(0, 3, 1))
    metrics.stop(10.0)
    return metrics


@pytest.mark.parametrize(
    ("text", "measured", "held"),
    [
        ("require lookup p50 <= 100us", 1e-4, True),
        ("require lookup p50 < 100us", 1e-4, False),
        ("require lookup p99 <= 150us", 1.09e-4, True),
        ("require step p99 <= 100ms", 0.10801, False),
        ("require nvme writes <= 20 MB/s", 30 * MB, False),
        ("require nvme writes <= 30 MB/s", 30 * MB, True),
        ("require nvme life >= 1y", 1200e12 / (30 * MB), True),
        ("require nvme life >= 5y", 1200e12 / (30 * MB), False),
        ("require dram hits >= 75%", 0.75, True),
        ("require dram hits > 75%", 0.75, False),
    ],
)
def test_a_metric_is_what_the_run_measured(text: str, measured: float, held: bool) -> None:
    (figures,) = judge_requirements(
        required(text), ten_seconds(), disk_bytes=300 * MB, endurance_bytes=1_200_000_000_000_000
    )
    assert figures.measured == pytest.approx(measured)
    assert figures.held is held
    assert figures.is_broken is not held
    assert (figures.line() == "") is held


def test_a_run_that_wrote_nothing_wears_no_drive() -> None:
    figures = judge_requirements(
        required("require nvme life >= 5y\nrequire nvme writes <= 1 B/s"),
        ten_seconds(),
        disk_bytes=None,
        endurance_bytes=1,
    )
    assert [f.measured for f in figures] == [math.inf, 0.0]
    assert all(f.held for f in figures)


def test_what_was_not_measured_is_neither_held_nor_broken() -> None:
    text = "require nvme life >= 5y\nrequire dram hits >= 50%\nrequire lookup p99 <= 1ms\nrequire step p99 <= 1s"
    metrics = RunMetrics()
    figures = judge_requirements(required(text), metrics, disk_bytes=5, endurance_bytes=None)
    assert [(f.measured, f.held, f.is_broken) for f in figures] == [(None, None, False)] * 4
    assert [f.why for f in figures] == [
        "the platform names no endurance",
        "nothing was found",
        "nothing was looked up",
        "no step ran",
    ]
    assert figures[1].line() == "requirement not measured: require dram hits >= 50% (nothing was found)"


def test_a_warning_is_said_and_breaks_nothing() -> None:
    (figures,) = judge_requirements(
        required("require dram hits >= 90% warn"), ten_seconds(), disk_bytes=0, endurance_bytes=None
    )
    assert figures.held is False
    assert not figures.is_broken
    assert figures.line() == "requirement does not hold: require dram hits >= 90% warn, measured 75.0 %"


def test_the_report_has_them_as_json_and_as_a_table(given: ReportInput) -> None:
    text = "require dram hits >= 90%\nrequire nvme life >= 5y\nrequire lookup p50 <= 1ms"
    figures = judge_requirements(required(text), ten_seconds(), disk_bytes=0, endurance_bytes=1)
    report = build_report(replace(given, requirements=figures))
    rows = report["requirements"]
    assert isinstance(rows, list)
    assert rows[0] == {
        "text": "require dram hits >= 90%",
        "name": None,
        "level": "enforce",
        "metric": "dram hits",
        "operator": ">=",
        "bound": 0.9,
        "measured": 0.75,
        "held": False,
        "why": "",
    }
    printed = StringIO()
    print_report(report, Console(file=printed, width=80))
    lines = [line.split() for line in printed.getvalue().splitlines() if line.startswith("require ")]
    assert lines == [
        ["require", "dram", "hits", ">=", "90%", "75.0", "%", "enforce", "NO"],
        ["require", "nvme", "life", ">=", "5y", "for", "ever", "enforce", "yes"],
        ["require", "lookup", "p50", "<=", "1ms", "100.0", "us", "enforce", "yes"],
    ]


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("nvme writes", 20 * MB, "20 MB/s"),
        ("nvme life", 5 * YEAR_S, "5.0 y"),
        ("nvme life", 86400.0, "1.0 d"),
        ("nvme life", math.inf, "for ever"),
        ("step p99", 0.03, "30.0 ms"),
        ("dram hits", None, "-"),
    ],
)
def test_values_are_said_with_their_unit(metric: str, value: float | None, text: str) -> None:
    assert value_text(metric, value) == text
