"""Case `cold_batch`: one batch of cold keys, every engine in turn over the same records. Prints nothing.

The raw reads take as many random pages of the slots file, ascending as the store asks for them. LMDB runs twice: with
its whole file dropped from the page cache, and with the inner pages of its tree cached again, as in a store in use.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.cold_stores import WORDS, drop_cache, io_now, keys_at
from benchmarks.harness import Fact, Result
from flashnest.record import I64Array, U64Array
from flashnest.storage.lmdb import LmdbStore
from flashnest.storage.page_io import MAX_THREADS, PAGE_BYTES, PageMemory, PageReader, ThreadReader
from flashnest.storage.slots import SlotsStore
from flashnest.storage.store import Found, State
from flashnest.storage.uring import READ, Ring

RAW = "raw io_uring"
_LMDB_LEAF_RECORDS, _LMDB_BRANCH_LEAVES = 38, 200


@dataclass(slots=True)
class Engine:
    """One way to read: `prepare` is not timed. What its batches took, and read from storage."""

    run: Callable[[U64Array], None]
    prepare: Callable[[], None] = lambda: None
    ns: list[int] = field(default_factory=list)
    read_bytes: list[int] = field(default_factory=list)

    def measure(self, keys: U64Array) -> None:
        self.prepare()
        before = io_now().read
        began = time.perf_counter_ns()
        self.run(keys)
        self.ns.append(time.perf_counter_ns() - began)
        self.read_bytes.append(io_now().read - before)

    def median_us(self) -> float:
        return statistics.median(self.ns) / 1e3

    def pages(self) -> float:
        return round(statistics.mean(self.read_bytes) / PAGE_BYTES, 1)


class ColdBatches:
    """All engines over one set of records."""

    def __init__(self, slots: SlotsStore, lmdb: LmdbStore | None, records: int, depth: int) -> None:
        self.slots, self.lmdb, self.records, self.depth = slots, lmdb, records, depth
        self.rng = np.random.default_rng(5)
        self.found = Found.allocate(4096, WORDS)
        self.data = slots._directory.data
        self.ring = Ring(depth)
        self.fd = os.open(self.data, os.O_RDONLY | os.O_DIRECT)
        self.memory = PageMemory(256)
        self.places = np.arange(256) * PAGE_BYTES
        self.ring_reader: PageReader = slots._buckets.lookups.file._reader
        self.thread_reader = ThreadReader(min(depth, MAX_THREADS))

    def close(self) -> None:
        """Give back what is not the stores'."""
        self.slots._buckets.lookups.file._reader = self.ring_reader
        self.thread_reader.close()
        self.ring.close()
        os.close(self.fd)

    def engines(self) -> dict[str, Engine]:
        """Return the engines of one run of batches."""
        engines = {
            RAW: Engine(self.raw_ring),
            "slots+io_uring": Engine(self.lookup_slots, lambda: self.read_by(self.ring_reader)),
            "slots+threads": Engine(self.lookup_slots, lambda: self.read_by(self.thread_reader)),
            "raw serial pread": Engine(self.raw_serial),
        }
        if self.lmdb is not None:
            data = self.lmdb._directory.data
            engines["lmdb"] = Engine(self.lookup_lmdb, lambda: drop_cache(data))
            engines["lmdb, branches cached"] = Engine(self.lookup_lmdb, lambda: self.cache_branches(data))
        return engines

    def random_pages(self, count: int) -> I64Array:
        pages = self.data.stat().st_size // PAGE_BYTES
        return np.sort(self.rng.choice(pages, count, replace=False))

    def raw_ring(self, keys: U64Array) -> None:
        n = len(keys)
        offsets, lengths = self.pages * PAGE_BYTES, np.full(n, PAGE_BYTES)
        moved = self.ring.transfer(READ, self.fd, offsets, self.memory.address, self.places[:n], lengths)
        if not (moved == PAGE_BYTES).all():
            raise RuntimeError("a raw read came short")

    def raw_serial(self, keys: U64Array) -> None:
        for i, page in enumerate(self.pages.tolist()):
            os.preadv(self.fd, [self.memory.pages[i].data], page * PAGE_BYTES)

    def read_by(self, reader: PageReader) -> None:
        self.slots._buckets.lookups.file._reader = reader

    def lookup_slots(self, keys: U64Array) -> None:
        self.slots.lookup_many(keys, self.found)
        self.check(len(keys))

    def lookup_lmdb(self, keys: U64Array) -> None:
        assert self.lmdb is not None
        self.lmdb.lookup_many(keys, self.found)
        self.check(len(keys))

    def check(self, count: int) -> None:
        if not (self.found.state[:count] == State.HIT).all():
            raise RuntimeError("a stored key was not found")

    def cache_branches(self, data: Path) -> None:
        """Let the tree's inner pages be cached, as in a store in use, and few of its leaves."""
        assert self.lmdb is not None
        drop_cache(data)
        branches = self.records // (_LMDB_LEAF_RECORDS * _LMDB_BRANCH_LEAVES) + 1
        at = np.arange(branches) * (self.records // branches)
        self.lmdb.contains_many(keys_at(at, self.records))

    def batch(self, keys: int, rounds: int) -> list[Result]:
        """Measure batches of `keys` keys; every engine once a round, the first round dropped."""
        engines = self.engines()
        for _ in range(rounds + 1):
            for engine in engines.values():
                self.pages = self.random_pages(keys)
                engine.measure(keys_at(self.rng.integers(0, self.records, keys), self.records))
        for engine in engines.values():
            del engine.ns[0], engine.read_bytes[0]
        raw = engines[RAW].median_us()
        results = []
        for name, engine in engines.items():
            facts: dict[str, Fact] = {
                "records": self.records,
                "engine": name,
                "keys": keys,
                "pages_read": engine.pages(),
            }
            results.append(Result("cold_batch", facts, engine.median_us(), "us", f"{RAW}, same file", raw))
        if self.lmdb is not None:
            facts = {"records": self.records, "engine": "slots+io_uring", "keys": keys}
            slots_us = engines["slots+io_uring"].median_us()
            results += [
                Result("cold_batch", facts, slots_us, "us", name, engines[name].median_us())
                for name in ("lmdb", "lmdb, branches cached")
            ]
        return results
