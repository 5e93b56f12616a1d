"""Keys, rows and ways to fill the table, for its benchmark: in batches of rows, or from a token stream."""

from __future__ import annotations

import math
import time
from typing import Final

import numpy as np

from benchmarks.harness import Result
from flashnest.hashing import mix64, mix64_many
from flashnest.jit import kernel
from flashnest.record import CHAIN, META, NGRAM_LENGTHS, REFS, I32Array, Kind, U32Array, U64Array, pack_meta, row_words
from flashnest.runtime.ngrams import learn_rows
from flashnest.storage.desk import fixed_bytes
from flashnest.storage.eviction import evictor_bytes
from flashnest.storage.kernels_layout import UNIT_KEYS, unit_words
from flashnest.storage.packed import TOKEN_BITS
from flashnest.storage.step_clock import StepClock
from flashnest.storage.table import MAX_LOAD, DramTable

WORDS: Final = row_words()
LENGTHS = np.array(NGRAM_LENGTHS, np.int32)
VOCABULARY: Final = 151_936
SALT: Final = 7
EVICTION: Final = "s3fifo"
_STREAM_TOKENS: Final = 1 << 20


@kernel
def make_keys(start: int, out: U64Array) -> None:
    """Fill `out` with distinct keys, the same for the same start."""
    for i in range(out.shape[0]):
        out[i] = mix64(np.uint64(start + i + 1))


def keys_from(start: int, count: int) -> U64Array:
    """Return `count` distinct keys, from the `start`-th on."""
    keys = np.empty(count, np.uint64)
    make_keys(start, keys)
    return keys


def some_keys(records: int, count: int, rng: np.random.Generator) -> U64Array:
    """Return `count` random keys of the first `records` that `keys_from(0, records)` would give."""
    return mix64_many((rng.integers(0, records, count) + 1).astype(np.uint64))


def budget_for(records: int, load: float) -> int:
    """Return the byte budget of a table that `records` fill to `load`."""
    units = math.ceil(records / (UNIT_KEYS * load))
    budget = 8 * unit_words(WORDS, TOKEN_BITS) * units + evictor_bytes(EVICTION, int(units * UNIT_KEYS * MAX_LOAD))
    return budget + fixed_bytes(budget)


def rows_for(keys: U64Array) -> U32Array:
    """Return a record a key: a matched 32-gram and eight tokens."""
    rows = np.zeros((len(keys), WORDS), np.uint32)
    rows[:, META] = pack_meta(Kind.NGRAM, 32, WORDS - CHAIN)
    rows[:, REFS] = 1
    rows[:, CHAIN:] = (keys & np.uint64(0x7FFF)).astype(np.uint32)[:, None]
    return rows


def table_for(records: int, load: float) -> DramTable:
    """Return an empty table that `records` fill to `load`, its pages touched."""
    table = DramTable(budget_for(records, load), words=WORDS, clock_s=StepClock(lambda: 1), evict=False)
    table.wait_for_pages()
    return table


def fill(table: DramTable, records: int) -> float:
    """Insert `records` new records in batches of 8192; returns ns a record, building rows not counted."""
    spent = 0
    for start in range(0, records, 8192):
        keys = keys_from(start, min(8192, records - start))
        rows = rows_for(keys)
        began = time.perf_counter_ns()
        stored = table.insert_many(keys, rows)
        spent += time.perf_counter_ns() - began
        if not stored.all():
            raise RuntimeError(f"the table took only {len(table)} records")
    return spent / records


def store_stream(table: DramTable, tokens: I32Array) -> None:
    """Store a text's n-grams the way the drafter does: hash and build rows, insert them."""
    keys = np.zeros(1024 * len(LENGTHS), np.uint64)
    rows, salts = np.zeros((len(keys), WORDS), np.uint32), np.full(1, SALT, np.uint64)
    learned, ends = np.zeros(1, np.int32), np.array([len(tokens)], np.int32)
    one, final = np.zeros(1, np.int64), np.ones(1, np.bool_)
    while count := learn_rows(tokens[None], one, learned, ends, salts, one, final, LENGTHS, keys, rows):
        table.insert_many(keys[:count], rows[:count])


def stream(records: int, load: float) -> Result:
    """Fill a fresh table from a token stream until `records` are stored; million records a second."""
    rng, table, spent, left = np.random.default_rng(3), table_for(records, load), 0.0, records // len(LENGTHS)
    store_stream(table, np.zeros(40, np.int32))  # compiled now
    table.clear()
    while left > 0:
        tokens = rng.integers(0, VOCABULARY, min(_STREAM_TOKENS, left)).astype(np.int32)
        left -= len(tokens)
        began = time.perf_counter()
        store_stream(table, tokens)
        spent += time.perf_counter() - began
    stored = len(table)
    parameters = {"records": stored, "load": round(stored * MAX_LOAD / table.max_records, 3)}
    table.close()
    return Result("insert_stream", parameters, stored / spent / 1e6, "M/s")
