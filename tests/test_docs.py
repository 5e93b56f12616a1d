"""Every command in the docs is run: policy commands whole, runs on a small load, make targets as a dry run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import flashnest

ROOT = Path(flashnest.__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SMALL = [
    *("workload=smoke", "model=tiny_qwen3", "platform.emulated=false", "progress=false"),
    *("platform.table.dram=16MiB", "platform.table.nvme=64MiB"),
]
"""A documented run answers four short prompts with a tiny model, whatever machine it names: seconds, not minutes."""


def commands() -> list[tuple[str, str]]:
    """Return (page, command) for each line of each ```sh block; comments and blank lines are left out."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
            lines = re.sub(r"\\\n\s*", " ", block).splitlines()
            found += [(str(page.relative_to(ROOT)), line) for line in lines if line.split("#")[0].strip()]
    return found


def test_the_docs_have_commands() -> None:
    assert len(commands()) >= 8


@pytest.fixture
def site_conf(tmp_path: Path) -> Path:
    """Make what the docs call /opt/site-conf: an ops repo with a platform of its own."""
    platform = tmp_path / "site-conf" / "platform"
    platform.mkdir(parents=True)
    shipped = (ROOT / "flashnest/conf/platform/local.yaml").read_text()
    (platform / "rack7.yaml").write_text(shipped.replace("name: local", "name: rack7"))
    return platform.parent


@pytest.mark.parametrize(("page", "line"), commands())
def test_command_runs(page: str, line: str, tmp_path: Path, site_conf: Path) -> None:
    words = shlex.split(line.replace("/opt/site-conf", str(site_conf)), comments=True)
    cwd = tmp_path
    if words[0] == "make":
        words, cwd = ["make", "-n", *words[1:]], ROOT
    elif words[:3] == ["python", "-m", "flashnest"]:
        words = [sys.executable, *words[1:], *SMALL]
    elif words[0] == "flash-nest":
        words = [sys.executable, "-m", "flashnest.cli", *words[1:]]
    elif words[:2] == ["python", "-m"]:
        words, cwd = [sys.executable, *words[1:3], "--help"], ROOT
    else:
        pytest.fail(f"{page}: no test knows how to run {line!r}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{page}: {line}\n{done.stdout}\n{done.stderr}"
