"""What changes on NVMe cost the drive: bytes written with each engine's own amplification, and how long it lasts.

Measured with 16 M records of 72 bytes and random keys (docs/measurements/2026-12-01-cold-16M.json):

lmdb   8589 B a changed record in batches of 4096, which touch a leaf each: 2.1 pages a leaf, of copied branches and the
       list of free pages. In a small file a batch meets leaves twice: leaves x (1 - exp(-changes / leaves)) of them.
slots  73.5 B (1.02 times) to a segment at once, and its page when the log is merged: 3918 B a record with 32,733 in the
       log, 3447 with 130,588 (54 and 48 times), which pages x (1 - exp(-log / pages)) / log gives to 1 %.

Writes nothing itself.
"""

from __future__ import annotations

import math
from typing import Final

from flashnest.record import KEY_BYTES
from flashnest.simulate.room import PAGE_BYTES, slots_log_records, slots_pages

LMDB_PAGES_A_LEAF: Final = 8589 / 4096
SEGMENT_AMPLIFICATION: Final = 73.5 / 72
YEAR_S: Final = 365 * 86400.0


def lmdb_bytes(leaves: float) -> int:
    """Return the bytes written where write batches touched so many leaves in all."""
    return int(leaves * LMDB_PAGES_A_LEAF * PAGE_BYTES)


def slots_bytes(changes: int, record_bytes: int, capacity: int) -> int:
    """Return the bytes that the `slots` engine writes for so many changes, their share of the next merge included."""
    words = max(1, -(-(record_bytes - KEY_BYTES) // 4))
    pages, log = max(1, slots_pages(capacity, words)), max(1, slots_log_records(capacity, words))
    merged = PAGE_BYTES * pages * (1.0 - math.exp(-log / pages)) / log
    return int(changes * (SEGMENT_AMPLIFICATION * record_bytes + merged))


def life_years(endurance_bytes: int | None, bytes_per_s: float) -> float | None:
    """Return after how many years of writing like this a drive's endurance is used up; None where it is not known."""
    if endurance_bytes is None:
        return None
    return endurance_bytes / bytes_per_s / YEAR_S if bytes_per_s > 0 else math.inf
