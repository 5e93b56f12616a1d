"""S3-FIFO, SIEVE and LRU in the DRAM table against their textbooks: how many asks are hits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from evicting import look, table_of
from records import Clock, rows_of, spread
from textbook import Cache, Lru, S3Fifo, Sieve

from flashnest.storage.eviction import EVICTIONS
from flashnest.storage.table import DramTable

TEXTBOOKS: dict[str, Callable[[int], Cache]] = {"s3fifo": S3Fifo, "sieve": Sieve, "lru": Lru}


def zipf(seed: int, objects: int, length: int, alpha: float = 1.0) -> np.ndarray:
    weight = 1 / np.arange(1, objects + 1) ** alpha
    return np.random.default_rng(seed).choice(objects, length, p=weight / weight.sum())


def zipf_with_scans(seed: int) -> np.ndarray:
    """Return a Zipf trace in which every 1500 asks are followed by 500 keys that are asked for once."""
    often = zipf(seed, 8_000, 24_000).reshape(-1, 1500)
    scans = 1_000_000 + np.arange(len(often) * 500).reshape(-1, 500)
    return np.concatenate([often, scans], axis=1).reshape(-1)


def hit_ratio(table: DramTable, trace: np.ndarray, clock: Clock) -> float:
    """Ask 16 keys a second; insert what was missed."""
    hits = 0
    keys = spread(0, int(trace.max()) + 1)[trace]
    for part in keys.reshape(-1, 16):
        clock.now += 1
        hit = look(table, part)
        hits += np.count_nonzero(hit)
        missed = part[~hit]
        if len(missed):
            table.insert_many(missed, rows_of(missed))
    return hits / len(trace)


@pytest.mark.parametrize("eviction", EVICTIONS)
@pytest.mark.parametrize(
    ("records", "trace"),
    [(200, zipf(1, 10_000, 32_000)), (1000, zipf(2, 10_000, 32_000, 0.7)), (1000, zipf_with_scans(3))],
    ids=["zipf", "flat", "scans"],
)
def test_hit_ratio_is_within_two_points_of_the_textbook(eviction: str, records: int, trace: np.ndarray) -> None:
    clock = Clock(1_000_000)
    table = table_of(records, eviction, clock)
    textbook = TEXTBOOKS[eviction](table.max_records)
    wanted = sum(map(textbook.ask, trace.tolist())) / len(trace)
    assert wanted > 0.05
    assert hit_ratio(table, trace, clock) == pytest.approx(wanted, abs=0.02)


def test_s3fifo_and_sieve_beat_lru_on_zipf_with_scans() -> None:
    ratio = {}
    for eviction in EVICTIONS:
        clock = Clock(1_000_000)
        ratio[eviction] = hit_ratio(table_of(200, eviction, clock), zipf_with_scans(3), clock)
    assert ratio["s3fifo"] > ratio["lru"] + 0.05
    assert ratio["sieve"] > ratio["lru"] + 0.05
