"""The cold tier by hand: no threads, a clock that the test moves, a store that fails when told to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from records import WORDS, Clock, keys_of, rows_of, same_chains, spread, table_bytes

from flashnest.errors import StoreError
from flashnest.record import CHAIN, HITS, U32Array, U64Array
from flashnest.storage.cold import ColdOptions, ColdTier
from flashnest.storage.cold_reads import READ_KEYS
from flashnest.storage.lmdb import LmdbStore
from flashnest.storage.slots import SlotsStore
from flashnest.storage.store import Found, State

MakeTier = Callable[..., ColdTier]


class Flaky(LmdbStore):
    """An LMDB store whose reads or writes fail when told to, and that counts its reads."""

    failing = ""
    reads = 0

    def lookup_many(self, keys: U64Array, found: Found) -> None:
        self.reads += 1
        if self.failing == "reads":
            raise OSError("Input/output error")
        super().lookup_many(keys, found)

    def write_many(self, keys: U64Array, rows: U32Array, removes: U64Array) -> np.ndarray:
        if self.failing == "writes":
            raise StoreError("no space left")
        return super().write_many(keys, rows, removes)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Flaky:
    return Flaky(tmp_path / "db", 4 << 20, words=WORDS, clock_s=clock.whole)


@pytest.fixture
def make(store: Flaky, clock: Clock) -> Iterator[MakeTier]:
    made: list[ColdTier] = []

    def build(**options: object) -> ColdTier:
        settings = {"threaded": False, "deadline_s": 1.0, "flush_interval_s": 5.0, **options}
        made.append(ColdTier(store, words=WORDS, clock_s=clock.whole, clock=clock, options=ColdOptions(**settings)))
        return made[-1]

    yield build
    store.failing = ""
    for tier in made:
        tier.close()


def stored(tier: ColdTier, count: int) -> U64Array:
    """Put `count` records on disk."""
    keys = spread(0, count)
    assert tier.insert_many(keys, rows_of(keys)).all()
    tier.flush()
    return keys


def tickets_for(keys: U64Array) -> np.ndarray:
    return np.arange(len(keys), dtype=np.int64) + 100


def buffered(tier: ColdTier, keys: U64Array) -> tuple[Found, np.ndarray]:
    found = Found.allocate(len(keys), WORDS)
    return found, tier.lookup_buffered(keys, found)


def test_stored_keys_are_pending_and_answered_at_a_later_drain(make: MakeTier) -> None:
    tier = make()
    keys = stored(tier, 200)
    asked = np.concatenate([keys, spread(9000, 50)])
    _, known = buffered(tier, asked)
    assert not known[:200].any()
    assert np.count_nonzero(known[200:]) >= 48, "the filter answers for absent keys"
    asked = asked[~known]
    assert tier.ask(asked, tickets_for(asked)).all()
    assert len(tier.drain()) == 0
    tier.submit()
    assert len(tier.drain()) == 0, "nothing is read before the reader runs"
    tier.pump()
    answers = tier.drain()
    assert answers.hit[:200].all()
    assert (answers.keys[:200] == keys).all()
    assert (answers.tickets[:200] == tickets_for(keys)).all()
    assert same_chains(answers.rows[:200], keys)
    assert len(tier.drain()) == 0
    stats = tier.cold_stats()
    assert (stats.queued, stats.answered, stats.late, stats.errors) == (len(answers), len(answers), 0, 0)
    assert stats.filter_negative == 250 - len(answers)


def test_new_records_are_hits_at_once_while_buffered_and_while_sealed(make: MakeTier, store: Flaky) -> None:
    tier = make(flush_records=100)
    keys = spread(0, 150)
    assert tier.insert_many(keys[:100], rows_of(keys[:100])).all()
    tier.insert_many(keys[100:], rows_of(keys[100:]))
    assert len(store) == 0, "the first hundred are sealed, the writer has not run"
    found, known = buffered(tier, keys)
    assert known.all()
    assert (found.state == State.HIT).all()
    assert same_chains(found.rows, keys)
    assert tier.cold_stats().buffered_hits == 150
    tier.pump()
    assert len(store) == 100
    found, known = buffered(tier, keys)
    assert np.flatnonzero(known).tolist() == list(range(100, 150))


def test_records_are_written_after_the_interval(make: MakeTier, store: Flaky, clock: Clock) -> None:
    tier = make()
    tier.insert_many(spread(0, 10), rows_of(spread(0, 10)))
    clock.now += 4.9
    tier.submit()
    tier.pump()
    assert len(store) == 0
    clock.now += 0.2
    tier.submit()
    tier.pump()
    assert len(store) == 10


def test_inserts_are_refused_and_counted_while_the_writer_is_behind(make: MakeTier) -> None:
    tier = make(buffer_bytes=2 * table_bytes(5))
    keys = spread(0, 200)
    taken = tier.insert_many(keys, rows_of(keys))
    room = np.count_nonzero(taken)
    assert room == 112, "two tables of 56 records"
    assert tier.stats().rejected == 200 - room
    assert tier.cold_stats().buffer_bytes <= 2 * table_bytes(5)
    tier.pump()
    assert tier.insert_many(keys[~taken], rows_of(keys[~taken])).sum() == 56


def test_a_refused_record_keeps_its_hits(make: MakeTier) -> None:
    tier = make(buffer_bytes=2 * table_bytes(5))
    keys = stored(tier, 40)
    others = spread(1000, 200)
    tier.insert_many(others, rows_of(others))  # the buffer is full and the writer has not come
    tier.touch_many(keys)
    assert not tier.insert_many(keys, rows_of(keys), replace=True).any()
    rows = rows_of(keys)
    tier.facts_many(keys, rows)
    assert (rows[:, HITS] == 1).all()


def test_what_the_store_evicts_is_counted(tmp_path: Path, clock: Clock) -> None:
    store = SlotsStore(tmp_path / "slots", 1 << 20, words=WORDS, clock_s=clock.whole)
    options = ColdOptions(threaded=False, flush_records=4096)
    tier = ColdTier(store, words=WORDS, clock_s=clock.whole, clock=clock, options=options)
    for start in range(0, 24_576, 4096):
        tier.insert_many(spread(start, 4096), rows_of(spread(start, 4096)))
        tier.flush()
    store.merge()
    assert tier.stats().evicted == store.stats().evicted > 0
    tier.close()


def test_known_records_are_not_written_again(make: MakeTier, store: Flaky) -> None:
    tier = make()
    keys = stored(tier, 50)
    written = tier.cold_stats().bytes_written
    assert written == 50 * store.value_bytes
    assert tier.insert_many(keys, rows_of(keys)).all()
    tier.flush()
    assert tier.cold_stats().known == 50
    assert tier.cold_stats().bytes_written == written
    assert store.stats().updates == 0


def test_failing_drafts_let_the_next_learn_replace_the_record(make: MakeTier, store: Flaky) -> None:
    tier = make()
    keys = stored(tier, 3)
    drafted = np.array([8, 8, 8], np.uint32)
    tier.feedback_many(keys, drafted, np.array([0, 4, 0], np.uint32))
    tier.insert_many(keys[:2], rows_of(keys[:2], chain=77))
    tier.flush()
    found = Found.allocate(3, WORDS)
    store.lookup_many(keys, found)
    first = rows_of(keys)[:, CHAIN]
    assert found.rows[:, CHAIN].tolist() == [77, first[1], first[2]]
    tier.insert_many(keys[:1], rows_of(keys[:1], chain=88))
    tier.flush()
    store.lookup_many(keys[:1], found)
    assert found.rows[0, CHAIN] == 77, "the new chain has not failed"


def test_replace_forces_the_write(make: MakeTier, store: Flaky) -> None:
    tier = make()
    keys = stored(tier, 2)
    tier.insert_many(keys, rows_of(keys, chain=77), replace=True)
    tier.flush()
    assert store.stats().updates == 2


def test_late_answer_is_a_miss_once(make: MakeTier, store: Flaky, clock: Clock) -> None:
    tier = make()
    keys = stored(tier, 5)
    tier.ask(keys, tickets_for(keys))
    tier.submit()
    clock.now += 1.0
    answers = tier.drain()
    assert (answers.tickets == tickets_for(keys)).all()
    assert not answers.hit.any()
    reads = store.reads
    tier.pump()
    assert store.reads == reads, "what is answered already is not read"
    assert len(tier.drain()) == 0
    assert tier.cold_stats().late == 5
    assert tier.cold_stats().answered == 0


def test_answer_that_came_in_time_is_served_by_a_late_drain(make: MakeTier, clock: Clock) -> None:
    tier = make()
    keys = stored(tier, 5)
    tier.ask(keys, tickets_for(keys))
    tier.submit()
    tier.pump()
    clock.now += 60
    assert tier.drain().hit.all()
    assert tier.cold_stats().late == 0


def test_keys_beyond_the_queue_are_dropped_as_misses(make: MakeTier) -> None:
    tier = make(queue_keys=READ_KEYS + 6)
    keys = stored(tier, 100)
    pending = tier.ask(keys, tickets_for(keys))
    assert np.flatnonzero(pending).tolist() == list(range(READ_KEYS + 6))
    assert tier.cold_stats().dropped == 100 - READ_KEYS - 6
    tier.submit()
    tier.pump()
    assert len(tier.drain()) == READ_KEYS + 6
    assert tier.ask(keys[-5:], tickets_for(keys[-5:])).all(), "answers make room"


def test_failing_reads_are_misses_counted_and_logged_once(
    make: MakeTier, store: Flaky, caplog: pytest.LogCaptureFixture
) -> None:
    tier = make()
    keys = stored(tier, 5)
    store.failing = "reads"
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            tier.ask(keys, tickets_for(keys))
            tier.submit()
            tier.pump()
            assert not tier.drain().hit.any()
    assert tier.cold_stats().errors == 15
    assert len([r for r in caplog.records if "cold reads fail" in r.message]) == 1
    store.failing = ""
    tier.ask(keys, tickets_for(keys))
    tier.submit()
    tier.pump()
    assert tier.drain().hit.all()


def test_failing_writes_are_counted_and_the_records_may_be_learnt_again(
    make: MakeTier, store: Flaky, caplog: pytest.LogCaptureFixture
) -> None:
    tier = make()
    keys = spread(0, 20)
    store.failing = "writes"
    tier.insert_many(keys, rows_of(keys))
    tier.flush()
    assert tier.cold_stats().write_errors == 20
    assert "cold writes fail" in caplog.text
    _, known = buffered(tier, keys)
    assert not known.any()
    store.failing = ""
    assert tier.insert_many(keys, rows_of(keys)).all()
    tier.flush()
    assert store.contains_many(keys).all()


def test_nearly_full_tier_refuses_new_records_rather_than_lose_them(make: MakeTier, store: Flaky) -> None:
    tier = make()
    taken = [keys[tier.insert_many(keys, rows_of(keys))] for keys in (spread(i, 1000) for i in range(0, 60_000, 1000))]
    tier.flush()
    held = np.concatenate(taken)
    assert store.contains_many(held).all(), "what was taken is there"
    assert store.stats().rejected == 0
    stats = tier.stats()
    assert stats.fill >= 0.99
    assert stats.records == len(held) > 20_000
    assert stats.rejected == 60_000 - len(held)
    assert stats.bytes_used <= 4 << 20
    fresh = spread(900_000, 1000)
    left = np.count_nonzero(tier.insert_many(fresh, rows_of(fresh), replace=True))
    assert left < 0.01 * len(held)
    tier.flush()
    assert store.stats().rejected == 0
    more = spread(990_000, 100)
    assert np.count_nonzero(tier.insert_many(more, rows_of(more))) <= 3, "but for false positives of the filter"
    assert not tier.insert_many(more, rows_of(more), replace=True).any()
    assert tier.read_now(held[:1]) is not None


def test_fill_counts_what_waits_and_falls_with_removals_that_wait(make: MakeTier) -> None:
    tier = make()
    keys = stored(tier, 4000)
    before = tier.stats()
    more = spread(50_000, 4000)
    tier.insert_many(more, rows_of(more))
    waiting = tier.stats()
    assert waiting.records == 8000
    assert waiting.fill == pytest.approx(2 * before.fill, rel=0.01)
    tier.flush()
    assert tier.stats().fill == pytest.approx(waiting.fill, rel=0.01)
    tier.forget_many(keys)
    assert tier.stats().fill == pytest.approx(before.fill, rel=0.01)
    assert tier.stats().records == 4000
    tier.flush()
    assert tier.stats().fill == pytest.approx(before.fill, rel=0.01)


def test_full_tier_takes_new_records_again_once_some_are_removed(make: MakeTier, store: Flaky) -> None:
    tier = make()
    held = spread(0, 60_000)
    held = held[np.concatenate([tier.insert_many(part, rows_of(part)) for part in np.split(held, 60)])]
    fresh = spread(900_000, 100)
    assert not tier.insert_many(fresh, rows_of(fresh), replace=True).any()
    tier.forget_many(held[:3000])
    assert tier.insert_many(fresh, rows_of(fresh), replace=True).all()
    tier.flush()
    assert store.contains_many(fresh).all()


def test_removed_records_answer_miss_before_and_after_the_flush(make: MakeTier, store: Flaky) -> None:
    tier = make()
    keys = stored(tier, 10)
    assert tier.forget_many(keys[:4]).all()
    found, known = buffered(tier, keys)
    assert known[:4].all()
    assert (found.state[:4] == State.MISS).all()
    assert not known[4:].any()
    tier.flush()
    assert store.contains_many(keys).tolist() == [False] * 4 + [True] * 6
    assert tier.read_now(keys[:1]) is None


def test_read_that_finds_nothing_counts_a_false_positive_and_allows_learning(make: MakeTier, store: Flaky) -> None:
    tier = make()
    keys = stored(tier, 10)
    tier.forget_many(keys[:1])
    tier.flush()
    tier.ask(keys[:1], tickets_for(keys[:1]))
    tier.submit()
    tier.pump()
    assert tier.drain().hit.tolist() == [False]
    assert tier.cold_stats().filter_false_positive == 1
    tier.insert_many(keys[:1], rows_of(keys[:1]))
    tier.flush()
    assert store.contains_many(keys[:1]).all()


def test_filter_is_rebuilt_from_the_file(make: MakeTier, store: Flaky, tmp_path: Path, clock: Clock) -> None:
    keys = stored(make(), 300)
    make().close()
    again = LmdbStore(tmp_path / "db", 4 << 20, words=WORDS, clock_s=clock.whole)
    tier = ColdTier(again, words=WORDS, clock_s=clock.whole, clock=clock, options=ColdOptions(threaded=False))
    assert tier.may_hold(keys).all()
    assert tier.stats().records == 300
    tier.close()


def test_threads_read_and_write_by_themselves(store: Flaky, clock: Clock) -> None:
    tier = ColdTier(store, words=WORDS, clock_s=clock.whole, options=ColdOptions(deadline_s=30.0))
    keys = spread(0, 500)
    tier.insert_many(keys, rows_of(keys))
    tier.flush()
    assert len(store) == 500
    tier.ask(keys, tickets_for(keys))
    tier.submit()
    seen: set[int] = set()
    while len(seen) < 500:
        tier.wait(5.0)
        answers = tier.drain()
        assert answers.hit.all()
        seen |= set(answers.tickets.tolist())
    assert seen == set(tickets_for(keys).tolist())
    tier.insert_many(keys_of(1, 2), rows_of(keys_of(1, 2)))
    tier.close()
    tier.close()


def test_removed_record_can_be_learnt_again_at_once(make: MakeTier, store: Flaky) -> None:
    tier = make()
    keys = stored(tier, 300)
    tier.forget_many(keys)
    tier.flush()
    assert len(store) == 0
    assert tier.insert_many(keys, rows_of(keys)).all()
    tier.flush()
    assert store.contains_many(keys).all()
    assert tier.cold_stats().known == 0
