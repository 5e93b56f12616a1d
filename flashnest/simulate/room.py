"""How many records a budget of bytes holds in each tier, and what one takes there: the real stores' own arithmetic.

DRAM    a unit of 14 slots is 576 bytes with rows of 16 words, a table is full at 0.8 of its slots, and S3-FIFO takes
        5.9 bytes a record beside it: 57.3 B a record when full, 60.7 at 0.75 (docs/measurements: 58.9 at 0.78)
VRAM    12 bytes and the row a slot, full at 0.8: 95 B a record
NVMe    lmdb: a record, its seal and LMDB's node are 90 B, leaves are 0.6 full when the store refuses: 160 B a record
        slots: 56 records a page of 4 KiB, beside a log of 1/64 of the capacity: 74.5 B a record when full

Opens no store, allocates nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flashnest.errors import StoreFullError
from flashnest.record import KEY_BYTES, Tier
from flashnest.storage.sealed import SEAL_BYTES
from flashnest.storage.segments import batch_bytes
from flashnest.storage.slots_page import slots_for
from flashnest.storage.table import records_within

VRAM_LOAD: Final = 0.8
VRAM_SLOT_BYTES: Final = 12
"""Key and time of last use of a slot, beside its row (`storage.vram_planes`, which needs torch)."""
VRAM_BUCKET_SLOTS: Final = 16
LMDB_LEAF_FILL: Final = 0.6
"""As `storage.lmdb_writer`: share of the file that records fill when a store with random keys starts to refuse."""
LMDB_NODE_BYTES: Final = 10
PAGE_BYTES: Final = 4096
_MOST_LOG_BYTES: Final = 256 << 20
_LEAST_LOG_BYTES: Final = 64 << 10
ENGINES: Final = ("lmdb", "slots")


@dataclass(frozen=True, slots=True)
class Room:
    """What a tier takes: `records` at most, `record_bytes` of the budget for each."""

    records: int
    record_bytes: float

    def bytes_of(self, records: int) -> int:
        """Return the bytes that so many records take."""
        return int(records * self.record_bytes)


def rooms_of(capacities: Mapping[Tier, int], *, record_bytes: int, eviction: str, engine: str) -> dict[Tier, Room]:
    """Return the room of each tier that has a capacity, for records of `record_bytes` (key and row).

    Raises StoreFullError where a capacity holds not one record.
    """
    words = max(1, -(-(record_bytes - KEY_BYTES) // 4))
    rooms: dict[Tier, Room] = {}
    for tier, capacity in capacities.items():
        if tier is Tier.DRAM:
            room = _dram(capacity, words, eviction)
        elif tier is Tier.VRAM:
            room = _vram(capacity, words)
        else:
            room = _lmdb(capacity, words) if engine == "lmdb" else _slots(capacity, words)
        if room.records < 1:
            raise StoreFullError(
                f"{capacity} bytes of {tier.name.lower()} hold no record",
                why=f"a record of {record_bytes} bytes needs a table or file around it",
                fix=f"give the {tier.name.lower()} tier a larger capacity",
            )
        rooms[tier] = room
    return rooms


def _dram(capacity: int, words: int, eviction: str) -> Room:
    records, allocated = records_within(capacity, words=words, eviction=eviction)
    return Room(records, allocated / max(1, records))


def _vram(capacity: int, words: int) -> Room:
    slot_bytes = VRAM_SLOT_BYTES + 4 * words
    slots = capacity // (VRAM_BUCKET_SLOTS * slot_bytes) * VRAM_BUCKET_SLOTS
    return Room(int(slots * VRAM_LOAD), slot_bytes / VRAM_LOAD)


def _lmdb(capacity: int, words: int) -> Room:
    kept_free = max(256 << 10, capacity // 16)
    record_bytes = KEY_BYTES + 4 * words + SEAL_BYTES + LMDB_NODE_BYTES
    records = max(0, int((capacity - kept_free) // PAGE_BYTES * PAGE_BYTES * LMDB_LEAF_FILL / record_bytes))
    return Room(records, record_bytes / LMDB_LEAF_FILL)


def slots_log_records(capacity: int, words: int) -> int:
    """Return how many changed records the `slots` engine gathers before it merges them into its pages."""
    log_bytes = min(max(capacity // 64, _LEAST_LOG_BYTES), _MOST_LOG_BYTES)
    return log_bytes // (KEY_BYTES + 4 * words + 12)


def slots_pages(capacity: int, words: int) -> int:
    """Return the pages of the `slots` engine's file."""
    segments = int(1.5 * batch_bytes(slots_log_records(capacity, words), 0, words)) + PAGE_BYTES
    return max(0, (capacity - 2 * PAGE_BYTES - segments) // (PAGE_BYTES + 1))


def _slots(capacity: int, words: int) -> Room:
    records = slots_pages(capacity, words) * slots_for(words)
    return Room(records, capacity / max(1, records))
