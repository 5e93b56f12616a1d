"""Cases `bytes_written` and `hits_write_nothing`: what reaches the drive, by the kernel's own count. Times nothing.

LMDB keeps its readers in a page of `lock.mdb` and dirties it with each transaction, so the kernel writes that page back
every half minute of reading (vm.dirty_expire_centisecs): up to 4 KiB by the clock, whatever the number of hits. The
first lookup is made before counting starts; a longer run may still show a page.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.cold_stores import WORDS, fingerprint, io_now, keys_at, rows_for
from benchmarks.harness import Fact, Result
from flashnest.record import U64Array
from flashnest.storage.lmdb import LmdbStore
from flashnest.storage.slots import SlotsStore
from flashnest.storage.store import Found, State

RECORD_BYTES = 8 + 4 * WORDS
CHANGED = "bytes of the changed records"
_HIT_KEYS = 64


def _written_by(work: Callable[[], None]) -> int:
    before = io_now().written
    work()
    return io_now().written - before


class Changes:
    """Batches of records that are there and get another continuation."""

    def __init__(self, records: int, seed: int) -> None:
        self.records, self.rng, self.first = records, np.random.default_rng(seed), 1

    def keys(self, count: int) -> U64Array:
        """Return distinct stored keys at random."""
        return keys_at(self.rng.choice(self.records, count, replace=False), self.records)

    def write(self, store: LmdbStore | SlotsStore, batch: int, batches: int) -> None:
        """Change `batches` times `batch` records."""
        none = np.zeros(0, np.uint64)
        for _ in range(batches):
            keys = self.keys(batch)
            self.first += 1
            store.write_many(keys, rows_for(keys, self.first), none)


def lmdb_bytes(store: LmdbStore, records: int, batch: int, batches: int) -> list[Result]:
    """Return bytes written a changed record, batches of `batch`."""
    changes = Changes(records, 1)
    written = _written_by(lambda: changes.write(store, batch, batches)) / (batch * batches)
    facts: dict[str, Fact] = {"records": records, "engine": "lmdb", "batch": batch}
    return [Result("bytes_written", facts, written, "B/record", CHANGED, RECORD_BYTES)]


def slots_bytes(store: SlotsStore, records: int, batch: int, batches: int) -> list[Result]:
    """Return bytes written a changed record to segments, then by merging all of them at once."""
    changes = Changes(records, 1)
    store.merge()
    before = store.merge_bytes
    segments = _written_by(lambda: changes.write(store, batch, batches))
    if store.merge_bytes != before:
        raise RuntimeError("the log was too small: a merge came in between")
    waiting = len(store._log)
    merged = _written_by(store.merge)
    facts: dict[str, Fact] = {"records": records, "engine": "slots segments", "batch": batch}
    more: dict[str, Fact] = {"records": records, "engine": "slots merge", "log_records": waiting}
    return [
        Result("bytes_written", facts, segments / (batch * batches), "B/record", CHANGED, RECORD_BYTES),
        Result("bytes_written", more, merged / waiting, "B/record", CHANGED, RECORD_BYTES),
    ]


def hits_write_nothing(store: LmdbStore | SlotsStore, engine: str, data: Path, records: int, hits: int) -> list[Result]:
    """Return bytes written over `hits` hits; raises RuntimeError where the file changed."""
    rng, found = np.random.default_rng(9), Found.allocate(_HIT_KEYS, WORDS)
    one = np.ones(_HIT_KEYS, np.uint32)

    def look() -> None:
        for _ in range(-(-hits // _HIT_KEYS)):
            keys = keys_at(rng.integers(0, records, _HIT_KEYS), records)
            store.lookup_many(keys, found)
            store.feedback_many(keys, one, one)
            if not (found.state == State.HIT).all():
                raise RuntimeError("a stored key was not found")

    before = fingerprint(data)
    store.lookup_many(keys_at(np.arange(1), records), found)
    written = _written_by(look)
    if fingerprint(data) != before:
        raise RuntimeError(f"{data} changed")
    facts: dict[str, Fact] = {"records": records, "engine": engine, "hits": hits}
    return [Result("hits_write_nothing", facts, float(written), "B")]
