"""The DRAM table: the contract, its exact budget, overflow counts, eviction, the longest match."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, takewhile

import numpy as np
import pytest
from contract import StoreContract, clock  # noqa: F401
from hypothesis import given, settings
from hypothesis import strategies as st
from records import WORDS, Clock, keys_of, rows_of, same_chains, spread, table_bytes

from flashnest.errors import StoreClosedError, StoreFullError
from flashnest.hashing import hash_tails
from flashnest.record import (
    ACCEPTED,
    CHAIN,
    DRAFTED,
    HITS,
    LAST_ACCESS,
)
from flashnest.storage.kernels_layout import count_mask, home, unit_words
from flashnest.storage.packed import MAX_DRAFTED, MAX_HITS, TOKEN_BITS
from flashnest.storage.step_clock import StepClock
from flashnest.storage.store import Found, State
from flashnest.storage.table import MAX_LOAD, DramTable

UNIT_BYTES = 576


def table_of(units: int, *, evict: bool = True, eviction: str = "s3fifo") -> DramTable:
    budget = table_bytes(units, eviction=eviction)
    return DramTable(budget, words=WORDS, clock_s=lambda: 5, evict=evict, eviction=eviction)


def buckets_of(table: DramTable) -> np.ndarray:
    """Return the bucket lines, (buckets, 8): seven keys and the count of those that passed."""
    return table._memory.memory.reshape(-1, unit_words(table.words, TOKEN_BITS))[:, :16].reshape(-1, 8).copy()


def path_from(first: int, buckets: int) -> Iterator[int]:
    """Yield a key's buckets in order: both of its home's unit, home first, then those of the next unit."""
    for unit in count(first // 2):
        yield from ((2 * unit + first % 2) % buckets, (2 * unit + 1 - first % 2) % buckets)


def assert_sound(table: DramTable) -> None:
    """Each bucket counts the keys that passed it, and none with a free slot was passed."""
    lines = buckets_of(table)
    passed = np.zeros((len(lines), 8), np.uint8)
    for bucket, slot in np.argwhere(lines[:, :7] != 0):
        first = int(home(lines[bucket, slot], np.uint64(len(lines))))
        for at in takewhile(bucket.__ne__, path_from(first, len(lines))):
            passed[at, count_byte(lines[bucket, slot])] += 1
    assert (passed == counts_of(table)).all()
    assert (lines[passed.any(axis=1), :7] != 0).all()


def counts_of(table: DramTable) -> np.ndarray:
    """Return each bucket's eight counts, (buckets, 8)."""
    return buckets_of(table)[:, 7:].copy().view(np.uint8)


def count_byte(key: np.uint64) -> int:
    return int(count_mask(key)).bit_length() // 8 - 1


def overflow_counts(table: DramTable) -> np.ndarray:
    return counts_of(table).sum(axis=1)


class TestContract(StoreContract):
    @pytest.fixture
    def store(self, clock: Clock) -> DramTable:  # noqa: F811
        return DramTable(40_000, words=WORDS, clock_s=clock.whole)


@pytest.mark.parametrize("words", [15, 16, 20, 39])
def test_rows_of_any_width_come_back_whole(words: int) -> None:
    table = DramTable(1 << 18, words=words, clock_s=lambda: 5)
    keys = spread(0, 300)
    table.insert_many(keys, rows_of(keys, words=words))
    found = Found.allocate(300, words)
    table.lookup_many(keys, found)
    assert (found.state == State.HIT).all()
    assert same_chains(found.rows, keys)


@pytest.mark.parametrize("budget", [1700, 1 << 12, 100_000, (1 << 20) + 13, 9_000_000])
def test_bytes_used_is_what_is_allocated_and_never_above_the_budget(budget: int) -> None:
    table = DramTable(budget, words=WORDS, clock_s=lambda: 5)
    assert table._memory.allocated.nbytes + table._evictor.bytes_used == table.bytes_used <= budget
    assert budget - table.bytes_used < UNIT_BYTES + 128
    assert table._memory.memory.ctypes.data % 64 == 0
    assert table._memory.desk.base is table._memory.allocated, "whoever holds the desk holds the memory"
    keys = spread(0, min(3 * table.max_records, 5000))
    table.insert_many(keys, rows_of(keys))
    assert table.stats().bytes_used == table.bytes_used
    assert len(table) <= table.max_records


