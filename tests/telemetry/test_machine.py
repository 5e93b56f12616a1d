"""Machine facts are this machine's; a commit is named only in flashnest's own checkout."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from flashnest import __version__
from flashnest.telemetry.machine import commit, machine, versions

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def _git(root: Path, *words: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    answer = subprocess.run(["git", "-C", str(root), *identity, *words], capture_output=True, text=True, check=True)
    return answer.stdout.strip()


def test_machine_reads_the_processors_name(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: A CPU @ 3 GHz\nmodel name\t: another\n")
    facts = machine(tmp_path)
    assert facts.cpu == "A CPU @ 3 GHz"
    assert facts.kernel == platform.release()
    assert facts.cores >= 1
    assert facts.memory_bytes is None or facts.memory_bytes > 1 << 20


def test_machine_without_cpuinfo_names_the_architecture(tmp_path: Path) -> None:
    assert machine(tmp_path).cpu in (platform.processor(), platform.machine())


def test_versions_are_those_installed_and_no_others() -> None:
    found = versions(("numpy", "no-such-package-at-all"))
    assert found["flashnest"] == __version__
    assert found["python"] == platform.python_version()
    assert "numpy" in found
    assert "no-such-package-at-all" not in found


@needs_git
def test_commit_is_the_checkouts_and_says_when_files_differ(tmp_path: Path) -> None:
    _git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("one")
    _git(tmp_path, "add", "file")
    _git(tmp_path, "commit", "-q", "-m", "first")
    _git(tmp_path, "tag", "-a", "v9", "-m", "a tag that must not hide the commit")
    head = _git(tmp_path, "rev-parse", "--short=12", "HEAD")
    assert commit(tmp_path) == head
    (tmp_path / "file").write_text("two")
    assert commit(tmp_path) == f"{head}-dirty"


@needs_git
def test_folder_inside_another_repository_has_no_commit(tmp_path: Path) -> None:
    _git(tmp_path, "init", "-q")
    (tmp_path / "site-packages").mkdir()
    assert commit(tmp_path / "site-packages") is None


@needs_git
def test_repository_without_a_commit_has_none(tmp_path: Path) -> None:
    _git(tmp_path, "init", "-q")
    assert commit(tmp_path) is None
