"""The filter of a cold tier stays right while it is rebuilt behind it: no key of the tier is ever denied."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from records import WORDS, Clock, rows_of, same_chains, spread

from flashnest.record import BoolArray, Tier, U32Array, U64Array
from flashnest.storage import filter as membership
from flashnest.storage.cold import ColdOptions, ColdTier
from flashnest.storage.store import Found, State, StoreStats


class DictStore:
    """A cold store in a dict, whose scan gives three keys at a time and sees what is written meanwhile or not."""

    tier = Tier.NVME
    full, corrupt, value_bytes, merge_bytes, failing = False, 0, 84, 0, False

    def __init__(self) -> None:
        self.held: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.held)

    def lookup_many(self, keys: U64Array, found: Found) -> None:
        for i, key in enumerate(keys.tolist()):
            found.state[i] = State.HIT if key in self.held else State.MISS
            if key in self.held:
                found.rows[i] = self.held[key]

    def write_many(self, keys: U64Array, rows: U32Array, removes: U64Array) -> BoolArray:
        for key in removes.tolist():
            self.held.pop(key, None)
        self.held.update(zip(keys.tolist(), rows, strict=True))
        return np.ones(len(keys), np.bool_)

    def scan_keys(self) -> Iterator[U64Array]:
        after = 0
        while batch := sorted(key for key in self.held if key > after)[:3]:
            if self.failing:
                raise OSError("Input/output error")
            after = batch[-1]
            yield np.array(batch, np.uint64)

    def stats(self) -> StoreStats:
        return StoreStats(len(self), 0, 1 << 30, 0, 0, 0, 0, 0, 0, 0, len(self) / 1e6)

    def close(self) -> None:
        self.held.clear()


def open_tier(store: DictStore, **options: object) -> ColdTier:
    now = Clock()
    settings = ColdOptions(threaded=False, buffer_bytes=1 << 16, touch_bytes=1 << 10, **options)  # type: ignore[arg-type]
    return ColdTier(store, words=WORDS, clock_s=now.whole, clock=now, options=settings)  # type: ignore[arg-type]


STEP = st.one_of(
    st.tuples(st.just("insert"), st.integers(0, 60), st.integers(1, 12)),
    st.tuples(st.just("remove"), st.integers(0, 60), st.integers(1, 6)),
    st.tuples(st.just("work"), st.integers(1, 40), st.just(0)),
    st.tuples(st.just("flush"), st.just(0), st.just(0)),
    st.tuples(st.just("tick"), st.just(0), st.just(0)),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, min_size=5, max_size=60))
def test_no_key_is_denied_under_any_interleaving(monkeypatch: pytest.MonkeyPatch, steps: list) -> None:
    monkeypatch.setattr(membership, "FIRST_KEYS", 4 * 8)  # a rebuild is due after 8 changes
    store = DictStore()
    tier = open_tier(store, flush_records=10)
    held: set[int] = set()
    for what, start, count in steps:
        keys = spread(start, count)
        if what == "insert":
            taken = tier.insert_many(keys, rows_of(keys), replace=True)
            held |= set(keys[taken].tolist())
        elif what == "remove":
            held -= set(keys[tier.forget_many(keys)].tolist())
        elif what == "work":
            for _ in range(start):
                tier.pump_slice()
        elif what == "flush":
            tier.flush()
        else:
            tier.submit()
        mine = np.array(sorted(held), np.uint64)
        assert tier.may_hold(mine).all(), "a key of the tier is denied"
    tier.flush()
    assert set(store.held) == held
    tier.close()


def test_rebuild_starts_by_itself_and_takes_the_removed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "FIRST_KEYS", 4 * 100)
    tier = open_tier(DictStore())
    keys = spread(0, 90)
    tier.insert_many(keys, rows_of(keys))
    tier.flush()
    assert tier.cold_stats().filter_rebuilds == 0
    tier.forget_many(keys[:30])
    tier.flush()
    late = spread(500, 5)
    tier.insert_many(late, rows_of(late))
    tier.pump()
    assert tier.cold_stats().filter_rebuilds == 1
    assert tier.may_hold(keys[30:]).all()
    assert tier.may_hold(late).all(), "still in the write buffer"
    assert not tier.may_hold(keys[:30]).any()
    tier.insert_many(keys[:30], rows_of(keys[:30]))
    tier.insert_many(keys[:30], rows_of(keys[:30]))
    tier.flush()
    assert tier.insert_many(keys[:30], rows_of(keys[:30])).all()
    assert tier.cold_stats().known == 30, "removed before the rebuild, known since"
    tier.close()


def test_failed_rebuild_leaves_the_filter_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "FIRST_KEYS", 4 * 10)
    store = DictStore()
    tier = open_tier(store)
    store.failing = True
    keys = spread(0, 40)
    tier.insert_many(keys, rows_of(keys))
    tier.flush()
    tier.pump()
    assert tier.cold_stats().filter_rebuilds == 0
    assert tier.may_hold(keys).all()
    store.failing = False
    more = spread(100, 80)
    tier.insert_many(more, rows_of(more))
    tier.flush()
    tier.pump()
    assert tier.cold_stats().filter_rebuilds == 1
    assert tier.may_hold(np.concatenate([keys, more])).all()
    tier.close()


def test_writer_thread_rebuilds_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "FIRST_KEYS", 4 * 100)
    now = Clock()
    tier = ColdTier(DictStore(), words=WORDS, clock_s=now.whole)  # type: ignore[arg-type]
    keys = spread(0, 300)
    tier.insert_many(keys, rows_of(keys))
    tier.flush()
    while tier.cold_stats().filter_rebuilds == 0:
        tier.submit()
    assert tier.may_hold(keys).all()
    tier.close()


def test_close_does_not_wait_for_a_rebuild(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "FIRST_KEYS", 4 * 10)
    tier = open_tier(DictStore())
    keys = spread(0, 300)
    tier.insert_many(keys, rows_of(keys))
    tier.flush()
    tier.pump_slice()
    tier.close()
    assert tier.cold_stats().filter_rebuilds == 0


def test_lookup_needs_no_asking_where_the_filter_or_the_buffer_answers() -> None:
    tier = open_tier(DictStore())
    old, new, gone = spread(0, 8), spread(50, 4), spread(60, 2)
    for keys in (old, gone):
        tier.insert_many(keys, rows_of(keys))
    tier.flush()
    tier.insert_many(new, rows_of(new))
    tier.forget_many(gone)
    keys = np.concatenate([new, spread(900, 30), gone, old])
    found = Found.allocate(len(keys), WORDS)
    open_keys = ~tier.lookup_buffered(keys, found)
    assert open_keys[-8:].all()
    assert np.count_nonzero(open_keys) <= 9
    assert not open_keys[:4].any()
    assert not open_keys[34:36].any(), "removed"
    assert np.flatnonzero(found.state).tolist() == [0, 1, 2, 3]
    assert same_chains(found.rows[:4], new)
    assert tier.ask(keys[open_keys], np.arange(np.count_nonzero(open_keys))).all()
    tier.submit()
    tier.pump()
    assert tier.drain().hit[-8:].all()
    assert tier.stats().lookups == 44
    assert tier.cold_stats().filter_queries == 44
    assert 28 <= tier.cold_stats().filter_negative <= 30
    tier.close()
