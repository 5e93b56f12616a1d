"""The router: order of the tiers, one owner a record, the longest match over both tiers, figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from contract import StoreContract, clock  # noqa: F401
from hypothesis import given, settings
from hypothesis import strategies as st
from records import WORDS, Clock, Placement, keys_of, rows_of, same_chains, spread, table_bytes

from flashnest.record import CHAIN, Admission, Tier, U64Array
from flashnest.storage.cold import ColdOptions, ColdTier
from flashnest.storage.lmdb import LmdbStore
from flashnest.storage.lookup_times import LookupTimes
from flashnest.storage.router import Router
from flashnest.storage.step_clock import StepClock
from flashnest.storage.store import Found, State, StoreStats
from flashnest.storage.table import DramTable

MakeRouter = Callable[..., Router]


def build(path: Path, *, buckets: int = 50, placement: Placement | None = None, **options: object) -> Router:
    now = Clock()
    store = LmdbStore(path, 8 << 20, words=WORDS, clock_s=now.whole)
    cold = ColdTier(store, words=WORDS, clock_s=now.whole, clock=now, options=ColdOptions(threaded=False, **options))
    dram = DramTable(table_bytes(max(1, buckets // 2)), words=WORDS, clock_s=now.whole)
    ticks = count(0, 1000)
    return Router(dram, cold, placement or Placement(), clock_ns=lambda: next(ticks))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeRouter]:
    made: list[Router] = []

    def make_one(**options: object) -> Router:
        made.append(build(tmp_path / f"db{len(made)}", **options))
        return made[-1]

    yield make_one
    for router in made:
        router.close()


def lookup(router: Router, keys: U64Array) -> Found:
    found = Found.allocate(len(keys), WORDS)
    router.lookup_many(keys, np.arange(len(keys), dtype=np.int64), found)
    return found


def owners(router: Router, keys: U64Array) -> np.ndarray:
    """Return how many tiers answer for each key."""
    cold = router._cold
    assert cold is not None
    found = Found.allocate(len(keys), WORDS)
    known = cold.lookup_buffered(keys, found)
    on_disk = cold._store.contains_many(keys)
    in_cold = np.where(known, found.state == State.HIT, on_disk)
    return router._dram.contains_many(keys).astype(int) + in_cold.astype(int)


class RouterAsStore:
    """A blocking router in the shape of a store, all of whose records go to one chain."""

    tier = Tier.DRAM

    def __init__(self, router: Router) -> None:
        self._router = router
        self.contains_many = router._dram.contains_many
        self.insert_many, self.remove_many = router.insert_many, router.remove_many
        self.feedback_many, self.scan, self.close = router.feedback_many, router._dram.scan, router.close

    def lookup_many(self, keys: U64Array, found: Found) -> None:
        self._router.lookup_many(keys, np.zeros(len(keys), np.int64), found)

    def stats(self) -> StoreStats:
        return self._router.stats().tiers[Tier.DRAM]


class TestContract(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path, clock: Clock) -> Iterator[RouterAsStore]:  # noqa: F811
        disk = LmdbStore(tmp_path / "db", 4 << 20, words=WORDS, clock_s=clock.whole)
        options = ColdOptions(blocking=True, threaded=False)
        cold = ColdTier(disk, words=WORDS, clock_s=clock.whole, clock=clock, options=options)
        dram = DramTable(40_000, words=WORDS, clock_s=clock.whole)
        router = Router(dram, cold, Placement(chains=((Tier.DRAM,),), admissions=(None,), long=0))
        yield RouterAsStore(router)
        router.close()


def test_records_go_where_the_policy_says(make: MakeRouter) -> None:
    router = make()
    long, short, middle = spread(0, 20), spread(100, 20), spread(200, 20)
    assert router.insert_many(long, rows_of(long, tokens=32)).all()
    assert router.insert_many(short, rows_of(short, tokens=8)).all()
    assert not router.insert_many(middle, rows_of(middle, tokens=16)).any()
    stats = router.stats()
    assert stats.tiers[Tier.DRAM].records == 20
    assert stats.tiers[Tier.NVME].records == 20
    assert stats.rejected == 20
    found = lookup(router, np.concatenate([long, short, middle]))
    assert found.state.tolist() == [State.HIT] * 40 + [State.MISS] * 20
    assert found.tier[:40].tolist() == [Tier.DRAM] * 20 + [Tier.NVME] * 20


def test_mixed_batch_is_placed_record_by_record(make: MakeRouter) -> None:
    router = make()
    keys = spread(0, 30)
    rows = rows_of(keys)
    rows[::2] = rows_of(keys[::2], tokens=8)
    assert router.insert_many(keys, rows).all()
    assert (lookup(router, keys).tier[::2] == Tier.NVME).all()
    assert (lookup(router, keys).tier[1::2] == Tier.DRAM).all()


def test_full_dram_spills_along_the_chain(make: MakeRouter) -> None:
    router = make(buckets=10)
    keys = spread(0, 200)
    assert router.insert_many(keys, rows_of(keys)).all()
    stats = router.stats()
    assert stats.tiers[Tier.DRAM].records == 56
    assert stats.tiers[Tier.NVME].records == 144
    assert stats.tiers[Tier.DRAM].evicted == 0
    assert (owners(router, keys) == 1).all()


def test_dram_evicts_where_nothing_in_the_chain_has_room(make: MakeRouter) -> None:
    router = make(buckets=10, buffer_bytes=2 * table_bytes(5))
    keys = spread(0, 400)
    assert router.insert_many(keys[:168], rows_of(keys[:168])).all()
    router.insert_many(keys[168:200], rows_of(keys[168:200]))
    assert router.stats().tiers[Tier.DRAM].evicted == 32
    assert router.stats().tiers[Tier.DRAM].records == 56
    assert lookup(router, keys[168:200]).state.all()


def test_without_cold_tier_the_chain_ends_in_dram() -> None:
    router = Router(DramTable(table_bytes(5), words=WORDS, clock_s=lambda: 5), None, Placement())
    keys = spread(0, 80)
    assert np.count_nonzero(router.insert_many(keys, rows_of(keys))) == 56
    short = spread(500, 3)
    assert not router.insert_many(short, rows_of(short, tokens=8)).any()
    assert len(router.drain()) == 0
    assert router.stats().cold is None
    router.submit()
    router.wait(0.0)
    router.close()


def test_pending_keys_are_answered_under_their_tickets(make: MakeRouter) -> None:
    router = make()
    keys = spread(0, 10)
    router.insert_many(keys, rows_of(keys, tokens=8))
    router.flush()
    found = Found.allocate(10, WORDS)
    router.lookup_many(keys, np.arange(10, dtype=np.int64) * 7, found)
    assert (found.state == State.PENDING).all()
    router.submit()
    router.wait(0.0)
    answers = router.drain()
    assert answers.tickets.tolist() == [i * 7 for i in range(10)]
    assert answers.hit.all()
    assert same_chains(answers.rows, keys)


def test_blocking_reads_answer_in_line(make: MakeRouter) -> None:
    router = make(blocking=True)
    keys = spread(0, 10)
    router.insert_many(keys, rows_of(keys, tokens=8))
    router.flush()
    found = lookup(router, np.concatenate([keys, spread(50, 2)]))
    assert found.state.tolist() == [State.HIT] * 10 + [State.MISS] * 2
    assert (found.tier[:10] == Tier.NVME).all()
    assert same_chains(found.rows[:10], keys)
    cold = router.stats().cold
    assert cold is not None
    assert cold.answered == 10


def longest(router: Router, keys: list[list[int]]) -> tuple[Found, list[int]]:
    asked = np.array(keys, np.uint64)
    found, index = Found.allocate(len(keys), WORDS), np.zeros(len(keys), np.int64)
    router.longest_many(asked, np.arange(len(keys), dtype=np.int64) * 8, found, index)
    return found, index.tolist()


def test_longest_asks_the_cold_tier_only_for_longer_matches(make: MakeRouter) -> None:
    router = make()
    in_dram, on_disk = keys_of(11, 22, 34), keys_of(12, 13, 21, 33)
    router.insert_many(in_dram, rows_of(in_dram))
    router.insert_many(on_disk, rows_of(on_disk, tokens=8))
    router.flush()
    found, index = longest(router, [[11, 12, 13, 0], [21, 22, 23, 24], [31, 32, 33, 34], [0, 33, 0, 0], [41, 0, 0, 0]])
    assert index == [0, 1, 3, -1, -1]
    assert found.state.tolist() == [State.HIT, State.HIT, State.HIT, State.PENDING, State.MISS]
    assert (found.tier[:3] == Tier.DRAM).all()
    router.submit()
    router.wait(0.0)
    answers = router.drain()
    assert sorted(zip(answers.tickets.tolist(), answers.keys.tolist(), strict=True)) == [(1, 12), (2, 13), (25, 33)]
    assert answers.hit.all()


def test_longest_prefers_a_longer_buffered_record_and_asks_for_nothing_shorter(make: MakeRouter) -> None:
    router = make()
    on_disk, buffered = keys_of(12), keys_of(13, 14)
    router.insert_many(on_disk, rows_of(on_disk, tokens=8))
    router.flush()
    router.insert_many(keys_of(11), rows_of(keys_of(11)))
    router.insert_many(buffered, rows_of(buffered, tokens=8))
    found, index = longest(router, [[11, 12, 13, 14]])
    assert index == [3]
    assert found.tier[0] == Tier.NVME
    assert found.rows[0, CHAIN] == 14
    router.submit()
    router.wait(0.0)
    assert len(router.drain()) == 0


def test_blocking_longest_stops_at_the_longest(make: MakeRouter) -> None:
    router = make(blocking=True)
    on_disk = keys_of(12, 13)
    router.insert_many(on_disk, rows_of(on_disk, tokens=8))
    router.flush()
    found, index = longest(router, [[11, 12, 13, 14]])
    assert index == [2]
    assert found.rows[0, CHAIN] == 13
    cold = router.stats().cold
    assert cold is not None
    assert cold.answered == 1


def test_record_moves_to_dram_when_it_is_learnt_again_with_room(make: MakeRouter) -> None:
    router = make(buckets=10)
    keys = spread(0, 100)
    router.insert_many(keys, rows_of(keys))
    router.flush()
    spilled = keys[~router._dram.contains_many(keys)]
    router.remove_many(keys[router._dram.contains_many(keys)][:30])
    router.insert_many(spilled[:20], rows_of(spilled[:20]))
    assert router._dram.contains_many(spilled[:20]).all()
    assert (owners(router, spilled) == 1).all()
    router.flush()
    assert (owners(router, spilled) == 1).all()


def test_feedback_reaches_records_in_either_tier(make: MakeRouter) -> None:
    router = make()
    keys = keys_of(1, 2)
    router.insert_many(keys[:1], rows_of(keys[:1]))
    router.insert_many(keys[1:], rows_of(keys[1:], tokens=8))
    router.flush()
    router.feedback_many(keys, np.array([9, 9], np.uint32), np.array([3, 0], np.uint32))
    assert lookup(router, keys[:1]).rows[0, [5, 6]].tolist() == [9, 3]
    router.insert_many(keys[1:], rows_of(keys[1:], tokens=8, chain=5))
    assert lookup(router, keys[1:]).rows[0, CHAIN] == 5


def test_lookup_times_are_kept_by_key(make: MakeRouter) -> None:
    router = make()
    lookup(router, spread(0, 10))
    longest(router, [[1, 2, 3, 4]] * 5)
    times = router.stats().lookup_ns
    assert (times.keys, times.total_ns) == (30, 2000)
    assert times.mean_ns == pytest.approx(2000 / 30)
    assert times.p50_ns == pytest.approx(50, rel=0.1)
    assert times.p99_ns == pytest.approx(100, rel=0.1)


def test_no_lookups_give_zeros_and_slow_ones_fit_the_histogram() -> None:
    times = LookupTimes()
    assert times.summary().p99_ns == 0
    times.add(1, 1 << 60)
    times.add(0, 100)
    assert times.summary().keys == 1


def test_placement_sees_the_facts_of_each_record() -> None:
    seen: list[tuple[int, ...]] = []

    class Spy(Placement):
        def chain_codes(self, tokens, kind, namespace, nbytes):  # type: ignore[no-untyped-def]
            seen.extend(zip(tokens.tolist(), kind.tolist(), namespace.tolist(), nbytes.tolist(), strict=True))
            return super().chain_codes(tokens, kind, namespace, nbytes)

    router = Router(DramTable(1 << 16, words=WORDS, clock_s=lambda: 5), None, Spy())
    rows = rows_of(keys_of(1), tokens=32)
    rows[0, 1] = 77
    router.insert_many(keys_of(1), rows)
    assert seen == [(32, 0, 77, 72)]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_interleavings_lose_nothing_and_never_give_two_owners(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Against a dict: a chain is a function of its key here, so an answer must be that chain; removed keys are gone."""
    router = build(tmp_path_factory.mktemp("model") / "db", buckets=data.draw(st.integers(1, 40)), flush_records=40)
    universe = np.arange(1, 101, dtype=np.uint64)
    held: set[int] = set()
    for _ in range(data.draw(st.integers(1, 14))):
        keys = np.array(data.draw(st.lists(st.integers(1, 100), min_size=1, max_size=50)), np.uint64)
        action = data.draw(st.sampled_from(["long", "short", "remove", "lookup", "pump", "flush"]))
        if action in {"long", "short"}:
            rows = rows_of(keys, tokens=32 if action == "long" else 8)
            held |= set(keys[router.insert_many(keys, rows)].tolist())
        elif action == "remove":
            router.remove_many(keys)
            held -= set(keys.tolist())
        elif action == "lookup":
            found = lookup(router, keys)
            hits = found.state == State.HIT
            assert set(keys[hits].tolist()) <= held
            assert same_chains(found.rows[hits], keys[hits])
        elif action == "pump":
            router.submit()
            router.wait(0.0)
            answers = router.drain()
            assert same_chains(answers.rows[answers.hit], answers.keys[answers.hit])
        else:
            router.flush()
        counts = owners(router, universe)
        assert set(universe[counts > 0].tolist()) == held
        assert counts.max() <= 1
        dram = router.stats().tiers[Tier.DRAM]
        assert dram.bytes_used <= dram.bytes_budget
        assert dram.evicted == 0
    router.close()


def test_a_drain_reads_the_step_clock() -> None:
    now = Clock()
    steps = StepClock(now.whole)
    router = Router(DramTable(table_bytes(4), words=WORDS, clock_s=steps), None, Placement(), clock_s=steps)
    now.now += 60
    assert steps() == 1000
    router.drain()
    assert steps() == 1060
    router.close()


def test_a_sketch_too_small_for_the_keys_lets_records_in_early() -> None:
    """20,000 keys seen once each: a gate made for as many keeps them out, one made for 100 does not."""
    admitted = {}
    for expected in (100, 20_000):
        placement = Placement(chains=((Tier.DRAM,),), admissions=(Admission(2, 600),), long=0)
        dram = DramTable(1 << 21, words=WORDS, clock_s=lambda: 5)
        router = Router(dram, None, placement, window_keys=expected, clock_s=lambda: 5)
        keys = spread(0, 20_000)
        admitted[expected] = int(np.count_nonzero(router.insert_many(keys, rows_of(keys))))
        router.close()
    assert admitted[20_000] < 1000 < 10_000 < admitted[100]
