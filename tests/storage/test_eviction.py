"""What a full table gives up, whichever the algorithm: distinct, stored, as many as asked for, evenly spread."""

from __future__ import annotations

import numpy as np
import pytest
from evicting import look, put, table_of
from hypothesis import given, settings
from hypothesis import strategies as st
from records import WORDS, Clock, rows_of, same_chains, spread

from flashnest.errors import StoreError
from flashnest.record import U64Array
from flashnest.storage import kernels_evict, kernels_layout
from flashnest.storage.eviction import EVICTIONS, QueueEvictor, evictor_bytes
from flashnest.storage.table import DramTable


def used_table(eviction: str) -> tuple[DramTable, U64Array, Clock]:
    """Return a full table and the third of its records that was found twice; the others were never found."""
    clock = Clock(1_000_000)
    table = table_of(2000, eviction, clock)
    keys = spread(0, table.max_records)
    put(table, keys)
    used = keys[::3]
    clock.now += 10
    assert look(table, used).all()
    assert look(table, used).all()
    return table, used, clock


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_records_never_found_again_go_first(eviction: str) -> None:
    table, used, _ = used_table(eviction)
    gone, rows = table.evict_many(len(table) // 2)
    assert len(gone) == len(rows)
    assert same_chains(rows, gone)
    assert np.isin(gone, used).sum() <= 0.02 * len(gone)


@pytest.mark.parametrize(("eviction", "kept"), [("s3fifo", 0.98), ("sieve", 0.98), ("lru", 0.0)])
def test_scan_as_long_as_the_table_leaves_used_records_to_s3fifo_and_sieve(eviction: str, kept: float) -> None:
    table, used, clock = used_table(eviction)
    for part in np.array_split(
        spread(1_000_000, 2 * table.max_records if eviction == "lru" else table.max_records), 40
    ):
        clock.now += 1
        put(table, part)
    share = table.contains_many(used).mean()
    assert share >= kept
    if eviction == "lru":
        assert share < 0.05


def test_s3fifo_keeps_used_records_through_scans_of_any_length() -> None:
    table, used, _ = used_table("s3fifo")
    put(table, spread(1_000_000, 8 * table.max_records))
    assert table.contains_many(used).mean() > 0.98


def test_s3fifo_remembers_what_left_the_queue_unused() -> None:
    """A key that comes back soon goes to the main part: the next scan takes others as new and unused."""
    table, _, _ = used_table("s3fifo")
    first, strangers = spread(1_000_000, 100), spread(2_000_000, 100)
    put(table, first)
    put(table, spread(3_000_000, table.max_records))
    assert not table.contains_many(first).any()
    put(table, first)
    put(table, strangers)
    put(table, spread(4_000_000, table.max_records))
    assert table.contains_many(first).mean() > 0.9
    assert not table.contains_many(strangers).any()


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_victims_that_were_spared_are_not_offered_next(eviction: str) -> None:
    table, _, _ = used_table(eviction)
    offered, rows = table.victims(100)
    assert table.contains_many(offered).all()
    assert same_chains(rows, offered)
    table.spare_many(offered)
    gone, _ = table.evict_many(500)
    assert not np.isin(offered, gone).any()
    assert table.contains_many(offered).all()


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_victims_that_nobody_took_or_spared_are_offered_again(eviction: str) -> None:
    table, _, _ = used_table(eviction)
    offered, _ = table.victims(100)
    gone, _ = table.evict_many(len(table) - 500)
    assert np.isin(offered, gone).mean() > 0.8


@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.parametrize("records", [1, 7, 800, 1_000_000])
def test_as_many_go_as_asked_for_or_all_there_are_even_if_all_are_hot(eviction: str, records: int) -> None:
    table = table_of(1000, eviction)
    keys = spread(0, table.max_records)
    put(table, keys)
    for _ in range(4):
        look(table, keys)
    gone, rows = table.evict_many(records)
    assert len(gone) == min(records, len(keys))
    assert len(np.unique(gone)) == len(gone)
    assert same_chains(rows, gone)
    assert np.isin(gone, keys).all()
    assert len(table) == len(keys) - len(gone) == np.count_nonzero(table.contains_many(keys))


def hand_steps(before: U64Array, after: U64Array, buckets: int) -> int:
    bucket, steps = int(before[kernels_evict.BUCKET]), 0
    while bucket != after[kernels_evict.BUCKET]:
        bucket, steps = (bucket + int(before[kernels_evict.LEAP])) % buckets, steps + 1
    return steps


@pytest.mark.parametrize("eviction", ["s3fifo", "sieve"])
def test_one_victim_among_hot_records_costs_bounded_work(eviction: str) -> None:
    table = table_of(60_000, eviction)
    keys = spread(0, table.max_records)
    put(table, keys)
    for _ in range(4):
        look(table, keys)
    evictor = table._evictor
    assert isinstance(evictor, QueueEvictor)
    for _ in range(3):
        before = evictor._state.copy()
        assert len(table.evict_many(1)[0]) == 1
        popped = int(before[kernels_evict.COUNT] - evictor._state[kernels_evict.COUNT])
        assert 0 < popped + hand_steps(before, evictor._state, int(table._desk[kernels_layout.BUCKETS])) < 300


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_evicting_from_an_almost_empty_table_finds_what_is_left(eviction: str) -> None:
    table = table_of(3000, eviction)
    keys = spread(0, table.max_records)
    put(table, keys)
    table.remove_many(keys[3:])
    gone, _ = table.evict_many(10)
    assert sorted(gone.tolist()) == sorted(keys[:3].tolist())
    put(table, keys)
    assert len(table) == table.max_records


@pytest.mark.parametrize("eviction", ["s3fifo", "sieve"])
def test_overwriting_records_does_not_queue_them_again(eviction: str) -> None:
    table = table_of(1000, eviction)
    keys = spread(0, 500)
    for _ in range(5):
        put(table, keys)
    evictor = table._evictor
    assert isinstance(evictor, QueueEvictor)
    assert evictor._state[kernels_evict.COUNT] == 500


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_cleared_table_starts_afresh(eviction: str) -> None:
    table, _, clock = used_table(eviction)
    table.clear()
    keys = spread(5_000_000, 2 * table.max_records)
    put(table, keys[: table.max_records])
    clock.now += 1
    look(table, keys[:500])
    look(table, keys[:500])
    put(table, keys[table.max_records : table.max_records + 500])
    assert table.contains_many(keys[:500]).mean() > 0.98


@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.parametrize("used", [False, True])
def test_what_goes_is_spread_evenly_so_that_probes_stay_short(eviction: str, used: bool) -> None:
    """After two turnovers about a third of the buckets was passed over, as in a table filled once. A hand that went
    from bucket to bucket, or took the first of equals, left counts of 255 and buckets passed by a hundred keys."""
    table = table_of(40_000, eviction)
    keys = spread(0, 3 * table.max_records)
    for part in np.array_split(keys, len(keys) // 2000):
        assert table.insert_many(part, rows_of(part)).all()
        if used:
            look(table, part)
            look(table, part)
    counts = table._memory.memory.reshape(-1, 72)[:, :16].reshape(-1, 8)[:, 7].copy().view(np.uint8).reshape(-1, 8)
    assert len(table) == table.max_records
    assert counts.max() < 20
    assert counts.sum(axis=1).mean() < 2


@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.parametrize("budget", [5_000, 300_001, 9_000_000])
def test_queues_and_ghost_are_inside_the_budget_and_counted(eviction: str, budget: int) -> None:
    table = DramTable(budget, words=WORDS, clock_s=lambda: 5, eviction=eviction, populate=False)
    beside = evictor_bytes(eviction, table.max_records)
    assert table._evictor.bytes_used == beside
    assert table.bytes_used <= budget
    assert table.bytes_used == table._memory.allocated.nbytes + beside
    assert beside / table.max_records < {"s3fifo": 5.95, "sieve": 4.1, "lru": 0.1}[eviction] + 200 / table.max_records


def test_hundred_million_records_fit_in_64_bytes_each() -> None:
    """The table's own units at its highest load, and what S3-FIFO adds."""
    unit_bytes, records = 8 * kernels_layout.unit_words(WORDS, 18), 100_000_000
    units = -(-records // (14 * 0.8))
    assert units * unit_bytes + evictor_bytes("s3fifo", records) < 58 * records


def test_unknown_algorithm_is_an_error_that_names_the_known() -> None:
    with pytest.raises(StoreError, match="lfu") as error:
        DramTable(100_000, words=WORDS, clock_s=lambda: 5, eviction="lfu")
    assert "s3fifo, sieve, lru" in error.value.why


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("eviction", EVICTIONS)
def test_any_order_of_calls_keeps_table_and_queues_whole(data: st.DataObject, eviction: str) -> None:
    """At the highest load of one or two units, where records move a lot: victims are stored, distinct and as many as
    asked for; nothing goes that was not offered; the table stays exact."""
    table = table_of(data.draw(st.sampled_from([11, 22, 60])), eviction)
    held: set[int] = set()
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["insert", "look", "remove", "victims", "evict", "learnt again"]))
        keys = np.array(data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=12)), np.uint64)
        if action in {"insert", "learnt again"}:
            keys = keys if action == "insert" else np.array(sorted(held)[:5], np.uint64)
            stored = table.insert_many(keys, rows_of(keys))
            everything = np.arange(1, 91, dtype=np.uint64)
            now = set(everything[table.contains_many(everything)].tolist())
            assert now <= held | set(keys.tolist())
            assert set(keys[stored].tolist()) <= now
            held = now
        elif action == "look":
            assert look(table, keys).tolist() == [k in held for k in keys.tolist()]
        elif action == "remove":
            table.remove_many(keys)
            held -= set(keys.tolist())
        else:
            wanted = data.draw(st.integers(0, 70))
            offered, rows = table.victims(wanted) if action == "victims" else table.evict_many(wanted)
            assert len(set(offered.tolist())) == len(offered) <= wanted
            assert set(offered.tolist()) <= held
            assert same_chains(rows, offered)
            if action == "victims":
                table.spare_many(offered[::2])
            else:
                assert len(offered) == min(wanted, len(held))
                held -= set(offered.tolist())
        assert len(table) == len(held)
