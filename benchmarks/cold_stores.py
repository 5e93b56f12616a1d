"""Stores for the cold benchmarks, filled fast and in key order; what the kernel says was read and written.

The i-th of n records has a key near i * 2**64 / n: spread like hashes, ascending as they are made, and any of them can
be named again without keeping a list. Times nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flashnest.hashing import mix64_many
from flashnest.record import (
    CHAIN,
    INSERTED,
    LAST_ACCESS,
    META,
    REFS,
    I64Array,
    Kind,
    U32Array,
    U64Array,
    pack_meta,
    row_words,
)
from flashnest.storage.lmdb import LmdbStore
from flashnest.storage.page_io import PAGE_BYTES
from flashnest.storage.page_io import Io as IoName
from flashnest.storage.sealed import pack_values, split_keys
from flashnest.storage.slots import SlotsStore
from flashnest.storage.slots_page import slots_for

WORDS = row_words()
SLOTS_LOAD = 0.8
_LOAD_RECORDS = 1 << 18
_MADV_DONTNEED = 4
_libc = ctypes.CDLL(None, use_errno=True)


def keys_at(index: I64Array, records: int) -> U64Array:
    """Return the keys of some of `records` records, uint64 (n,): ascending where `index` is, never 0."""
    step = (1 << 64) // records
    jitter = mix64_many(index.astype(np.uint64)) % np.uint64(step - 1)
    return index.astype(np.uint64) * np.uint64(step) + jitter + np.uint64(1)


def rows_for(keys: U64Array, first: int = 1) -> U32Array:
    """Return a record a key: a matched 8-gram and eight tokens, the first of them `first`."""
    rows = np.zeros((len(keys), WORDS), np.uint32)
    rows[:, META] = pack_meta(Kind.NGRAM, 8, WORDS - CHAIN)
    rows[:, [INSERTED, LAST_ACCESS, REFS]] = 1
    rows[:, CHAIN:] = (keys & np.uint64(0x7FFF)).astype(np.uint32)[:, None]
    rows[:, CHAIN] = first
    return rows


def _batches(records: int) -> Iterator[tuple[U64Array, U32Array]]:
    for start in range(0, records, _LOAD_RECORDS):
        keys = keys_at(np.arange(start, min(start + _LOAD_RECORDS, records)), records)
        yield keys, rows_for(keys)


def load_slots(
    path: Path, records: int, *, log_records: int = 1 << 16, io: IoName = "auto", depth: int = 64
) -> SlotsStore:
    """Return a store that `records` records fill to `SLOTS_LOAD`, written straight into its pages."""
    log_bytes = log_records * (8 + 4 * WORDS + 12)
    pages = records / (slots_for(WORDS) * SLOTS_LOAD)
    capacity = int(pages * (PAGE_BYTES + 1)) + 2 * log_bytes + (1 << 20)
    store = SlotsStore(path, capacity, words=WORDS, clock_s=lambda: 2, log_bytes=log_bytes, io=io, depth=depth)
    for keys, rows in _batches(records):
        store.load_sorted(keys, rows)
    if len(store) != records:
        raise RuntimeError(f"{len(store)} of {records} records were loaded")
    return store


def load_lmdb(path: Path, records: int) -> LmdbStore:
    """Return a store of `records` records appended in key order, its leaves full."""
    capacity = 160 * records + (64 << 20)
    store = LmdbStore(path, capacity, words=WORDS, clock_s=lambda: 2)
    store._env.set_mapsize(capacity)
    for keys, rows in _batches(records):
        with store._env.begin(write=True, db=store._db) as txn, txn.cursor() as cursor:
            taken, added = cursor.putmulti(zip(split_keys(keys), pack_values(keys, rows), strict=True), append=True)
        if not taken == added == len(keys):
            raise RuntimeError(f"LMDB took {added} of {len(keys)} records")
    store._writer._count_records()
    return store


@dataclass(frozen=True, slots=True)
class Io:
    """Bytes that this process has had fetched from and sent to storage, page cache hits left out."""

    read: int
    written: int


def io_now() -> Io:
    """Read the kernel's counters."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return Io(int(lines["read_bytes"]), int(lines["write_bytes"]))


def drop_cache(path: Path) -> None:
    """Drop a file's pages from the page cache; those mapped into this process are unmapped first, else they stay."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            if line.rstrip().endswith(str(path.resolve())):
                first, last = (int(text, 16) for text in line.split()[0].split("-"))
                if _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_DONTNEED):
                    raise OSError(ctypes.get_errno(), "madvise")
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def fingerprint(path: Path, samples: int = 256) -> tuple[int, int, str]:
    """Return a file's size, mtime and a hash of `samples` pages all over it."""
    size = path.stat().st_size
    digest = hashlib.blake2b()
    with path.open("rb") as file:
        for at in range(0, size, max(PAGE_BYTES, size // samples)):
            file.seek(at)
            digest.update(file.read(PAGE_BYTES))
    return size, path.stat().st_mtime_ns, digest.hexdigest()
