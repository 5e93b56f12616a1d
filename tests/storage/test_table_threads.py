"""One writer, many readers: `peek_many` beside inserts, overwrites, removals and evictions, and beside `close`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from records import WORDS, keys_of, rows_of, same_chains, spread, table_bytes

from flashnest.errors import StoreClosedError
from flashnest.record import CHAIN, HITS, META
from flashnest.storage import kernels_peek, kernels_remove
from flashnest.storage.desk import PageToucher
from flashnest.storage.kernels_layout import STRIPE_COUNT, STRIPES, home
from flashnest.storage.lines import u32_at
from flashnest.storage.store import Found, State
from flashnest.storage.table import DramTable

ROUNDS = 120


def table_of(units: int, **options: bool) -> DramTable:
    return DramTable(table_bytes(units), words=WORDS, clock_s=lambda: 5, **options)


def versioned(keys: np.ndarray, version: int) -> np.ndarray:
    """Return rows whose tokens are all made from the key and the version: any mixture of two shows."""
    rows = rows_of(keys)
    rows[:, CHAIN:] = ((keys & np.uint64(0xFFF)) << np.uint64(4)).astype(np.uint32)[:, None] | np.uint32(version % 16)
    return rows


def whole(rows: np.ndarray, keys: np.ndarray) -> bool:
    """Whether each row is one of the `versioned` rows of its key."""
    chains = rows[:, CHAIN:]
    of_key = (chains[:, 0] >> 4) == (keys & np.uint64(0xFFF))
    return bool((of_key[:, None] & (chains == chains[:, :1])).all() and (rows[:, META] == rows_of(keys)[:, META]).all())


def beside(table: DramTable, write: Callable[[], None], *, stay: np.ndarray, change: np.ndarray, readers: int) -> int:
    """Run `write` while readers peek at both key sets; returns how many rows they saw. Raises what a reader found."""
    done = threading.Event()

    def read() -> int:
        seen, found, keys = 0, Found.allocate(len(stay) + len(change), WORDS), np.concatenate([stay, change])
        while not done.is_set():
            table.peek_many(keys, found)
            hits = found.state == State.HIT
            assert hits[: len(stay)].all(), "a record that stays was missed"
            assert whole(found.rows[hits], keys[hits]), "a torn row"
            seen += int(np.count_nonzero(hits))
        return seen

    with ThreadPoolExecutor(readers) as pool:
        running = [pool.submit(read) for _ in range(readers)]
        try:
            write()
        finally:
            done.set()
        return sum(one.result() for one in running)


@pytest.fixture(autouse=True)
def compiled() -> None:
    """Compile before threads start, so that writer and readers do meet."""
    table, found, keys = table_of(2), Found.allocate(1, WORDS), keys_of(1)
    table.insert_many(keys, rows_of(keys))
    table.peek_many(keys, found)
    table.lookup_many(keys, found)
    table.remove_many(keys)
    table.evict_many(1)


def test_no_row_is_torn_and_no_stored_key_is_missed_while_others_come_and_go() -> None:
    """Load 0.8: most removals pull other keys back, and those that stay are moved among them."""
    table = table_of(20, evict=False)
    stay, change = spread(0, table.max_records // 2), spread(1000, table.max_records // 2)
    table.insert_many(stay, versioned(stay, 0))

    def write() -> None:
        rng = np.random.default_rng(1)
        for version in range(ROUNDS):
            table.insert_many(change, versioned(change, version))
            table.insert_many(stay, versioned(stay, version))
            table.lookup_many(stay[:50], found)
            assert table.remove_many(change[rng.permutation(len(change))]).all()

    found = Found.allocate(64, WORDS)
    assert beside(table, write, stay=stay, change=change, readers=2) > ROUNDS
    assert len(table) == len(stay)


def test_one_record_overwritten_over_and_over_is_never_torn() -> None:
    """Writer and reader spend their time on one row: without the checks some row is torn within a second or two."""
    table = table_of(2, evict=False)
    keys = np.full(4096, 77, np.uint64)
    versions = versioned(keys, 0)
    versions[:, CHAIN:] |= (np.arange(4096, dtype=np.uint32) % 16)[:, None]
    table.insert_many(keys, versions)

    def write() -> None:
        for _ in range(5 * ROUNDS):
            table.insert_many(keys, versions)

    assert beside(table, write, stay=keys[:1024], change=keys[:0], readers=1) > ROUNDS


def test_readers_see_whole_rows_while_a_full_table_evicts() -> None:
    table = table_of(20)
    keys = spread(0, 4 * table.max_records)

    def write() -> None:
        for version in range(ROUNDS):
            table.insert_many(keys, versioned(keys, version))

    table.insert_many(keys, versioned(keys, 0))
    assert beside(table, write, stay=keys[:0], change=keys, readers=2) > 0


def test_readers_outlive_clear_and_close() -> None:
    table = table_of(200, evict=False)
    keys = spread(0, 2000)

    def write() -> None:
        for version in range(20):
            table.insert_many(keys, versioned(keys, version))
            table.clear()
        table.close()

    beside(table, write, stay=keys[:0], change=keys, readers=2)
    found = Found.allocate(2000, WORDS)
    table.peek_many(keys, found)
    assert (found.state == State.MISS).all()
    with pytest.raises(StoreClosedError):
        table.peek_many(keys, Found.allocate(1, WORDS))


def test_peeking_answers_like_a_lookup_and_touches_nothing() -> None:
    table = table_of(20)
    keys = spread(0, 100)
    table.insert_many(keys[:60], rows_of(keys[:60]))
    before = [rows.copy() for _, rows in table.scan()]
    found = Found.allocate(128, WORDS)
    table.peek_many(keys, found)
    assert (found.state[:60] == State.HIT).all()
    assert (found.tier[:60] == table.tier).all()
    assert (found.state[60:100] == State.MISS).all()
    assert same_chains(found.rows[:60], keys[:60])
    assert not found.rows[:60, HITS].any()
    assert all((a == b).all() for a, (_, b) in zip(before, table.scan(), strict=True))
    assert table.stats().lookups == 0
    with pytest.raises(ValueError, match="do not fit"):
        table.peek_many(spread(0, 129), found)


def test_a_key_under_change_is_not_answered_before_it_is_whole() -> None:
    """The kernel gives up on a key whose count is odd and says which, and goes on from there when it is even."""
    table, found = table_of(20), Found.allocate(8, WORDS)
    keys = spread(0, 8)
    table.insert_many(keys, rows_of(keys))
    desk = table._desk
    stripes = u32_at(desk[STRIPES], desk[STRIPE_COUNT])
    buckets = np.uint64(40)
    busy = int(home(keys[5], buckets)) % len(stripes)
    first = next(i for i, key in enumerate(keys) if int(home(key, buckets)) % len(stripes) == busy)
    stripes[busy] += np.uint32(1)
    assert kernels_peek.table_peek(desk, keys, found.state, found.tier, found.rows, 1, 5, 0) == first
    stripes[busy] += np.uint32(1)
    assert kernels_peek.table_peek(desk, keys, found.state, found.tier, found.rows, 1, 5, first) == 8
    assert same_chains(found.rows[first:], keys[first:])


def test_every_change_leaves_the_counts_even_and_marks_the_keys_it_moves() -> None:
    table = table_of(20, evict=False)
    desk = table._desk
    stripes = u32_at(desk[STRIPES], desk[STRIPE_COUNT])
    keys = spread(0, table.max_records)
    table.insert_many(keys, rows_of(keys))
    assert stripes.sum() == 2 * len(keys)
    table.insert_many(keys[:9], rows_of(keys[:9]))
    assert stripes.sum() == 2 * (len(keys) + 9)
    table.remove_many(keys[::2])
    assert stripes.sum() > 2 * (len(keys) + 9 + len(keys[::2])), "removals pulled keys back"
    assert not (stripes & 1).any()


def test_pages_are_touched_without_undoing_writes_and_stop_when_told() -> None:
    memory = np.zeros(40 << 17, np.uint64)  # 40 MiB: a thread of its own
    pages = PageToucher(memory)
    for start in range(0, len(memory), 512):
        memory[start] = start + 1
    pages.wait()
    assert (memory[::512] == np.arange(0, len(memory), 512) + 1).all()
    PageToucher(np.zeros(200 << 17, np.uint64)).stop()
    assert not [one for one in threading.enumerate() if one.name == "flashnest-pages"]


def test_a_large_table_closes_while_its_pages_are_being_touched() -> None:
    table = DramTable(256 << 20, words=WORDS, clock_s=lambda: 5)
    table.close()
    assert not [one for one in threading.enumerate() if one.name == "flashnest-pages"]
    assert kernels_remove.table_remove(table._desk, keys_of(0), np.zeros(1, np.bool_)) == 0
