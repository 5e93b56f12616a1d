"""Hits on cold records write nothing, to the file or to the drive, buffered, asynchronous and blocking."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from records import WORDS, Clock, rows_of, spread

from flashnest.record import HITS, U64Array
from flashnest.storage.cold import ColdOptions, ColdTier
from flashnest.storage.lmdb import LmdbStore
from flashnest.storage.store import Found, State

RECORDS, ROUNDS = 1000, 20


def bytes_written() -> int:
    """Return what this process has sent to storage so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("write_bytes")))


class Watched:
    """A tier over a real LMDB file, and what its file and the drive's counter say."""

    def __init__(self, path: Path, *, blocking: bool = False) -> None:
        self.now = Clock()
        store = LmdbStore(path, 8 << 20, words=WORDS, clock_s=self.now.whole)
        options = ColdOptions(threaded=False, blocking=blocking, flush_interval_s=1.0)
        self.tier = ColdTier(store, words=WORDS, clock_s=self.now.whole, clock=self.now, options=options)
        self.data = path / "data.mdb"
        self.keys = spread(0, RECORDS)
        self.tier.insert_many(self.keys, rows_of(self.keys))
        self.tier.flush()

    def state(self) -> tuple[bytes, int, int]:
        return self.data.read_bytes(), self.data.stat().st_mtime_ns, bytes_written()

    def step(self) -> None:
        """Let a flush interval pass: were there anything to write, it would be written now."""
        self.now.now += 2.0
        self.tier.submit()
        self.tier.pump()

    def hits(self) -> U64Array:
        self.tier.scan_ask(2 * RECORDS)
        self.tier.pump()
        taken = self.tier.scan_take()
        assert taken is not None
        return np.asarray(taken[1][:, HITS], np.uint64)


@pytest.fixture
def asynchronous(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path / "db")
    yield made
    made.tier.close()


@pytest.fixture
def blocking(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path / "db", blocking=True)
    yield made
    made.tier.close()


def test_asynchronous_hits_write_nothing_and_are_counted(asynchronous: Watched) -> None:
    tier, keys, before = asynchronous.tier, asynchronous.keys, asynchronous.state()
    one, found = np.ones(RECORDS, np.uint32), Found.allocate(RECORDS, WORDS)
    for _ in range(ROUNDS):
        assert not tier.lookup_buffered(keys, found).any()
        assert tier.ask(keys, np.arange(RECORDS)).all()
        asynchronous.step()
        assert tier.drain().hit.all()
        tier.feedback_many(keys, one, one)
    assert asynchronous.state() == before
    assert (asynchronous.hits() == ROUNDS).all()
    assert asynchronous.state() == before


def test_blocking_hits_write_nothing_and_are_counted(blocking: Watched) -> None:
    tier, before = blocking.tier, blocking.state()
    for i in range(4 * RECORDS):
        assert tier.read_now(blocking.keys[i % RECORDS : i % RECORDS + 1]) is not None
        if i % 500 == 0:
            blocking.step()
    assert blocking.state() == before
    assert (blocking.hits() == 4).all()


def test_buffered_hits_write_nothing_of_their_own_and_go_with_their_record(asynchronous: Watched) -> None:
    tier, before = asynchronous.tier, asynchronous.state()
    keys = spread(5000, 200)
    tier.insert_many(keys, rows_of(keys))
    found = Found.allocate(200, WORDS)
    for _ in range(ROUNDS):
        assert tier.lookup_buffered(keys, found).all()
        assert (found.state == State.HIT).all()
    assert asynchronous.state() == before
    tier.flush()
    tier.scan_ask(2 * RECORDS)
    tier.pump()
    taken = tier.scan_take()
    assert taken is not None
    rows = taken[1][np.isin(taken[0], keys)]
    assert rows[:, HITS].tolist() == [ROUNDS] * 200


def test_hits_on_a_batch_being_written_are_counted_beside_it(asynchronous: Watched) -> None:
    tier, keys = asynchronous.tier, spread(5000, 10)
    tier.insert_many(keys, rows_of(keys))
    asynchronous.now.now += 2.0
    tier.submit()  # sealed, not written yet
    found = Found.allocate(10, WORDS)
    for _ in range(3):
        assert tier.lookup_buffered(keys, found).all()
    tier.pump()
    rows = rows_of(keys)
    tier.facts_many(keys, rows)
    assert rows[:, HITS].tolist() == [3] * 10


def test_counts_of_a_record_that_is_written_again_reach_the_file(asynchronous: Watched) -> None:
    tier, keys = asynchronous.tier, asynchronous.keys[:5]
    for _ in range(3):
        tier.touch_many(keys)
    wrong = np.full(5, 20, np.uint32)
    tier.feedback_many(keys, wrong, np.zeros(5, np.uint32))
    rows = rows_of(keys)
    rows[:, HITS] = 0
    tier.insert_many(keys, rows)
    tier.flush()
    found = Found.allocate(5, WORDS)
    tier._store.lookup_many(keys, found)
    assert found.rows[:, HITS].tolist() == [3] * 5
    again = rows_of(keys)
    tier.facts_many(keys, again)
    assert again[:, HITS].tolist() == [0] * 5, "they are in the file now"
