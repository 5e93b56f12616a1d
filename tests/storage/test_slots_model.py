"""The slots store beside a plain dict under random interleavings: no record lost, none doubled, none wrong."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from records import WORDS, rows_of, spread

from flashnest.record import CHAIN, HITS, INSERTED, REFS
from flashnest.storage.slots import SlotsStore
from flashnest.storage.store import Found, State

KEYS = spread(0, 60)
"""Few enough that keys are overwritten and removed again and again; 2 of 3 share a bucket."""
KEYS[:40] = np.arange(1, 41)
indexes = st.lists(st.integers(0, 59), max_size=40)


class SlotsBesideADict(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.model: dict[int, tuple[int, int, int]] = {}
        self.time = 10
        self.store = self.open()

    def open(self) -> SlotsStore:
        path = Path(self.folder.name) / "db"
        return SlotsStore(path, 1 << 20, words=WORDS, clock_s=lambda: self.time, log_bytes=48 * 84, io="threads")

    @rule(stored=indexes, removed=indexes, first=st.integers(1, 2))
    def write(self, stored: list[int], removed: list[int], first: int) -> None:
        """Write and remove at once; `first` is the continuation's first token, so some writes start afresh."""
        self.time += 1
        keys = KEYS[np.array(stored, np.int64)]
        rows = rows_of(keys, chain=first)
        rows[:, HITS] = self.time
        assert self.store.write_many(keys, rows, KEYS[np.array(removed, np.int64)]).all()
        for i in removed:
            self.model.pop(int(KEYS[i]), None)
        for key in set(keys.tolist()):
            old = self.model.get(key)
            same = old is not None and old[0] == first
            hits, refs = (old[1], old[2]) if same else (0, 0)
            self.model[key] = (first, hits + self.time, refs + 1)

    @rule()
    def merge(self) -> None:
        self.store.merge()

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        self.store.close()
        if not clean:
            (Path(self.folder.name) / "db" / "clean").unlink()
        self.store = self.open()

    @invariant()
    def same_as_the_model(self) -> None:
        found = Found.allocate(len(KEYS), WORDS)
        self.store.lookup_many(KEYS, found)
        for i, key in enumerate(KEYS.tolist()):
            assert (found.state[i] == State.HIT) == (key in self.model), key
            if key in self.model:
                first, hits, refs = self.model[key]
                assert found.rows[i, [CHAIN, HITS, REFS]].tolist() == [first, hits, refs]
                assert found.rows[i, INSERTED] > 0
        assert len(self.store) == len(self.model)
        assert np.concatenate([*self.store.scan_keys(), KEYS[:0]]).tolist() == sorted(self.model)
        assert self.store.corrupt == self.store.stats().evicted == 0

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()


SlotsBesideADict.TestCase.settings = settings(
    max_examples=15, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
TestSlotsBesideADict = SlotsBesideADict.TestCase
