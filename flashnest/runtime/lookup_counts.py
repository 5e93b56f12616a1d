"""Counts what the table was asked and which tier answered, by question, for a step's event. Asks nothing itself."""

from __future__ import annotations

import numpy as np

from flashnest.record import Tier, U8Array
from flashnest.runtime.events import LookupCounts
from flashnest.runtime.prefix_cache import Probe

NO_TIER = len(Tier)
"""The code of a question that no tier answered."""


class LookupCounter:
    """Sums up questions until `take`. The engine's thread owns it."""

    def __init__(self) -> None:
        self._questions = 0
        self._hits = np.zeros(NO_TIER + 1, np.int64)
        self._keys = self._ns = 0

    def add_chunks(self, probe: Probe) -> None:
        """Count a prompt's chunks, once all of them are answered."""
        self._questions += len(probe.keys)
        self._hits[:NO_TIER] += probe.tier_hits

    def add_ngrams(self, tiers: U8Array) -> None:
        """Count one question each of the sequences that asked for a draft: which tier answered it, (rows,)."""
        self._questions += len(tiers)
        self._hits += np.bincount(tiers, minlength=NO_TIER + 1)

    def take(self, totals: tuple[int, int]) -> LookupCounts:
        """Return the counts since the last call, and begin anew; totals: the router's keys and nanoseconds so far."""
        keys, ns = totals
        vram, dram, nvme, _ = self._hits.tolist()
        counts = LookupCounts(self._questions, vram + dram + nvme, keys - self._keys, ns - self._ns, (vram, dram, nvme))
        self._questions, self._keys, self._ns = 0, keys, ns
        self._hits[:] = 0
        return counts
