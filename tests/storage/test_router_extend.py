"""Tails that end in drafted tokens are looked up in the tables alone: the longest match wins, no cold read is asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from moving_tiers import rig
from records import WORDS, rows_of

from flashnest.hashing import hash_tails
from flashnest.record import Tier
from flashnest.storage.store import Found, State

LENGTHS = np.array([4, 8, 16], np.int32)
TEXT = np.arange(100, 120, dtype=np.int32)[None]
ENDS, SALTS = np.array([20], np.int32), np.array([9], np.uint64)


@pytest.mark.parametrize("in_vram", [True, False])
def test_extending_finds_the_longest_in_memory_and_asks_nothing_of_the_disk(tmp_path: Path, in_vram: bool) -> None:
    tiers = rig(tmp_path)
    keys = np.zeros((1, 3), np.uint64)
    hash_tails(TEXT, ENDS, SALTS, LENGTHS, keys)
    four, eight, sixteen = (keys[0, i : i + 1].copy() for i in range(3))
    tiers.dram.insert_many(four, rows_of(four))
    if in_vram:
        tiers.vram.insert_many(eight, rows_of(eight))
    tiers.cold.insert_many(sixteen, rows_of(sixteen))
    tiers.cold.flush()
    found, index, asked = Found.allocate(1, WORDS), np.zeros(1, np.int64), np.zeros((1, 3), np.uint64)
    tiers.router.extend_tails_many(TEXT, ENDS, SALTS, LENGTHS, asked, found, index)
    assert asked.tolist() == keys.tolist()
    assert index[0] == (1 if in_vram else 0)
    assert (found.state[0], found.tier[0]) == (State.HIT, Tier.VRAM if in_vram else Tier.DRAM)
    tiers.router.submit()
    tiers.cold.pump()
    assert len(tiers.router.drain()) == 0
    tiers.router.longest_tails_many(TEXT, ENDS, SALTS, LENGTHS, np.zeros(1, np.int64), asked, found, index)
    tiers.router.submit()
    tiers.cold.pump()
    assert tiers.router.drain().keys.tolist() == sixteen.tolist()
    tiers.router.close()


def test_extending_counts_as_lookups(tmp_path: Path) -> None:
    tiers = rig(tmp_path)
    before = tiers.router.lookup_totals[0]
    keys, found, index = np.zeros((1, 3), np.uint64), Found.allocate(1, WORDS), np.zeros(1, np.int64)
    tiers.router.extend_tails_many(TEXT, ENDS, SALTS, LENGTHS, keys, found, index)
    assert index[0] == -1
    assert tiers.router.lookup_totals[0] == before + 3
    tiers.router.close()