@pytest.mark.parametrize(("eviction", "record_bytes"), [("lru", 51.5), ("sieve", 55.5), ("s3fifo", 57.4)])
def test_a_record_takes_51_bytes_of_a_full_table_and_its_part_of_the_queues(eviction: str, record_bytes: float) -> None:
    table = DramTable(64 << 20, words=WORDS, clock_s=lambda: 5, populate=False, eviction=eviction)
    assert table.bytes_used / table.max_records == pytest.approx(record_bytes, abs=0.1)


def test_budget_without_room_for_a_unit_is_an_error_that_names_the_tier() -> None:
    smallest = table_bytes(1)
    assert DramTable(smallest, words=WORDS, clock_s=lambda: 5).max_records == 11
    with pytest.raises(StoreFullError, match="dram") as error:
        DramTable(smallest - 1, words=WORDS, clock_s=lambda: 5)
    assert str(smallest) in error.value.why


def test_full_table_without_eviction_rejects_and_counts() -> None:
    table = table_of(5, evict=False)
    keys = spread(0, 100)
    stored = table.insert_many(keys, rows_of(keys))
    assert np.count_nonzero(stored) == table.max_records == int(70 * MAX_LOAD)
    assert table.stats().rejected == 100 - table.max_records
    assert (table.contains_many(keys) == stored).all()
    assert table.insert_many(keys[stored], rows_of(keys[stored])).all(), "overwriting needs no room"


def test_eviction_spares_records_found_since_it_last_looked() -> None:
    table = table_of(10, eviction="sieve")
    old = spread(0, table.max_records)
    table.insert_many(old, rows_of(old))
    found = Found.allocate(len(old), WORDS)
    table.lookup_many(old[:40], found)
    fresh = spread(5000, 60)
    assert table.insert_many(fresh, rows_of(fresh)).all()
    assert table.contains_many(old[:40]).all()
    assert table.stats().evicted == 60
    assert len(table) == table.max_records


def test_eviction_takes_records_even_if_all_were_found() -> None:
    table = table_of(10, eviction="sieve")
    keys = spread(0, table.max_records)
    table.insert_many(keys, rows_of(keys))
    table.lookup_many(keys, Found.allocate(len(keys), WORDS))
    gone, rows = table.evict_many(10)
    assert len(gone) == 10, "all were referenced: the second round takes the first it meets"
    assert same_chains(rows, gone)
    assert not table.contains_many(gone).any()


def test_evicting_more_than_there_is_empties_the_table() -> None:
    table = table_of(2)
    keys = spread(0, 10)
    table.insert_many(keys, rows_of(keys))
    gone, _ = table.evict_many(1000)
    assert sorted(gone.tolist()) == sorted(keys.tolist())
    assert len(table) == 0
    assert not buckets_of(table).any()


def test_batch_larger_than_the_table_says_truly_what_stayed() -> None:
    table = table_of(5)
    keys = spread(0, 9000)
    stored = table.insert_many(keys, rows_of(keys))
    assert (table.contains_many(keys) == stored).all()
    assert 0 < np.count_nonzero(stored) <= table.max_records


def test_hit_touches_hits_and_last_access() -> None:
    now = Clock(100)
    table = DramTable(1 << 16, words=WORDS, clock_s=now.whole)
    table.insert_many(keys_of(1, 2), rows_of(keys_of(1, 2)))
    found = Found.allocate(3, WORDS)
    now.now = 160
    table.lookup_many(keys_of(1, 1, 2), found)
    assert found.rows[:, HITS].tolist() == [1, 2, 1]
    assert found.rows[:, LAST_ACCESS].tolist() == [160, 160, 160]


