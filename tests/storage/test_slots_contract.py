"""The slots store keeps the contract of every store: through io_uring, through threads, merging after every write."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from contract import StoreContract, clock  # noqa: F401
from records import WORDS, Clock
from slots_setup import MIB

from flashnest.record import Tier
from flashnest.storage.slots import SlotsStore


class _SlotsContract(StoreContract):
    tier = Tier.NVME
    counts_hits = False
    options: ClassVar[dict[str, object]] = {}

    @pytest.fixture
    def store(self, tmp_path: Path, clock: Clock) -> SlotsStore:  # noqa: F811
        store = SlotsStore(tmp_path / "db", 4 * MIB, words=WORDS, clock_s=clock.whole, **self.options)
        yield store
        store.close()


class TestContractWithIoUring(_SlotsContract):
    options: ClassVar = {"io": "io_uring"}


class TestContractWithThreads(_SlotsContract):
    options: ClassVar = {"io": "threads"}


class TestContractWithAMergeAtEveryWrite(_SlotsContract):
    options: ClassVar = {"log_bytes": 200 * 84}

    @pytest.fixture
    def store(self, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> SlotsStore:  # noqa: F811
        written = SlotsStore.write_many

        def write_and_merge(store: SlotsStore, *batch: np.ndarray) -> np.ndarray:
            stored = written(store, *batch)
            store.merge()
            return stored

        monkeypatch.setattr(SlotsStore, "write_many", write_and_merge)
        store = SlotsStore(tmp_path / "db", 4 * MIB, words=WORDS, clock_s=clock.whole, **self.options)
        yield store
        store.close()
