"""The membership filter never denies a key that it holds, and rarely lets another through."""

from __future__ import annotations

import numpy as np
import pytest
from records import spread

from flashnest.storage.filter import FIRST_KEYS, MembershipFilter


@pytest.mark.parametrize("count", [10, FIRST_KEYS, 300_000])
def test_held_keys_always_pass_and_others_rarely_do(count: int) -> None:
    seen = MembershipFilter()
    keys = np.random.default_rng(1).integers(1, 1 << 63, count, dtype=np.int64).astype(np.uint64)
    seen.add_many(keys)
    assert seen.contains_many(keys).all()
    others = np.random.default_rng(2).integers(1 << 63, (1 << 64) - 1, 200_000, dtype=np.uint64)
    passed = np.count_nonzero(seen.contains_many(others))
    assert passed < 0.01 * len(others)
    assert seen.queries == count + len(others)
    assert seen.negatives == len(others) - passed


def test_sequential_keys_do_not_raise_false_positives() -> None:
    seen = MembershipFilter()
    seen.add_many(np.arange(1, FIRST_KEYS + 1, dtype=np.uint64))
    others = np.arange(1 << 30, (1 << 30) + 100_000, dtype=np.uint64)
    assert np.count_nonzero(seen.contains_many(others)) < 1000


def test_filter_grows_by_layers_and_costs_about_two_bytes_a_key() -> None:
    seen = MembershipFilter()
    first = seen.bytes_used
    seen.add_many(spread(0, FIRST_KEYS * 5))
    assert first < FIRST_KEYS * 2
    assert first * 4 < seen.bytes_used < FIRST_KEYS * 5 * 2.1


def test_expected_keys_take_one_layer() -> None:
    seen = MembershipFilter(expected_keys=200_000)
    before = seen.bytes_used
    seen.add_many(spread(0, 199_000))
    assert seen.bytes_used == before


def test_adding_known_keys_again_takes_no_room() -> None:
    seen = MembershipFilter()
    keys = spread(0, FIRST_KEYS // 2)
    before = seen.bytes_used
    for _ in range(6):
        seen.add_many(keys)
    assert seen.bytes_used == before


def test_write_path_queries_are_not_counted() -> None:
    seen = MembershipFilter()
    assert not seen.may_hold(spread(0, 10)).any()
    assert seen.queries == seen.negatives == 0
    seen.count_false_positives(3)
    assert seen.false_positives == 3
