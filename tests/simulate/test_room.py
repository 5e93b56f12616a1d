"""Room of the tiers against the real stores: as many records, the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashnest.errors import StoreFullError
from flashnest.record import Tier, record_bytes, row_words
from flashnest.simulate.room import rooms_of, slots_pages
from flashnest.storage.lmdb import LmdbStore
from flashnest.storage.slots import SlotsStore
from flashnest.storage.table import DramTable

MIB = 1 << 20
NBYTES = record_bytes()


def room(tier: Tier, capacity: int, *, eviction: str = "s3fifo", engine: str = "lmdb"):
    return rooms_of({tier: capacity}, record_bytes=NBYTES, eviction=eviction, engine=engine)[tier]


@pytest.mark.parametrize("eviction", ["s3fifo", "sieve", "lru"])
@pytest.mark.parametrize("capacity", [3000, 100_001, 4 * MIB])
def test_dram_has_the_tables_room(capacity: int, eviction: str) -> None:
    table = DramTable(capacity, words=row_words(), clock_s=lambda: 1, eviction=eviction, populate=False)
    found = room(Tier.DRAM, capacity, eviction=eviction)
    assert found.records == table.max_records
    assert found.bytes_of(found.records) == pytest.approx(table.bytes_used, abs=1)
    assert table.bytes_used <= capacity
    table.close()


def test_a_dram_record_costs_57_bytes_in_a_full_table() -> None:
    assert room(Tier.DRAM, 1 << 30).record_bytes == pytest.approx(57.3, abs=0.05)
    assert room(Tier.DRAM, 1 << 30, eviction="lru").record_bytes == pytest.approx(51.4, abs=0.05)


def test_vram_has_the_tables_room() -> None:
    planes = pytest.importorskip("flashnest.storage.vram_planes", reason="the VRAM table needs torch")
    for capacity in (20_000, 3 * MIB):
        buckets = planes.buckets_in(capacity, row_words())
        wanted = int(buckets * planes.BUCKET_SLOTS * planes.MAX_LOAD)
        assert room(Tier.VRAM, capacity).records == pytest.approx(wanted, abs=2 * planes.BUCKET_SLOTS)


def test_lmdb_has_the_stores_room(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "lmdb", 4 * MIB, words=row_words(), clock_s=lambda: 1)
    assert room(Tier.NVME, 4 * MIB).records == store._writer.room_records
    store.close()


def test_slots_has_the_stores_room(tmp_path: Path) -> None:
    store = SlotsStore(tmp_path / "slots", 4 * MIB, words=row_words(), clock_s=lambda: 1, io="threads", direct=False)
    assert slots_pages(4 * MIB, row_words()) == store._buckets.buckets
    assert room(Tier.NVME, 4 * MIB, engine="slots").records == store._buckets.max_records
    store.close()


@pytest.mark.parametrize("tier", Tier)
def test_no_room_for_one_record_is_refused(tier: Tier) -> None:
    with pytest.raises(StoreFullError) as caught:
        room(tier, 500)
    assert caught.value.what == f"500 bytes of {tier.name.lower()} hold no record"
