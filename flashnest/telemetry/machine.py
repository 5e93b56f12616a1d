"""What ran a measurement: processor, memory, kernel, versions, commit. Facts for the report; measures nothing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from flashnest import __version__

PACKAGES: Final = ("torch", "transformers", "numba", "numpy", "lmdb", "hydra-core", "pydantic", "xxhash")

_PROJECT_ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine. `cores` are those this process may use; None is what the system does not tell."""

    cpu: str
    cores: int
    memory_bytes: int | None
    kernel: str
    system: str


def machine(proc: Path = Path("/proc")) -> Machine:
    """Return the facts of this machine."""
    return Machine(
        cpu=_cpu(proc) or platform.processor() or platform.machine(),
        cores=_cores(),
        memory_bytes=_memory_bytes(),
        kernel=platform.release(),
        system=f"{platform.system()} {platform.machine()}",
    )


def versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Return the versions of flashnest, of Python and of the packages that are installed."""
    found = {"flashnest": __version__, "python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def commit(root: Path = _PROJECT_ROOT) -> str | None:
    """Return the checkout's commit, `-dirty` where files differ from it; None outside a checkout or without git.

    Only a `.git` in `root` itself counts: a package installed inside somebody's repository is not a checkout of it.
    """
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None
    command = [git, "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def _cpu(proc: Path) -> str | None:
    """Return the model name of the first processor: x86 says it in cpuinfo, ARM mostly does not."""
    try:
        lines = (proc / "cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))), None)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
