"""The main job from the outside: `python -m flashnest ...` in a process of its own, its report, its files, its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import flashnest
from flashnest.report.keys import REPORT_KEYS

ROOT = Path(flashnest.__file__).parents[1]


def command(*arguments: str) -> list[str]:
    """Return the main job's argv."""
    return [sys.executable, "-m", "flashnest", *arguments]


def environment() -> dict[str, str]:
    """Return the environment with this checkout importable from any folder."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run_job(cwd: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run the job in `cwd` and return what it printed and its report."""
    report = cwd / "r.json"
    done = subprocess.run(
        command(*arguments, f"report.path={report}"), cwd=cwd, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done, json.loads(report.read_text())


def value_at(report: dict[str, Any], path: str) -> Any:
    """Follow a dotted path; KeyError where the report lacks it."""
    value: Any = report
    for name in path.split("."):
        value = value[name]
    return value


@pytest.mark.parametrize("engine", ["lmdb", "slots"])
def test_no_step_waits_for_a_kernel(tmp_path: Path, engine: str) -> None:
    """All are loaded when the parts are built: a load costs 5 to 70 ms, a first compile seconds."""
    tiers = ("platform.table.dram=4MiB", "platform.table.nvme=16MiB", f"tiering.tiers.nvme.engine={engine}")
    run = ("+platform=rtx4090", "+tiering=hotcold", "workload=smoke", *tiers)
    script = [sys.executable, str(ROOT / "tests" / "late_kernels.py"), str(tmp_path), *run]
    done = subprocess.run(script, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_card_s_command_runs_emulated_and_says_so(tmp_path: Path) -> None:
    done, report = run_job(tmp_path, "+platform=dgx_spark", "+tiering=hotcold", "workload=smoke")
    first = done.stdout.splitlines()[0]
    assert first.startswith("emulated compute: dgx_spark's roofline")
    for key in REPORT_KEYS:
        value_at(report, key)
    assert report["run"]["compute"] == "emulated"
    assert report["run"]["storage_latency"] == "real"
    assert len(report["run"]["emulated"]) == 2
    assert report["throughput"]["output_tokens"] == 4 * 16
    assert report["ngram"]["tiers"]["dram"]["records"] > 0
    assert report["ngram"]["tiers"]["nvme"]["records"] > 0


def test_real_weights_reuse_kv_draft_and_leave_a_sound_file(tmp_path: Path) -> None:
    done, report = run_job(
        tmp_path,
        "+platform=local",
        "+tiering=hotcold",
        "tiering.tiers.nvme.path=table",
        "workload=smoke",
        "workload.requests=12",
        "workload.repeat_share=1.0",
        "model=tiny_qwen3",
    )
    assert "emulated" not in done.stdout.splitlines()[0]
    assert report["run"]["compute"] == "torch"
    assert report["kv"]["reused_tokens"] > 0
    assert report["throughput"]["output_tokens"] == 12 * 16
    folders = list((tmp_path / "table").iterdir())
    assert len(folders) == 1
    verdict = subprocess.run(
        [sys.executable, "-m", "lmdb", "verify", "-e", str(folders[0])], capture_output=True, text=True
    )
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr


def test_every_shipped_policy_runs(tmp_path: Path) -> None:
    """In one process; `hotcold` and `nvme_only` run above and below."""
    names = "dram_only,vram_only,vram_first,long_context,code_assistant"
    arguments = ("+platform=local", f"+tiering={names}", "workload=smoke", "workload.requests=2", "model=tiny_qwen3")
    done = subprocess.run(
        command("--multirun", *arguments), cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    reports = [json.loads(path.read_text()) for path in tmp_path.glob("multirun/*/*/*/report.json")]
    assert [report["throughput"]["output_tokens"] for report in reports] == [2 * 16] * 5
    assert all(sum(tier["records"] or 0 for tier in report["ngram"]["tiers"].values()) > 0 for report in reports)


def test_records_on_nvme_survive_into_the_next_run(tmp_path: Path) -> None:
    arguments = ("+tiering=nvme_only", "tiering.tiers.nvme.path=table", "workload=smoke", "model=tiny_qwen3")
    _, first = run_job(tmp_path, *arguments)
    _, second = run_job(tmp_path, *arguments)
    assert first["ngram"]["tiers"]["nvme"]["records"] > 0
    assert second["ngram"]["tiers"]["nvme"]["records"] >= first["ngram"]["tiers"]["nvme"]["records"]
    assert second["ngram"]["tiers"]["nvme"]["inserts"] < first["ngram"]["tiers"]["nvme"]["inserts"]
    assert second["ngram"]["tiers"]["nvme"]["hits"] > 0


def test_ctrl_c_ends_cleanly_with_the_report_of_what_ran(tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    job = subprocess.Popen(
        command("+platform=rtx3090", "+tiering=hotcold", f"report.path={report}", "workload.output_tokens=2000"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    for line in job.stdout:
        if line.startswith("run "):
            break
    job.send_signal(signal.SIGINT)
    out, err = job.communicate(timeout=120)
    assert job.returncode == 130, err
    assert "Traceback" not in err
    assert "Throughput" in out
    saved = json.loads(report.read_text())
    assert saved["run"]["interrupted"] is True
    assert saved["throughput"]["requests_cancelled"] > 0


@pytest.mark.parametrize("tiering", ["dram_only", "nvme_only"])
def test_the_other_tierings_run(tmp_path: Path, tiering: str) -> None:
    _, report = run_job(tmp_path, "+platform=strix_halo", f"+tiering={tiering}", "workload=smoke")
    held = report["ngram"]["tiers"]["dram" if tiering == "dram_only" else "nvme"]
    assert held["records"] > 0
