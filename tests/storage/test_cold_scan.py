"""The slow walk over a cold tier: every record once a pass, none that changed meanwhile, facts of use merged in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from records import WORDS, Clock, keys_of, rows_of, same_chains, spread

from flashnest.record import HITS, LAST_ACCESS, U64Array
from flashnest.storage.cold import ColdOptions, ColdTier
from flashnest.storage.lmdb import LmdbStore


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tier(tmp_path: Path, clock: Clock) -> Iterator[ColdTier]:
    store = LmdbStore(tmp_path / "db", 4 << 20, words=WORDS, clock_s=clock.whole)
    tier = ColdTier(store, words=WORDS, clock_s=clock.whole, clock=clock, options=ColdOptions(threaded=False))
    yield tier
    tier.close()


def stored(tier: ColdTier, count: int) -> U64Array:
    keys = spread(0, count)
    assert tier.insert_many(keys, rows_of(keys)).all()
    tier.flush()
    return keys


def take(tier: ColdTier, records: int) -> tuple[U64Array, np.ndarray]:
    tier.scan_ask(records)
    assert tier.scan_take() is None, "nothing is read before the writer runs"
    tier.pump()
    taken = tier.scan_take()
    assert taken is not None
    return taken


def test_a_pass_brings_every_record_once_then_starts_again(tier: ColdTier) -> None:
    keys = stored(tier, 250)
    for _ in range(2):
        seen = []
        while True:
            some, rows = take(tier, 100)
            assert same_chains(rows, some)
            seen.append(some)
            if tier.scan_position == 0:
                break
        assert sorted(np.concatenate(seen).tolist()) == sorted(keys.tolist())


def test_slice_is_taken_once_and_asked_for_once(tier: ColdTier) -> None:
    stored(tier, 50)
    tier.scan_ask(10)
    tier.scan_ask(20)
    tier.pump()
    taken = tier.scan_take()
    assert taken is not None
    assert len(taken[0]) == 10
    assert tier.scan_take() is None


def test_use_that_only_dram_knows_is_merged_in(tier: ColdTier, clock: Clock) -> None:
    keys = stored(tier, 10)
    clock.now += 100
    tier.touch_many(keys[:1])
    tier.touch_many(keys[:1])
    assert tier.read_now(keys[1:2]) is not None
    tier.ask(keys[2:3], np.zeros(1, np.int64))
    tier.submit()
    tier.pump()
    assert tier.drain().hit.all()
    some, rows = take(tier, 100)
    order = np.argsort(some)[np.argsort(np.argsort(keys))]
    assert rows[order, HITS].tolist() == [2, 1, 1] + [0] * 7
    assert rows[order, LAST_ACCESS].tolist() == [1100] * 3 + [1000] * 7


def test_records_changed_before_the_taking_are_left_out(tier: ColdTier) -> None:
    keys = stored(tier, 10)
    tier.forget_many(keys[:2])  # buffered when asked
    tier.scan_ask(100)
    tier.pump_slice()
    tier.forget_many(keys[2:4])
    tier.insert_many(keys[4:5], rows_of(keys[4:5], chain=7), replace=True)
    tier.flush()  # sealed and written after the read
    tier.insert_many(keys[5:6], rows_of(keys[5:6], chain=7), replace=True)
    taken = tier.scan_take()
    assert taken is not None
    assert sorted(taken[0].tolist()) == sorted(keys[6:].tolist())


def test_writes_go_before_the_walk(tier: ColdTier) -> None:
    keys = stored(tier, 10)
    tier.forget_many(keys[:1])
    tier.scan_ask(100)
    tier.flush()
    tier.pump()
    taken = tier.scan_take()
    assert taken is not None
    assert keys[0] not in taken[0]


def test_failing_walk_brings_nothing_and_starts_again(tier: ColdTier, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = stored(tier, 30)
    take(tier, 10)
    assert tier.scan_position != 0

    def fail(position: int, records: int) -> None:
        raise OSError("Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(tier._store, "scan_from", fail)
        assert len(take(tier, 10)[0]) == 0
    assert tier.scan_position == 0
    assert len(take(tier, 100)[0]) == len(keys)


def test_writer_thread_reads_the_walk_by_itself(tmp_path: Path, clock: Clock) -> None:
    store = LmdbStore(tmp_path / "other", 4 << 20, words=WORDS, clock_s=clock.whole)
    tier = ColdTier(store, words=WORDS, clock_s=clock.whole)
    keys = keys_of(1, 2, 3)
    tier.insert_many(keys, rows_of(keys))
    tier.scan_ask(10)
    tier.flush()
    taken = tier.scan_take()
    while taken is None:
        taken = tier.scan_take()
    assert set(taken[0].tolist()) <= {1, 2, 3}
    tier.close()
