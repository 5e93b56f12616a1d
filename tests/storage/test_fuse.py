"""Binary fuse filters: no key denied, under 0.5 % of others let through, about 9 bits a key, built in shards."""

from __future__ import annotations

import numpy as np
import pytest
from records import keys_of

from flashnest.record import BoolArray, U64Array
from flashnest.storage import fuse
from flashnest.storage.filter_kernels import filter_contains
from flashnest.storage.fuse import FuseFilter, build_fuse


def random_keys(seed: int, count: int) -> U64Array:
    return np.unique(np.random.default_rng(seed).integers(1, (1 << 64) - 1, count, dtype=np.uint64))


def build(keys: U64Array, batch: int = 1000, expected: int | None = None) -> FuseFilter:
    batches = (keys[start : start + batch] for start in range(0, len(keys), batch))
    return build_fuse(batches, len(keys) if expected is None else expected)


def ask(made: FuseFilter, keys: U64Array) -> BoolArray:
    maybe = np.zeros(len(keys), np.bool_)
    empty = np.zeros(64, np.uint64)
    filter_contains(made.table, made.shards, np.uint64(made.shift), empty, keys, maybe)
    return maybe


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 100, 3000, 200_000])
def test_held_keys_pass_and_few_others_do(count: int) -> None:
    keys = random_keys(1, count)
    made = build(keys)
    assert len(made) == len(keys)
    assert ask(made, keys).all()
    passed = np.count_nonzero(ask(made, random_keys(2, 100_000)))
    assert passed <= (550 if count else 0), "1 in 256, and half of that again for chance"


def test_size_is_about_ten_bits_a_key() -> None:
    keys = random_keys(1, 300_000)
    assert build(keys).bytes_used <= 1.25 * len(keys)


def test_many_keys_are_built_shard_by_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse, "SHARD_KEYS", 10_000)
    keys = random_keys(1, 150_000)
    made = build(keys, batch=7777)
    assert len(made.shards) == 16
    assert ask(made, keys).all()
    assert np.count_nonzero(ask(made, random_keys(2, 100_000))) <= 550


@pytest.mark.parametrize("expected", [0, 10_000_000])
def test_wrong_expectations_cost_memory_not_keys(monkeypatch: pytest.MonkeyPatch, expected: int) -> None:
    monkeypatch.setattr(fuse, "SHARD_KEYS", 10_000)
    keys = random_keys(1, 50_000)
    assert ask(build(keys, expected=expected), keys).all()


def test_keys_in_one_corner_of_the_space_are_built_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse, "SHARD_KEYS", 1000)
    keys = np.arange(1, 20_001, dtype=np.uint64)
    made = build(keys)
    assert ask(made, keys).all()
    assert np.count_nonzero(ask(made, np.arange(1 << 40, (1 << 40) + 100_000, dtype=np.uint64))) <= 550


def test_first_and_last_key_of_a_shard_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse, "SHARD_KEYS", 2)
    quarter = 1 << 62
    keys = keys_of(*sorted(edge * quarter + at for edge in range(4) for at in (1, quarter - 1)))
    assert ask(build(keys, batch=3), keys).all()


@pytest.mark.parametrize("keys", [keys_of(2, 1), keys_of(1, 1)])
def test_keys_that_do_not_ascend_are_refused(keys: U64Array) -> None:
    for batch in (1, 2):
        with pytest.raises(ValueError, match="ascend"):
            build(keys, batch=batch)
