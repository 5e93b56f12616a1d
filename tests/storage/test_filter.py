"""The membership filter never denies a key that it holds, and rarely lets another through, also across rebuilds."""

from __future__ import annotations

import numpy as np
import pytest
from records import keys_of, spread

from flashnest.record import U64Array
from flashnest.storage.filter import MembershipFilter
from flashnest.storage.filter_layers import FIRST_KEYS, BloomLayers
from flashnest.storage.fuse import FuseFilter, build_fuse


def random_keys(seed: int, count: int) -> U64Array:
    return np.random.default_rng(seed).integers(1, (1 << 64) - 1, count, dtype=np.uint64)


def sealed_of(keys: U64Array) -> FuseFilter:
    return build_fuse([np.sort(keys)], len(keys))


@pytest.mark.parametrize(("sealed", "added"), [(0, 10), (0, FIRST_KEYS), (0, 300_000), (200_000, 50_000)])
def test_held_keys_always_pass_and_under_one_percent_of_others(sealed: int, added: int) -> None:
    held, more = random_keys(1, sealed), random_keys(2, added)
    seen = MembershipFilter(sealed_of(held))
    seen.add_many(more)
    assert seen.contains_many(held).all()
    assert seen.contains_many(more).all()
    others = random_keys(3, 200_000)
    passed = np.count_nonzero(seen.contains_many(others))
    assert passed < 0.01 * len(others)
    assert seen.queries == sealed + added + len(others)
    assert seen.negatives == len(others) - passed


def test_sequential_keys_do_not_raise_false_positives() -> None:
    seen = MembershipFilter()
    seen.add_many(np.arange(1, FIRST_KEYS + 1, dtype=np.uint64))
    others = np.arange(1 << 30, (1 << 30) + 100_000, dtype=np.uint64)
    assert np.count_nonzero(seen.contains_many(others)) < 1000


def test_layers_grow_and_cost_about_two_bytes_a_key() -> None:
    layers = BloomLayers()
    first = layers.bytes_used
    layers.add_many(spread(0, FIRST_KEYS * 5))
    assert first < FIRST_KEYS * 2
    assert first * 4 < layers.bytes_used < FIRST_KEYS * 5 * 2.1


def test_adding_known_keys_again_takes_no_room() -> None:
    layers, keys = BloomLayers(), spread(0, FIRST_KEYS // 2)
    for _ in range(6):
        layers.add_many(keys)
    assert len(layers.layers) == 1
    assert FIRST_KEYS // 2 * 0.98 < layers.keys <= FIRST_KEYS // 2


def test_sealed_part_costs_about_a_byte_and_a_delta_of_a_quarter_half_of_one() -> None:
    seen = MembershipFilter(sealed_of(spread(0, 1_000_000)))
    assert seen.bytes_used < 1.25 * 1_000_000 + 1.75 * 312_500 + 130_000
    assert seen.sealed_keys == 1_000_000


def test_write_path_queries_are_not_counted() -> None:
    seen = MembershipFilter()
    assert not seen.may_hold(spread(0, 10)).any()
    assert not seen.knows_many(spread(0, 10)).any()
    assert seen.queries == seen.negatives == 0
    seen.count_false_positives(3)
    assert seen.false_positives == 3


def test_removed_keys_may_pass_but_are_not_known() -> None:
    seen = MembershipFilter(sealed_of(spread(0, 1000)))
    seen.remove_many(spread(0, 10))
    assert seen.may_hold(spread(0, 1000)).all()
    known = seen.knows_many(spread(0, 1000))
    assert not known[:10].any()
    assert np.count_nonzero(known[10:]) >= 985


def test_key_zero_never_passes() -> None:
    seen = MembershipFilter()
    seen.add_many(keys_of(0, 5))
    assert seen.contains_many(keys_of(0, 5)).tolist() == [False, True]
    seen.add_many(random_keys(1, 200_000))
    assert len(seen._delta.layers) > 1
    assert seen.contains_many(keys_of(0, 5)).tolist() == [False, True]


def test_rebuild_is_due_when_a_quarter_has_changed() -> None:
    seen = MembershipFilter(sealed_of(spread(0, 100_000)))
    seen.add_many(spread(200_000, 15_000))
    assert not seen.wants_rebuild
    seen.remove_many(spread(0, 12_000))
    assert seen.wants_rebuild


def test_rebuild_keeps_every_key_and_forgets_the_removed() -> None:
    seen = MembershipFilter(sealed_of(spread(0, 1000)))
    seen.add_many(spread(1000, 20_000))
    seen.remove_many(spread(0, 500))
    seen.begin_rebuild()
    assert not seen.wants_rebuild
    seen.add_many(spread(100_000, 300))
    seen.remove_many(spread(500, 10))
    assert seen.may_hold(spread(0, 21_000)).all(), "the old parts answer meanwhile"
    assert seen.may_hold(spread(100_000, 300)).all()
    seen.finish_rebuild(sealed_of(spread(500, 20_500)))
    assert seen.may_hold(spread(500, 20_500)).all()
    assert seen.may_hold(spread(100_000, 300)).all()
    assert np.count_nonzero(seen.may_hold(spread(0, 500))) < 20
    assert not seen.knows_many(spread(500, 10)).any()
    assert seen.rebuilds == 1
    assert not seen.wants_rebuild


def test_abandoned_rebuild_loses_nothing_and_waits_before_the_next() -> None:
    seen = MembershipFilter()
    seen.add_many(spread(0, 20_000))
    seen.begin_rebuild()
    seen.add_many(spread(50_000, 100))
    seen.abandon_rebuild()
    assert seen.may_hold(spread(0, 20_000)).all()
    assert seen.may_hold(spread(50_000, 100)).all()
    assert not seen.wants_rebuild
    seen.add_many(spread(100_000, 25_000))
    assert seen.wants_rebuild


def test_finishing_what_was_not_begun_is_refused() -> None:
    with pytest.raises(ValueError, match="no rebuild"):
        MembershipFilter().finish_rebuild(sealed_of(keys_of(1)))
