"""Records, clocks and a placement for storage tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashnest.record import (
    CHAIN,
    INSERTED,
    LAST_ACCESS,
    META,
    REFS,
    Admission,
    Kind,
    Tier,
    U8Array,
    U32Array,
    U64Array,
    pack_meta,
    row_words,
)
from flashnest.storage.desk import fixed_bytes
from flashnest.storage.eviction import evictor_bytes
from flashnest.storage.kernels_layout import UNIT_KEYS, unit_words
from flashnest.storage.packed import TOKEN_BITS
from flashnest.storage.table import MAX_LOAD

WORDS = row_words()


@dataclass
class Clock:
    """Time that a test moves by hand; call it for seconds."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now

    def whole(self) -> int:
        """Return whole seconds, a `ClockS`."""
        return int(self.now)


def keys_of(*values: int) -> U64Array:
    return np.array(values, np.uint64)


def spread(start: int, count: int) -> U64Array:
    """Return `count` distinct, well-spread keys; equal for equal arguments."""
    return (np.arange(start, start + count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)


def rows_of(
    keys: U64Array, *, tokens: int = 32, kind: Kind = Kind.NGRAM, chain: int | None = None, words: int = WORDS
) -> U32Array:
    """Return one row a key; its chain of 16-bit tokens is made from the key, or starts with `chain` where given."""
    rows = np.zeros((len(keys), words), np.uint32)
    rows[:, META] = pack_meta(kind, tokens, words - CHAIN)
    rows[:, REFS] = 1
    low = (keys & np.uint64(0xFFFF_FFFF)).astype(np.uint32)
    rows[:, CHAIN:] = (low[:, None] + np.arange(words - CHAIN, dtype=np.uint32)) & np.uint32(0xFFFF)
    if chain is not None:
        rows[:, CHAIN] = chain
    return rows


def table_bytes(units: int, words: int = WORDS, eviction: str = "s3fifo") -> int:
    """Return the budget that a `DramTable` of that many units, 14 slots each, uses whole."""
    need = units * 8 * unit_words(words, TOKEN_BITS) + evictor_bytes(eviction, int(units * UNIT_KEYS * MAX_LOAD))
    budget = need
    while budget < need + fixed_bytes(budget):
        budget = need + fixed_bytes(budget)
    return budget


def same_chains(rows: U32Array, keys: U64Array) -> bool:
    """Whether each row is the one that `rows_of` made for its key."""
    return bool((rows[:, CHAIN:] == rows_of(keys, words=rows.shape[1])[:, CHAIN:]).all())


def stamped(rows: U32Array, at: int) -> U32Array:
    """Return rows as a store at time `at` keeps them when they come without a time."""
    rows = rows.copy()
    rows[:, INSERTED] = rows[:, LAST_ACCESS] = at
    return rows


@dataclass(frozen=True)
class Placement:
    """Long n-grams in DRAM else NVMe, short ones on NVMe, the rest nowhere: a policy compiled by hand."""

    chains: tuple[tuple[Tier, ...], ...] = ((Tier.DRAM, Tier.NVME), (Tier.NVME,), ())
    admissions: tuple[Admission | None, ...] = (None, None, None)
    long: int = 32
    short: int = 8

    def chain_codes(self, tokens: U8Array, kind: U8Array, namespace: U32Array, nbytes: U32Array) -> U8Array:
        return np.where(tokens >= self.long, 0, np.where(tokens <= self.short, 1, 2)).astype(np.uint8)
