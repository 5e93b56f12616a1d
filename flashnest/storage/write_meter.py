"""What one thread sent to drives, as the kernel counts it: a store's own records are a fraction. Writes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_COUNTERS: Final = Path("/proc/thread-self/io")
_FIELD: Final = "write_bytes: "


def thread_write_bytes() -> int | None:
    """Return the bytes that the calling thread has caused to be written to block devices; 20 us.

    LMDB writes 8589 bytes for a changed record of 72 (docs/measurements/2026-12-01-cold-16M.json). None where the
    system does not tell; 0 on a file system in memory. What io_uring's own threads write is not the caller's.
    """
    try:
        text = _COUNTERS.read_text()
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(_FIELD):
            return int(line.removeprefix(_FIELD))
    return None
