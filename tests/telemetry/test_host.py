"""Host readings come from /proc and /sys as they are; what is not there is None and never an error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flashnest.telemetry.host import HostProbe, HostReading, host_change


def _fake_proc(root: Path) -> Path:
    proc = root / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 100 kB\nCached:   2048 kB\nSwapCached: 7 kB\nPageTables: 12 kB\n")
    (proc / "self" / "io").write_text("rchar: 1\nread_bytes: 4096\nwrite_bytes: 8192\n")
    (proc / "self" / "status").write_text("Name:\tpython\nVmHWM:\t  900 kB\nVmRSS:\t  800 kB\n")
    return proc


def _fake_sys(root: Path, device: int, busy_ms: int) -> Path:
    folder = root / "sys" / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(f"1 2 3 4 5 6 7 8 9 {busy_ms} 11 12 13 14 15 16 17\n")
    return root / "sys"


def test_reading_takes_the_named_fields(tmp_path: Path) -> None:
    proc, sys = _fake_proc(tmp_path), _fake_sys(tmp_path, tmp_path.stat().st_dev, 1234)
    reading = HostProbe(tmp_path / "not" / "made" / "yet", proc=proc, sys=sys).read()
    assert reading == HostReading(
        page_cache_bytes=2048 * 1024,
        page_tables_bytes=12 * 1024,
        disk_read_bytes=4096,
        disk_write_bytes=8192,
        disk_busy_ms=1234,
        rss_bytes=800 * 1024,
        peak_rss_bytes=900 * 1024,
    )


def test_nothing_to_read_is_none_everywhere(tmp_path: Path) -> None:
    reading = HostProbe(tmp_path, proc=tmp_path / "none", sys=tmp_path / "none").read()
    assert reading == HostReading(None, None, None, None, None, None, None)
    change = host_change(reading, reading, 1.0)
    assert change.page_cache_delta_bytes is None
    assert change.disk_util is None


def test_garbled_files_are_none(tmp_path: Path) -> None:
    proc = _fake_proc(tmp_path)
    (proc / "meminfo").write_text("Cached:\nPageTables: many kB\n\xff")
    sys = _fake_sys(tmp_path, tmp_path.stat().st_dev, 0)
    next(sys.rglob("stat")).write_text("1 2 3")
    reading = HostProbe(tmp_path, proc=proc, sys=sys).read()
    assert (reading.page_cache_bytes, reading.page_tables_bytes, reading.disk_busy_ms) == (None, None, None)


def test_disk_of_a_mount_is_found_by_its_source(tmp_path: Path) -> None:
    """btrfs and the like give files a device of their own: the mount's source names the disk."""
    proc = _fake_proc(tmp_path)
    real = tmp_path.resolve()
    (proc / "self" / "mountinfo").write_text(
        f"1 0 0:1 / / rw - overlay overlay rw\n2 1 0:99 / {real} rw shared:1 - btrfs /dev/null rw\nshort\n"
    )
    sys = _fake_sys(tmp_path, os.stat("/dev/null").st_rdev, 55)
    assert HostProbe(tmp_path / "table", proc=proc, sys=sys).read().disk_busy_ms == 55


def test_change_is_after_minus_before_and_utilisation_a_share_of_the_time() -> None:
    before = HostReading(1000, 10, 5, 6, 100, 50, 60)
    after = HostReading(400, 12, 25, 36, 350, 70, 90)
    change = host_change(before, after, 0.5)
    assert change.page_cache_delta_bytes == -600
    assert change.page_tables_bytes == 12
    assert (change.disk_read_bytes, change.disk_write_bytes) == (20, 30)
    assert change.disk_util == pytest.approx(0.5)
    assert (change.rss_bytes, change.peak_rss_bytes) == (70, 90)


def test_utilisation_never_exceeds_one_and_needs_time() -> None:
    reading = HostReading(0, 0, 0, 0, 0, 0, 0)
    busy = HostReading(0, 0, 0, 0, 1001, 0, 0)
    assert host_change(reading, busy, 1.0).disk_util == 1.0
    assert host_change(reading, busy, 0.0).disk_util is None


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here")
def test_this_host_tells_its_memory() -> None:
    reading = HostProbe().read()
    assert reading.rss_bytes is not None
    assert reading.peak_rss_bytes is not None
    assert 1 << 20 < reading.rss_bytes <= reading.peak_rss_bytes
    assert reading.disk_busy_ms is None
