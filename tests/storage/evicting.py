"""Tables for eviction tests, and what is done to them."""

from __future__ import annotations

import numpy as np
from records import WORDS, Clock, rows_of, table_bytes

from flashnest.record import BoolArray, U64Array
from flashnest.storage.store import Found, State
from flashnest.storage.table import DramTable

UNIT_RECORDS = 11


def table_of(records: int, eviction: str, clock: Clock | None = None) -> DramTable:
    """Return a table for about `records` records, or a few more."""
    clock = Clock(1_000_000) if clock is None else clock
    budget = table_bytes(-(-records // UNIT_RECORDS), eviction=eviction)
    return DramTable(budget, words=WORDS, clock_s=clock.whole, eviction=eviction, populate=False)


def look(table: DramTable, keys: U64Array) -> BoolArray:
    """Look keys up; return which were hits."""
    found = Found.allocate(len(keys), WORDS)
    table.lookup_many(keys, found)
    return found.state == State.HIT


def put(table: DramTable, keys: U64Array) -> None:
    for part in np.array_split(keys, -(-len(keys) // 64)):
        assert table.insert_many(part, rows_of(part)).all()