def test_hits_saturate_and_draft_counts_keep_their_ratio() -> None:
    table = table_of(2)
    rows = rows_of(keys_of(1, 2))
    rows[0, HITS] = 2**32 - 1
    rows[1, [DRAFTED, ACCEPTED]] = [60, 45]
    table.insert_many(keys_of(1, 2), rows)
    for _ in range(3):
        table.feedback_many(keys_of(1, 2), np.array([2**32 - 1, 8], np.uint32), np.array([2**31, 6], np.uint32))
    found = Found.allocate(2, WORDS)
    table.lookup_many(keys_of(1, 2), found)
    assert found.rows[0, HITS] == MAX_HITS
    drafted, accepted = found.rows[:, DRAFTED].astype(float), found.rows[:, ACCEPTED].astype(float)
    assert (drafted <= MAX_DRAFTED).all()
    assert accepted / drafted == pytest.approx([0.5, 0.75], abs=0.03)


def test_longest_takes_the_last_stored_key_of_each_row_and_touches_it_alone() -> None:
    table = table_of(10)
    stored = keys_of(11, 12, 13, 22)
    table.insert_many(stored, rows_of(stored))
    asked = np.array([[11, 12, 13, 14], [21, 22, 0, 0], [31, 32, 33, 34], [0, 0, 0, 0]], np.uint64)
    found, index = Found.allocate(8, WORDS), np.full(8, 7, np.int64)
    table.longest_many(asked, found, index)
    assert index.tolist() == [2, 1, -1, -1, 7, 7, 7, 7]
    assert found.state[:4].tolist() == [State.HIT, State.HIT, State.MISS, State.MISS]
    assert found.rows[:2, CHAIN].tolist() == [13, 22]
    table.lookup_many(stored, found)
    assert found.rows[:4, HITS].tolist() == [1, 1, 2, 2]
    assert table.stats().lookups == 8


def test_longest_of_tails_is_that_of_their_hashes() -> None:
    table, lengths = table_of(200), np.array([4, 8, 16, 32], np.int32)
    tokens = np.random.default_rng(1).integers(0, 9, (30, 40)).astype(np.int32)
    ends, salts = np.arange(1, 31, dtype=np.int32) + 10, np.arange(30, dtype=np.uint64) % 3
    hashed = np.zeros((30, 4), np.uint64)
    hash_tails(tokens, ends, salts, lengths, hashed)
    stored = hashed[::2].ravel()
    table.insert_many(stored, rows_of(stored))
    expected, index = Found.allocate(32, WORDS), np.zeros(32, np.int64)
    table.longest_many(hashed, expected, index)
    keys, found, got = np.ones((30, 4), np.uint64), Found.allocate(32, WORDS), np.zeros(32, np.int64)
    table.longest_tails_many(tokens, ends, salts, lengths, keys, found, got)
    assert (keys == hashed).all()
    assert (got == index).all()
    assert (found.state == expected.state).all()
    assert same_chains(found.rows[:30:2], hashed[np.arange(0, 30, 2), index[:30:2]])


def test_state_bits_never_leave_the_table() -> None:
    table = table_of(10)
    keys = spread(0, 30)
    table.insert_many(keys, rows_of(keys))
    found = Found.allocate(30, WORDS)
    for _ in range(2):
        table.lookup_many(keys, found)
    rows = np.concatenate([r for _, r in table.scan()] + [found.rows])
    assert (rows[:, 0] == rows_of(keys)[0, 0]).all()


def test_sequential_keys_spread_over_the_buckets() -> None:
    table = table_of(500, evict=False)
    keys = np.arange(1, 4900, dtype=np.uint64)
    assert table.insert_many(keys, rows_of(keys)).all()
    assert np.count_nonzero(overflow_counts(table)) < 350, "at load 0.7 about a quarter of the buckets overflow"


