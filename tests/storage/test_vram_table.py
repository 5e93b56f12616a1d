"""The VRAM table on the CPU: the contract."""

from __future__ import annotations

import pytest
from contract import StoreContract, clock  # noqa: F401
from records import WORDS, Clock

from flashnest.record import Tier
from flashnest.storage.vram import VramTable


class TestContract(StoreContract):
    tier = Tier.VRAM

    @pytest.fixture
    def store(self, clock: Clock) -> VramTable:  # noqa: F811
        return VramTable(40_000, words=WORDS, clock_s=clock.whole, device="cpu")
