"""Opening and asking a small slots store, for its tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from records import WORDS, rows_of, spread

from flashnest.storage.slots import SlotsStore
from flashnest.storage.slots_page import slots_for
from flashnest.storage.store import Found

MIB = 1 << 20
SLOTS = slots_for(WORDS)


def open_store(path: Path, capacity: int = 2 * MIB, **options: object) -> SlotsStore:
    return SlotsStore(path, capacity, words=WORDS, clock_s=lambda: 5, **options)  # type: ignore[arg-type]


def fill(store: SlotsStore, start: int, count: int) -> np.ndarray:
    keys = spread(start, count)
    return store.insert_many(keys, rows_of(keys))


def look(store: SlotsStore, keys: np.ndarray) -> Found:
    found = Found.allocate(len(keys), WORDS)
    store.lookup_many(keys, found)
    return found


def crowd(count: int, start: int = 1) -> np.ndarray:
    """Return keys that all belong to the first bucket."""
    return np.arange(start, start + count, dtype=np.uint64)
