"""A stranger's repository: one tiering file with a test passes under plain `pytest`, and runs with `--config-dir`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import flashnest

ROOT = Path(flashnest.__file__).parents[1]
MINE = """\
# our table: long matches in DRAM, the rest on the disk
tiers:
  dram: {capacity: 8MiB}
  nvme: {capacity: 16MiB, path: null, engine: slots}
params: {}
rules: |
  place tokens >= 16 in dram else nvme
  place otherwise in nvme
tests:
  - name: sixteen tokens are long
    record: {tokens: 16}
    expect: [dram, nvme]
    by: 1
"""


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "conf" / "tiering"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(MINE)
    return tmp_path


def run(repo: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module in the repository, with this checkout importable and no plugin but those installed or named."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-m", *arguments], cwd=repo, env=environment, capture_output=True, text=True)


def pytest_run(repo: Path) -> subprocess.CompletedProcess[str]:
    return run(repo, "pytest", "-p", "no:flashnest", "-p", "flashnest.policy.pytest_plugin", "-p", "no:cacheprovider")


def test_its_test_passes_under_pytest(repo):
    done = pytest_run(repo)

    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout  # the check and the test


def test_a_wrong_expectation_says_record_rules_line_and_why(repo):
    path = repo / "conf" / "tiering" / "mine.yaml"
    path.write_text(MINE.replace("record: {tokens: 16}", "record: {tokens: 15}"))

    done = pytest_run(repo)

    assert done.returncode == 1
    for line in (
        "conf/tiering/mine.yaml:10: sixteen tokens are long",
        "  record:   {tokens: 15, kind: ngram, namespace: default, bytes: 72}",
        "  expected: dram else nvme",
        "  got:      nvme by rule 2 (line 8): place otherwise in nvme",
        "  rule 1:   place tokens >= 16 in dram else nvme (line 7)",
        "            not taken: `tokens >= 16` is false: tokens is 15",
    ):
        assert line in done.stdout
    assert "Traceback" not in done.stdout


def test_the_plugin_is_installed_for_plain_pytest():
    pyproject = (ROOT / "pyproject.toml").read_text()

    assert 'flashnest = "flashnest.policy.pytest_plugin"' in pyproject


def test_it_runs_as_a_job_with_config_dir(repo):
    job = ("flashnest", "--config-dir", "conf", "+platform=local", "+tiering=mine", "workload=smoke")
    done = run(repo, *job, "workload.requests=2", "report.path=r.json")

    assert done.returncode == 0, done.stderr
    tiers = json.loads((repo / "r.json").read_text())["ngram"]["tiers"]
    assert tiers["dram"]["records"] > 0
    assert tiers["nvme"]["records"] > 0
