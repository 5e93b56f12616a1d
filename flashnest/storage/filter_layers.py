"""A Bloom filter that grows by layers: the part of the membership filter that takes keys one batch at a time.

Keys cannot be taken out. Knows nothing of what the keys are for.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest.record import BoolArray, U64Array
from flashnest.storage.filter_kernels import bloom_add, bloom_contains

BITS_PER_KEY: Final = 14
"""At its design load a layer answers 0.3 % of absent keys wrongly."""

FIRST_KEYS: Final = 1 << 16
GROWTH: Final = 4
LARGEST_GROWN_KEYS: Final = 1 << 20
"""Each layer holds four times the one before, until that is a million: a layer that is made because a rebuild is late
takes 1.8 MB, or what the first layer was given, and no more."""


class BloomLayers:
    """Keys added so far. One thread owns it."""

    def __init__(self, expected_keys: int = 0) -> None:
        """Make a filter whose first layer holds `expected_keys` (at least 65,536) at its design load."""
        self.layers: list[U64Array] = []
        self._room: list[int] = []
        self.keys = 0
        self._first_keys = max(FIRST_KEYS, expected_keys)
        self._grow(self._first_keys)

    def _grow(self, keys: int) -> None:
        lines = -(-keys * BITS_PER_KEY // 512)
        memory = np.zeros(lines * 8 + 8, np.uint64)
        skip = -memory.ctypes.data % 64 // 8
        self.layers.append(memory[skip : skip + lines * 8])
        self._room.append(keys)
        self._newest_keys = keys

    def compile(self) -> None:
        """Load or compile the kernels, so that no step waits for it."""
        keys = np.zeros(0, np.uint64)
        bloom_add(self.layers[-1], keys)
        bloom_contains(self.layers[-1], keys, np.zeros(0, np.bool_))

    @property
    def bytes_used(self) -> int:
        """Bytes allocated."""
        return sum(layer.nbytes + 64 for layer in self.layers)

    def add_many(self, keys: U64Array) -> None:
        """Add keys, uint64 (n,). A key that is there already takes no room."""
        start = 0
        while start < len(keys):
            if self._room[-1] <= 0:
                self._grow(min(self._newest_keys * GROWTH, max(LARGEST_GROWN_KEYS, self._first_keys)))
            part = keys[start : start + self._room[-1]]
            fresh = bloom_add(self.layers[-1], part)
            self._room[-1] -= fresh
            self.keys += fresh
            start += len(part)

    def contains_into(self, keys: U64Array, maybe: BoolArray, *, first: int = 0) -> None:
        """Set `maybe`, (n,), where a key may be in a layer from `first` on."""
        for layer in self.layers[first:]:
            bloom_contains(layer, keys, maybe)
