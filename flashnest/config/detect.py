"""What can be asked of this machine while its config is composed: `${detect:dram}`. Measures nothing."""

from __future__ import annotations

from pathlib import Path

import psutil
from omegaconf import OmegaConf

from flashnest.errors import ConfigError

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def detect_dram() -> str:
    """Return this machine's memory as text with its unit: physical, or the cgroup's limit where that is less."""
    total = psutil.virtual_memory().total
    limit = _CGROUP_LIMIT.read_text().strip() if _CGROUP_LIMIT.is_file() else "max"
    return f"{min(total, int(limit)) if limit.isdigit() else total}B"


def _detect(what: str) -> str:
    if what != "dram":
        raise ConfigError(f"${{detect:{what}}}: nothing to detect by that name", fix="use ${detect:dram}")
    return detect_dram()


OmegaConf.register_new_resolver("detect", _detect, replace=True)
