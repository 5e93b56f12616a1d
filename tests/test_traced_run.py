"""A run that records its accesses, under a policy with `flush` and `require`: its trace, its report, its exit code.

One emulated run serves all tests here. What it did is held against a simulation of the same policy on its own trace,
and against the trace of the same prompts made without a run.
"""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashnest.app import run
from flashnest.app.build import compile_run_policy, make_workload
from flashnest.cli.arguments import parse_command
from flashnest.cli.compose import Composer
from flashnest.cli.run import run_from
from flashnest.config import RunConfig
from flashnest.record import Kind, Tier
from flashnest.simulate import INSERT, Simulation, Trace, load_trace, simulate, text_trace
from flashnest.telemetry.access_trace import read_access_trace

DRAM_BYTES, NVME_BYTES = 8 << 20, 64 << 20
POLICY = f"""\
tiers:
  dram: {{capacity: {DRAM_BYTES}B}}
  nvme: {{capacity: {NVME_BYTES}B}}
rules: |
  >=32-token records in DRAM, <=8-token records on NVMe
  place otherwise in dram else nvme
  promote hits in 60s >= 3 from nvme to dram at most 2000 rec/s cooldown 30s
  flush every 1h at most 20 MB/s
  require dram hits >= 99.9%
  require step p99 <= 1h
  require nvme life >= 10000y warn
"""
LENGTHS = (4, 8, 16, 32)


def compose(folder: Path, *arguments: str) -> RunConfig:
    composer = Composer(parse_command(("--config-dir", str(folder), *arguments)))
    return run_from(composer.compose(composer.complete()))


@dataclass(frozen=True)
class Done:
    """A run that ended."""

    config: RunConfig
    code: int
    printed: str
    complained: str
    report: dict[str, Any]
    trace_path: Path
    trace: Trace


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("traced")
    (folder / "tiering").mkdir()
    (folder / "tiering" / "mine.yaml").write_text(POLICY)
    trace, report = folder / "run.trace", folder / "r.json"
    config = compose(
        folder,
        *("+platform=rtx4090", "+tiering=mine", "workload=repeat_80", "workload.requests=12", "progress=false"),
        *("workload.concurrency=4", "workload.output_tokens=32", "workload.namespaces=2"),
        *(f"trace.path={trace}", f"report.path={report}"),
    )
    printed, complained = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(complained):
        code = run(config, folder / "out")
    return Done(
        config,
        code,
        printed.getvalue(),
        complained.getvalue(),
        json.loads(report.read_text()),
        trace,
        load_trace(trace),
    )


def test_a_broken_requirement_ends_the_run_with_1_after_the_report(done: Done) -> None:
    assert done.code == 1
    assert "requirement broken: require dram hits >= 99.9%, measured" in done.complained
    assert "requirement does not hold: require nvme life >= 10000y warn, measured" in done.complained
    assert "step p99" not in done.complained
    rows = done.report["requirements"]
    assert [(row["metric"], row["level"], row["held"]) for row in rows] == [
        ("dram hits", "enforce", False),
        ("step p99", "enforce", True),
        ("nvme life", "warn", False),
    ]
    assert rows[1]["measured"] == pytest.approx(done.report["throughput"]["step_ms"]["p99"] / 1e3)
    assert "NO" in next(line for line in done.printed.splitlines() if line.startswith("require dram hits"))


def test_nothing_is_written_before_the_flush_interval(done: Done) -> None:
    """An hour is longer than the run: the one batch is what the run hands over at its end."""
    cold = done.report["ngram"]["cold"]
    assert cold["batches"] == 1
    assert cold["disk_bytes"] >= cold["bytes_written"] > 0


def test_the_trace_has_every_question_of_the_run(done: Done) -> None:
    ngram = done.report["ngram"]
    assert done.trace.questions == ngram["lookups"]
    assert sum(ngram["hits_by_tier"].values()) == ngram["hits"]
    assert set(done.trace.namespaces.values()) == {"tenant-0", "tenant-1"}
    assert set(done.trace.namespace.tolist()) - {0} == set(done.trace.namespaces)  # 0: a chunk that was only asked for
    log = read_access_trace(done.trace_path)
    assert (log.damaged, log.dropped) == (0, 0)
    assert f"trace: {done.trace_path}" in done.printed
    assert np.diff(log.step_ms).min() >= 0


def simulated(done: Done) -> Simulation:
    capacities = {Tier.DRAM: DRAM_BYTES, Tier.NVME: NVME_BYTES}
    return simulate(compile_run_policy(done.config), done.trace, capacities=capacities, belady=False)


def test_a_simulation_of_the_trace_finds_what_the_run_found(done: Done) -> None:
    """DRAM answers the same questions and both tiers hold the same records. On NVMe the run finds fewer.

    It counts a cold answer only if it is of use: the step after, and only where the tokens said meanwhile agree.
    """
    result, ngram = simulated(done), done.report["ngram"]
    hits = ngram["hits_by_tier"]
    assert result.questions == ngram["lookups"]
    assert result.hits[Tier.DRAM] == pytest.approx(hits["dram"], rel=0.03)
    assert 0 < hits["nvme"] <= result.hits[Tier.NVME]
    for tier in (Tier.DRAM, Tier.NVME):
        assert result.end_records[tier] == pytest.approx(ngram["tiers"][tier.name.lower()]["records"], rel=0.01)


def test_a_trace_of_the_same_prompts_teaches_the_same_records(done: Done) -> None:
    """A run says several tokens a step and reuses KV, so the steps differ; what is learnt in the end does not.

    Its tokenizer maps pieces to other ids than the trace's, which merges a few other pieces: within 1 %.
    """
    prompts = make_workload(done.config).prompts
    made = text_trace(prompts, lengths=LENGTHS, concurrency=4, output_tokens=32)
    for kind in Kind:
        for tokens in (32,) if kind is Kind.CHUNK else LENGTHS:
            assert taught(made, kind, tokens) == pytest.approx(taught(done.trace, kind, tokens), rel=0.01)
    assert made.records == pytest.approx(done.trace.records, rel=0.05)


def taught(trace: Trace, kind: Kind, tokens: int) -> int:
    """Return how many different records of a kind and length are taught."""
    records = np.unique(trace.record[trace.op == INSERT])
    return int(np.count_nonzero((trace.kind[records] == kind) & (trace.tokens[records] == tokens)))
