"""How long lookups take a key: a sum and a logarithmic histogram of fixed size. Reads no clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

STEPS_PER_OCTAVE: Final = 8
"""Bin edges lie 9 % apart, so a percentile is right within 9 %."""
_OCTAVES: Final = 40


@dataclass(frozen=True, slots=True)
class LookupNs:
    """Nanoseconds a key over all lookups so far, each call weighted by its keys; zeros where there were none."""

    keys: int
    total_ns: int
    mean_ns: float
    p50_ns: float
    p99_ns: float


class LookupTimes:
    """Collects calls; one thread owns it."""

    def __init__(self) -> None:
        self._bins = np.zeros(STEPS_PER_OCTAVE * _OCTAVES, np.int64)
        self._keys = self._total_ns = 0

    def add(self, keys: int, elapsed_ns: int) -> None:
        """Note a call that answered `keys` keys in `elapsed_ns`."""
        if keys:
            self._keys += keys
            self._total_ns += elapsed_ns
            place = int(STEPS_PER_OCTAVE * math.log2(max(1.0, elapsed_ns / keys)))
            self._bins[min(place, len(self._bins) - 1)] += keys

    @property
    def totals(self) -> tuple[int, int]:
        """Keys so far and their nanoseconds."""
        return self._keys, self._total_ns

    def _percentile(self, share: float) -> float:
        place = int(np.searchsorted(np.cumsum(self._bins), share * self._keys))
        return float(2 ** ((place + 0.5) / STEPS_PER_OCTAVE))

    def summary(self) -> LookupNs:
        """Return mean, median and 99th percentile a key."""
        if not self._keys:
            return LookupNs(0, 0, 0.0, 0.0, 0.0)
        mean = self._total_ns / self._keys
        return LookupNs(self._keys, self._total_ns, mean, self._percentile(0.5), self._percentile(0.99))
