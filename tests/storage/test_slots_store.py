"""The slots store: the contract with both readers, reopening, merging, eviction, ownership, and that hits write nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract import StoreContract, clock  # noqa: F401
from records import WORDS, Clock

from flashnest.record import Tier
from flashnest.storage.slots import SlotsStore

MIB = 1 << 20


class _SlotsContract(StoreContract):
    tier = Tier.NVME
    counts_hits = False
    io = "io_uring"

    @pytest.fixture
    def store(self, tmp_path: Path, clock: Clock) -> SlotsStore:  # noqa: F811
        store = SlotsStore(tmp_path / "db", 4 * MIB, words=WORDS, clock_s=clock.whole, io=self.io)
        yield store
        store.close()


class TestContractWithThreads(_SlotsContract):
    io = "threads"


class TestContractWithIoUring(_SlotsContract):
    io = "io_uring"