def test_buffers_for_other_rows_are_refused() -> None:
    table = table_of(2)
    with pytest.raises(ValueError, match="words"):
        table.lookup_many(keys_of(1), Found.allocate(4, WORDS + 1))
    with pytest.raises(ValueError, match="words"):
        table.insert_many(keys_of(1), np.zeros((1, WORDS + 1), np.uint32))
    with pytest.raises(ValueError, match="do not fit"):
        table.longest_many(np.zeros((2, 4), np.uint64), Found.allocate(2, WORDS), np.zeros(1, np.int64))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_key_stays_findable_and_counts_return_to_zero(data: st.DataObject) -> None:
    """Overflow counts survive any order of inserts and removals at the highest load: nothing lost, nothing decays."""
    table = table_of(data.draw(st.integers(1, 6)), evict=False)
    held: set[int] = set()
    for _ in range(data.draw(st.integers(1, 12))):
        keys = np.array(data.draw(st.lists(st.integers(1, 120), min_size=1, max_size=60)), np.uint64)
        if data.draw(st.booleans()):
            stored = table.insert_many(keys, rows_of(keys))
            held |= set(keys[stored].tolist())
        else:
            there = table.remove_many(keys)
            assert {k for k, t in zip(keys.tolist(), there, strict=True) if t} == held & set(keys.tolist())
            held -= set(keys.tolist())
        everything = np.arange(1, 121, dtype=np.uint64)
        assert set(everything[table.contains_many(everything)].tolist()) == held
        assert_sound(table)
    table.remove_many(np.array(sorted(held), np.uint64))
    assert not buckets_of(table).any()


def test_long_churn_keeps_probes_short() -> None:
    """The clock hand empties the table evenly and removals pull keys back: counts grew to 1300 without the one, and
    97 % of the buckets were passed without the other; a table filled once to 0.8 has 34 %."""
    table = table_of(1000)
    for start in range(0, 10 * table.max_records, 4000):
        keys = spread(start, 4000)
        assert table.insert_many(keys, rows_of(keys)).all()
    assert len(table) == table.max_records
    assert_sound(table)
    assert overflow_counts(table).max() < 60
    assert np.count_nonzero(overflow_counts(table)) < 0.5 * 2000


def test_keys_made_to_collide_fill_one_bucket_and_stay_correct() -> None:
    """More than 255 keys of one home and one count: the count sticks at its most; every answer stays right."""
    table = table_of(50, evict=False)
    candidates = spread(0, 130_000)
    same = [k for k in candidates if home(k, np.uint64(100)) == 3 and count_byte(k) == 5][:140]
    other = [k for k in candidates if home(k, np.uint64(100)) in {4, 5, 6} and count_byte(k) == 5][:300]
    keys = np.array([*same, *other], np.uint64)
    assert len(keys) == 440
    assert table.insert_many(keys, rows_of(keys)).all()
    assert table.contains_many(keys).all()
    assert counts_of(table).max() == 255
    assert not table.contains_many(spread(10_000_000, 2000)).any()
    assert table.remove_many(keys[::2]).all()
    assert table.contains_many(keys[1::2]).all()
    assert not table.contains_many(keys[::2]).any()
    assert table.remove_many(keys[1::2]).all()
    assert not buckets_of(table)[:, :7].any()
    assert table.insert_many(keys, rows_of(keys)).all()
    found = Found.allocate(len(keys), WORDS)
    table.lookup_many(keys, found)
    assert same_chains(found.rows, keys)


def test_lookups_go_by_a_step_clocks_last_tick() -> None:
    now = Clock()
    steps = StepClock(now.whole)
    table = DramTable(table_bytes(4), words=WORDS, clock_s=steps)
    keys, found, index = spread(0, 8), Found.allocate(8, WORDS), np.zeros(8, np.int64)
    table.insert_many(keys, rows_of(keys))
    for ticks, seen in ((False, 1000), (True, 1060)):
        now.now = 1060.0
        if ticks:
            steps.tick()
        table.lookup_many(keys, found)
        assert (found.rows[:, LAST_ACCESS] == seen).all()
        table.longest_many(keys.reshape(8, 1), found, index)
        assert (found.rows[:, LAST_ACCESS] == seen).all()


def test_a_closed_table_refuses_by_any_clock() -> None:
    table = DramTable(table_bytes(4), words=WORDS, clock_s=StepClock(lambda: 5))
    keys, found = spread(0, 8), Found.allocate(8, WORDS)
    table.lookup_many(keys, found)  # bound before it closes
    table.close()
    with pytest.raises(StoreClosedError):
        table.lookup_many(keys, found)
