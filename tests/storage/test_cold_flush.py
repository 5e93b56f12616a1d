"""When a cold tier writes: at its interval, as fast as the drive may be written, never more than its buffer holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from records import WORDS, Clock, rows_of, spread

from flashnest.record import U32Array, U64Array
from flashnest.storage.cold import ColdOptions, ColdTier
from flashnest.storage.lmdb import LmdbStore
from flashnest.storage.slots import SlotsStore

MakeTier = Callable[..., ColdTier]
DISK_BYTES_A_RECORD = 1000


class Metered(LmdbStore):
    """A store that notes its batches; each record is said to be `DISK_BYTES_A_RECORD` for the drive."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.batches: list[int] = []

    @property
    def value_bytes(self) -> int:
        return DISK_BYTES_A_RECORD

    def write_many(self, keys: U64Array, rows: U32Array, removes: U64Array) -> np.ndarray:
        self.batches.append(len(keys))
        return super().write_many(keys, rows, removes)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Metered:
    return Metered(tmp_path / "db", 16 << 20, words=WORDS, clock_s=clock.whole)


@pytest.fixture
def make(store: Metered, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeTier]:
    monkeypatch.setattr("flashnest.storage.cold_worker.thread_write_bytes", lambda: None)
    made: list[ColdTier] = []

    def build(**options: object) -> ColdTier:
        settings = ColdOptions(threaded=False, **options)  # type: ignore[arg-type]
        made.append(ColdTier(store, words=WORDS, clock_s=clock.whole, clock=clock, options=settings))
        return made[-1]

    yield build
    for tier in made:
        tier.close()


def put(tier: ColdTier, start: int, count: int) -> int:
    """Offer records and let the writer work; returns how many were taken."""
    keys = spread(start, count)
    taken = tier.insert_many(keys, rows_of(keys))
    tier.pump()
    return int(np.count_nonzero(taken))


def test_a_batch_waits_for_its_interval(make: MakeTier, store: Metered, clock: Clock) -> None:
    tier = make(flush_interval_s=300.0, flush_records=1 << 20)
    put(tier, 0, 100)
    clock.now += 299
    put(tier, 100, 100)
    assert store.batches == []
    clock.now += 1
    tier.submit()
    tier.pump()
    assert store.batches == [200]


def test_the_next_batch_waits_for_what_the_last_one_cost(make: MakeTier, store: Metered, clock: Clock) -> None:
    """100 records of 1000 bytes at 2000 bytes a second: 50 s."""
    tier = make(flush_interval_s=1.0, most_bytes_per_s=2000.0)
    put(tier, 0, 100)
    clock.now += 1
    put(tier, 100, 10)
    assert store.batches == [100]
    clock.now += 49
    put(tier, 110, 10)
    assert store.batches == [100]
    clock.now += 1
    put(tier, 120, 10)
    assert store.batches == [100, 20]
    stats = tier.cold_stats()
    assert (stats.batches, stats.disk_bytes) == (2, 120 * DISK_BYTES_A_RECORD)


def test_the_rate_holds_over_any_load(make: MakeTier, store: Metered, clock: Clock) -> None:
    """Whatever comes, and however full the buffer is: no more than the rate and one batch."""
    tier = make(flush_interval_s=1.0, most_bytes_per_s=50_000.0, buffer_bytes=1 << 16)
    begun = clock.now
    offered = taken = 0
    for _ in range(100):
        taken += put(tier, offered, 200)
        offered += 200
        clock.now += 0.5
        allowed = 50_000.0 * (clock.now - begun) + DISK_BYTES_A_RECORD * max([0, *store.batches])
        assert sum(store.batches) * DISK_BYTES_A_RECORD <= allowed
    assert len(store.batches) > 3
    assert taken < offered
    assert tier.stats().rejected == offered - taken


def test_a_flush_and_the_end_do_not_wait(make: MakeTier, store: Metered, clock: Clock) -> None:
    tier = make(flush_interval_s=1.0, most_bytes_per_s=1.0)
    put(tier, 0, 100)
    clock.now += 1
    put(tier, 100, 10)
    tier.flush()
    assert store.batches == [100, 10]
    put(tier, 110, 5)
    tier.close()
    assert store.batches == [100, 10, 5]


def test_what_the_drive_is_sent_is_read_from_the_kernel(tmp_path: Path, clock: Clock) -> None:
    """LMDB writes whole pages: many times the records' own bytes. On a file system in memory nothing is counted."""
    store = LmdbStore(tmp_path / "db", 16 << 20, words=WORDS, clock_s=clock.whole)
    tier = ColdTier(store, words=WORDS, clock_s=clock.whole, options=ColdOptions())
    keys = spread(0, 2000)
    tier.insert_many(keys, rows_of(keys))
    tier.flush()
    stats = tier.cold_stats()
    tier.close()
    assert stats.bytes_written == 2000 * store.value_bytes
    assert stats.disk_bytes >= stats.bytes_written


def test_the_pages_of_a_merge_count(tmp_path: Path, clock: Clock) -> None:
    """Engine slots writes them by io_uring, whose threads are not the writer's."""
    store = SlotsStore(tmp_path / "slots", 1 << 20, words=WORDS, clock_s=clock.whole)
    tier = ColdTier(store, words=WORDS, clock_s=clock.whole, clock=clock, options=ColdOptions(threaded=False))
    for start in range(0, 12_000, 1000):
        tier.insert_many(spread(start, 1000), rows_of(spread(start, 1000)))
        tier.flush()
    stats = tier.cold_stats()
    tier.close()
    assert store.merge_bytes > 0
    assert stats.disk_bytes >= stats.bytes_written + store.merge_bytes
