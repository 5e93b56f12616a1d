"""What a run does to its host, read from /proc and /sys before and after: page cache, page tables, disk, memory.

The field report's three dials (facts F22): `Cached` growing means that a table crept back into DRAM (pseudo-offload,
F16), `%util` near 1 means that requests queue at the disk, `PageTables` grows with mapped files. Page cache, page
tables and disk utilisation are the whole machine's, and other processes move them too; bytes read and written are this
process's.
What the system does not tell (no Linux, a container without /sys, tmpfs) is None, never an error. Writes nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_IO_TICKS_FIELD: Final = 9
"""Milliseconds spent doing I/O: the 10th field of /sys/dev/block/M:m/stat (Documentation/block/stat.rst)."""


@dataclass(frozen=True, slots=True)
class HostReading:
    """One reading. Bytes, except `disk_busy_ms`: milliseconds that the disk has been busy since boot."""

    page_cache_bytes: int | None
    page_tables_bytes: int | None
    disk_read_bytes: int | None
    disk_write_bytes: int | None
    disk_busy_ms: int | None
    rss_bytes: int | None
    peak_rss_bytes: int | None


@dataclass(frozen=True, slots=True)
class HostChange:
    """What changed between two readings. `page_tables_bytes`, `rss_bytes` and `peak_rss_bytes` are the later reading's.

    `disk_util` is the share of the time that the disk was busy, 0..1.
    """

    page_cache_delta_bytes: int | None
    page_tables_bytes: int | None
    disk_read_bytes: int | None
    disk_write_bytes: int | None
    disk_util: float | None
    rss_bytes: int | None
    peak_rss_bytes: int | None


class HostProbe:
    """Reads the host. `disk_path` names a file or folder on the disk to watch; it need not exist yet."""

    def __init__(self, disk_path: Path | None = None, *, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._proc = proc
        self._disk_stat = _disk_stat_file(disk_path, proc, sys) if disk_path is not None else None

    def read(self) -> HostReading:
        """Return a reading; under 1 ms."""
        memory = _fields(self._proc / "meminfo")
        io = _fields(self._proc / "self" / "io")
        status = _fields(self._proc / "self" / "status")
        return HostReading(
            page_cache_bytes=_kib(memory.get("Cached")),
            page_tables_bytes=_kib(memory.get("PageTables")),
            disk_read_bytes=io.get("read_bytes"),
            disk_write_bytes=io.get("write_bytes"),
            disk_busy_ms=_busy_ms(self._disk_stat),
            rss_bytes=_kib(status.get("VmRSS")),
            peak_rss_bytes=_kib(status.get("VmHWM")),
        )


def host_change(before: HostReading, after: HostReading, elapsed_s: float) -> HostChange:
    """Return what changed in the `elapsed_s` seconds between two readings."""
    busy_ms = _minus(after.disk_busy_ms, before.disk_busy_ms)
    return HostChange(
        page_cache_delta_bytes=_minus(after.page_cache_bytes, before.page_cache_bytes),
        page_tables_bytes=after.page_tables_bytes,
        disk_read_bytes=_minus(after.disk_read_bytes, before.disk_read_bytes),
        disk_write_bytes=_minus(after.disk_write_bytes, before.disk_write_bytes),
        disk_util=min(1.0, busy_ms / (elapsed_s * 1e3)) if busy_ms is not None and elapsed_s > 0 else None,
        rss_bytes=after.rss_bytes,
        peak_rss_bytes=after.peak_rss_bytes,
    )


def _minus(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


def _kib(value: int | None) -> int | None:
    return None if value is None else value * 1024


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _fields(path: Path) -> dict[str, int]:
    """Return the `name: number` lines of a /proc file; none where it cannot be read."""
    found: dict[str, int] = {}
    for line in _text(path).splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0])
    return found


def _busy_ms(stat: Path | None) -> int | None:
    words = _text(stat).split() if stat is not None else []
    return int(words[_IO_TICKS_FIELD]) if len(words) > _IO_TICKS_FIELD else None


def _disk_stat_file(path: Path, proc: Path, sys: Path) -> Path | None:
    """Return the statistics file of the block device that holds `path`; None for tmpfs, overlays and the like."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        devices = [path.stat().st_dev, *_mounted_device(path, proc)]
    except OSError:
        return None
    for device in devices:
        stat = sys / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}" / "stat"
        if stat.is_file():
            return stat
    return None


def _mounted_device(path: Path, proc: Path) -> list[int]:
    """Return the device number of the mount's source: file systems such as btrfs give files a device of their own."""
    real = path.resolve()
    best: tuple[int, str] = (-1, "")
    for line in _text(proc / "self" / "mountinfo").splitlines():
        head, _, tail = line.partition(" - ")
        fields, source = head.split(), tail.split()
        if len(fields) > 4 and len(source) > 1 and real.is_relative_to(fields[4]):
            best = max(best, (len(fields[4]), source[1]))
    if not best[1].startswith("/dev/"):
        return []
    try:
        return [os.stat(best[1]).st_rdev]
    except OSError:
        return []
