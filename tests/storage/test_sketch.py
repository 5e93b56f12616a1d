"""Windowed counts: never too few within the window, rarely too many, nothing left after it; and the admission gate."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import Clock, keys_of, spread

from flashnest.record import Admission, U64Array
from flashnest.storage.sketch import COUNT_MOST, AdmissionGate, WindowedCounts

NARROW, WIDE = 15, COUNT_MOST


def random_keys(seed: int, count: int) -> U64Array:
    return np.random.default_rng(seed).integers(1, (1 << 64) - 1, count, dtype=np.uint64)


def adds_within(history: deque[tuple[int, int]], key: int, now: int, seconds: float) -> int:
    return sum(1 for at, k in history if k == key and now - at <= seconds)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("most", [NARROW, WIDE])
@pytest.mark.parametrize("expected_keys", [1, 4000])
def test_counts_hold_the_window_and_nothing_a_third_older(data: st.DataObject, most: int, expected_keys: int) -> None:
    """Against a list of all adds. In one line (1 expected key) counts are often too high, never too low; in many lines
    twenty keys do not meet, so that they lie between the adds of one window and those of four thirds of it."""
    clock = Clock(data.draw(st.integers(0, 10_000)))
    window_s = data.draw(st.sampled_from([1, 2, 7, 60, 600]))
    counts = WindowedCounts(window_s, clock_s=clock.whole, expected_keys=expected_keys, most=most)
    history: deque[tuple[int, int]] = deque()
    everything = np.arange(1, 21, dtype=np.uint64)
    for _ in range(data.draw(st.integers(1, 12))):
        keys = data.draw(st.lists(st.integers(1, 20), max_size=30))
        counts.add_many(np.array(keys, np.uint64))
        history.extend((clock.whole(), k) for k in keys)
        clock.now += data.draw(st.integers(0, window_s))
        got = counts.count_many(everything).tolist()
        for key, count in zip(everything.tolist(), got, strict=True):
            assert count >= min(most, adds_within(history, key, clock.whole(), window_s))
            if expected_keys > 1:
                assert count <= adds_within(history, key, clock.whole(), window_s * 4 / 3 - 1e-9)


@pytest.mark.parametrize(("most", "wrong"), [(NARROW, 0.04), (WIDE, 0.07)])
def test_at_the_design_load_few_unseen_keys_count_as_seen(most: int, wrong: float) -> None:
    clock = Clock(0)
    counts = WindowedCounts(60, clock_s=clock.whole, expected_keys=60_000, most=most)
    keys = random_keys(1, 60_000)
    for third in range(4):  # three whole thirds of the window and half of the one under way: the most there can be
        counts.add_many(keys[third * 20_000 : third * 20_000 + (20_000 if third < 3 else 10_000)])
        clock.now += 20 if third < 3 else 0
    over = counts.count_many(random_keys(2, 50_000))
    assert 0.005 < np.count_nonzero(over) / len(over) < wrong
    assert over.mean() < 1.1 * wrong
    seen = counts.count_many(keys[20_000:])
    assert seen.min() >= 1
    assert np.count_nonzero(seen > 1) / len(seen) < wrong


@pytest.mark.parametrize("most", [NARROW, WIDE])
def test_frequent_keys_among_many_are_counted_closely(most: int) -> None:
    counts = WindowedCounts(60, clock_s=lambda: 0, expected_keys=30_000, most=most)
    often = spread(0, 200)
    counts.add_many(np.random.default_rng(3).permutation(np.concatenate([random_keys(4, 9_000), np.repeat(often, 10)])))
    got = counts.count_many(often)
    assert got.min() >= 10
    assert got.mean() < 10.2


@pytest.mark.parametrize(("most", "stops_at"), [(NARROW, 15), (WIDE, 255)])
def test_counts_stop_at_their_most_in_one_third_of_the_window(most: int, stops_at: int) -> None:
    counts = WindowedCounts(60, clock_s=lambda: 0, expected_keys=100, most=most)
    counts.add_many(np.full(400, 7, np.uint64))
    assert counts.count_many(keys_of(7)).tolist() == [stops_at]


def test_nothing_is_left_after_four_thirds_of_the_window() -> None:
    clock = Clock(50)
    counts = WindowedCounts(30, clock_s=clock.whole, expected_keys=1000)
    keys = random_keys(5, 3000)
    counts.add_many(keys)
    clock.now = 50 + 30
    assert (counts.count_many(keys) >= 1).all()
    clock.now = 50 + 40
    assert not counts.count_many(keys).any()
    counts.add_many(keys[:1])
    assert counts.count_many(keys[:1]).tolist() == [1], "an old line starts afresh when it is changed"


def test_clock_that_goes_back_loses_nothing() -> None:
    clock = Clock(1000)
    counts = WindowedCounts(30, clock_s=clock.whole, expected_keys=100)
    clock.now = 1500
    counts.add_many(keys_of(1))
    clock.now = 900
    counts.add_many(keys_of(1))
    assert counts.count_many(keys_of(1)).tolist() == [2]


def test_add_and_count_tells_equal_keys_of_a_batch_apart() -> None:
    counts = WindowedCounts(30, clock_s=lambda: 0, expected_keys=5000)
    assert counts.add_and_count_many(keys_of(5, 6, 5, 0, 5)).tolist() == [1, 1, 2, 0, 3]
    assert counts.count_many(keys_of(0, 6, 9)).tolist() == [0, 1, 0]


@pytest.mark.parametrize(("most", "bytes_a_key"), [(NARROW, 64 / 6), (WIDE, 64 / 3)])
def test_memory_is_fixed_and_counted(most: int, bytes_a_key: float) -> None:
    counts = WindowedCounts(30, clock_s=lambda: 0, expected_keys=10_000, most=most)
    before = counts.bytes_used
    assert before == counts._allocated.nbytes == pytest.approx(10_000 * bytes_a_key, abs=128)
    counts.add_many(random_keys(6, 200_000))
    assert counts.bytes_used == before


@pytest.mark.parametrize(("window_s", "most"), [(0, 3), (10, 0), (10, 256)])
def test_impossible_windows_and_counts_are_refused(window_s: int, most: int) -> None:
    with pytest.raises(ValueError, match="needs 1 s or more"):
        WindowedCounts(window_s, clock_s=lambda: 0, most=most)


@pytest.mark.parametrize("hits", [1, 2, 20])
def test_gate_opens_at_the_hits_th_sighting_within_the_window(hits: int) -> None:
    clock = Clock(0)
    gate = AdmissionGate(Admission(hits, 600), clock_s=clock.whole, expected_keys=2000)
    keys = spread(0, 50)
    for sighting in range(1, hits + 2):
        assert (gate.admit_many(keys) == (sighting >= hits)).all()
        clock.now += 1
    assert gate.admit_many(keys_of(0)).tolist() == [False]


def test_gate_forgets_sightings_after_the_window() -> None:
    clock = Clock(0)
    gate = AdmissionGate(Admission(2, 600), clock_s=clock.whole, expected_keys=2000)
    keys = spread(0, 50)
    gate.admit_many(keys)
    clock.now = 800
    assert not gate.admit_many(keys).any()
    clock.now = 1400
    assert gate.admit_many(keys).all(), "600 s are within the window"


def test_gate_stops_most_one_hit_wonders_at_its_design_load_and_none_too_late() -> None:
    gate = AdmissionGate(Admission(2, 60), clock_s=lambda: 0, expected_keys=40_000)
    passed = np.concatenate([gate.admit_many(part) for part in np.split(random_keys(7, 13_000), 26)])
    assert np.count_nonzero(passed) < 0.04 * len(passed)
    assert gate.admit_many(random_keys(7, 13_000)).all()
    assert gate.bytes_used < 40_000 * 11
