"""The DRAM table: the contract, its exact budget, overflow counts, the clock, the longest match."""

from __future__ import annotations

import numpy as np
import pytest
from contract import StoreContract, clock  # noqa: F401
from hypothesis import given, settings
from hypothesis import strategies as st
from records import WORDS, Clock, keys_of, rows_of, same_chains, spread

from flashnest.errors import StoreFullError
from flashnest.record import ACCEPTED, CHAIN, DRAFTED, HITS, LAST_ACCESS
from flashnest.storage.kernels import count_mask, home, unit_words
from flashnest.storage.store import Found, State
from flashnest.storage.table import MAX_LOAD, DramTable

BUCKET_BYTES = 64 + 7 * 4 * WORDS


def table_of(buckets: int, **options: bool) -> DramTable:
    return DramTable(64 + buckets * BUCKET_BYTES, words=WORDS, clock_s=lambda: 5, **options)


def buckets_of(table: DramTable) -> np.ndarray:
    """Return the bucket lines, (buckets, 8): seven keys and the count of those that passed."""
    return table._memory.reshape(-1, unit_words(table.words))[:, :16].copy().view(np.uint64)


def assert_sound(table: DramTable) -> None:
    """Each bucket counts the keys that passed it, and none with a free slot was passed."""
    lines = buckets_of(table)
    passed = np.zeros((len(lines), 8), np.uint8)
    for bucket, slot in np.argwhere(lines[:, :7] != 0):
        at = int(home(lines[bucket, slot], np.uint64(len(lines))))
        while at != bucket:
            passed[at, count_byte(lines[bucket, slot])] += 1
            at = (at + 1) % len(lines)
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


@pytest.mark.parametrize("words", [15, 16, 20, 72])
def test_rows_of_any_width_come_back_whole(words: int) -> None:
    table = DramTable(1 << 18, words=words, clock_s=lambda: 5)
    keys = spread(0, 300)
    table.insert_many(keys, rows_of(keys, words=words))
    found = Found.allocate(300, words)
    table.lookup_many(keys, found)
    assert (found.state == State.HIT).all()
    assert same_chains(found.rows, keys)


@pytest.mark.parametrize("budget", [577, 1 << 12, 100_000, (1 << 20) + 13])
def test_bytes_used_is_what_is_allocated_and_never_above_the_budget(budget: int) -> None:
    table = DramTable(budget, words=WORDS, clock_s=lambda: 5)
    assert table._memory.nbytes + 64 == table._allocated.nbytes == table.bytes_used <= budget
    assert budget - table.bytes_used < BUCKET_BYTES
    assert table._memory.ctypes.data % 64 == 0
    keys = spread(0, 3 * table.max_records)
    table.insert_many(keys, rows_of(keys))
    assert table.stats().bytes_used == table.bytes_used
    assert len(table) <= table.max_records


def test_budget_without_room_for_a_bucket_is_an_error_that_names_the_tier() -> None:
    with pytest.raises(StoreFullError, match="dram") as error:
        DramTable(64 + BUCKET_BYTES - 1, words=WORDS, clock_s=lambda: 5)
    assert str(64 + BUCKET_BYTES) in error.value.why


def test_full_table_without_eviction_rejects_and_counts() -> None:
    table = table_of(10, evict=False)
    keys = spread(0, 100)
    stored = table.insert_many(keys, rows_of(keys))
    assert np.count_nonzero(stored) == table.max_records == int(70 * MAX_LOAD)
    assert table.stats().rejected == 100 - table.max_records
    assert (table.contains_many(keys) == stored).all()
    assert table.insert_many(keys[stored], rows_of(keys[stored])).all(), "overwriting needs no room"


def test_clock_spares_records_found_since_its_last_visit() -> None:
    table = table_of(20)
    old = spread(0, table.max_records)
    table.insert_many(old, rows_of(old))
    found = Found.allocate(len(old), WORDS)
    table.lookup_many(old[:40], found)
    fresh = spread(5000, 60)
    assert table.insert_many(fresh, rows_of(fresh)).all()
    assert table.contains_many(old[:40]).all()
    assert table.stats().evicted == 60
    assert len(table) == table.max_records


def test_clock_takes_records_that_were_not_found_again() -> None:
    table = table_of(20)
    keys = spread(0, table.max_records)
    table.insert_many(keys, rows_of(keys))
    table.lookup_many(keys, Found.allocate(len(keys), WORDS))
    gone, rows = table.evict_many(10)
    assert len(gone) == 10, "all were referenced: the second round takes the first it meets"
    assert same_chains(rows, gone)
    assert not table.contains_many(gone).any()


def test_evicting_more_than_there_is_empties_the_table() -> None:
    table = table_of(4)
    keys = spread(0, 10)
    table.insert_many(keys, rows_of(keys))
    gone, _ = table.evict_many(1000)
    assert sorted(gone.tolist()) == sorted(keys.tolist())
    assert len(table) == 0
    assert not buckets_of(table).any()


def test_batch_larger_than_the_table_says_truly_what_stayed() -> None:
    table = table_of(10)
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


def test_hits_and_feedback_saturate() -> None:
    table = table_of(2)
    rows = rows_of(keys_of(1))
    rows[0, [HITS, DRAFTED]] = [2**32 - 1, 2**32 - 3]
    table.insert_many(keys_of(1), rows)
    table.feedback_many(keys_of(1, 1), np.array([2, 5], np.uint32), np.array([1, 1], np.uint32))
    found = Found.allocate(1, WORDS)
    table.lookup_many(keys_of(1), found)
    assert found.rows[0, [HITS, DRAFTED, ACCEPTED]].tolist() == [2**32 - 1, 2**32 - 1, 2]


def test_longest_takes_the_last_stored_key_of_each_row_and_touches_it_alone() -> None:
    table = table_of(20)
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


def test_reference_bit_never_leaves_the_table() -> None:
    table = table_of(20)
    keys = spread(0, 30)
    table.insert_many(keys, rows_of(keys))
    found = Found.allocate(30, WORDS)
    for _ in range(2):
        table.lookup_many(keys, found)
    rows = np.concatenate([r for _, r in table.scan()] + [found.rows])
    assert (rows[:, 0] == rows_of(keys)[0, 0]).all()


def test_sequential_keys_spread_over_the_buckets() -> None:
    table = table_of(1000, evict=False)
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
    table = table_of(data.draw(st.integers(1, 12)), evict=False)
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
    table = table_of(2000)
    for start in range(0, 10 * table.max_records, 4000):
        keys = spread(start, 4000)
        assert table.insert_many(keys, rows_of(keys)).all()
    assert len(table) == table.max_records
    assert_sound(table)
    assert overflow_counts(table).max() < 60
    assert np.count_nonzero(overflow_counts(table)) < 0.5 * 2000


def test_keys_made_to_collide_fill_one_bucket_and_stay_correct() -> None:
    """More than 255 keys of one home and one count: the count sticks at its most; every answer stays right."""
    table = table_of(100, evict=False)
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
