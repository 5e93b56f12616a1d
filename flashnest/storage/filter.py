"""Membership filter of a cold tier: says "surely absent" in DRAM, so that most lookups never reach the disk.

Most n-gram lookups are negative (81 to 99.96 % on real text), and each that reaches NVMe costs 50 us. A blocked Bloom
filter: one 64-byte line a key, one bit in each of its eight words. Keys cannot be taken out; a removed key answers
"maybe" until the filter is rebuilt. Never asks the store.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest.hashing import mix64
from flashnest.jit import inline_kernel, kernel
from flashnest.record import BoolArray, U64Array
from flashnest.storage.lines import prefetch_keys

BITS_PER_KEY: Final = 14
"""At its design load a layer answers 0.3 % of absent keys wrongly, so that three full layers stay under 1 %."""

FIRST_KEYS: Final = 1 << 16
GROWTH: Final = 4
"""Each layer holds four times the one before: four layers reach 5.5 million keys from 65,536."""

_U64 = np.uint64
_ONE, _WORDS, _S32, _BITS, _S6 = _U64(1), _U64(8), _U64(32), _U64(63), _U64(6)
_SALT = _U64(0x6A09E667F3BCC909)


@inline_kernel
def _line(key: np.uint64, lines: np.uint64) -> np.uint64:
    return ((mix64(key ^ _SALT) >> _S32) * lines >> _S32) * _WORDS


@kernel
def _add(bits: U64Array, keys: U64Array) -> int:
    """Set the bits of each key; returns how many keys were not there before."""
    lines = _U64(bits.shape[0]) // _WORDS
    fresh: int = 0
    for i in range(keys.shape[0]):
        base = _line(keys[i], lines)
        places = mix64(keys[i])
        added = 0
        for word in range(8):
            bit = _ONE << (places & _BITS)
            places >>= _S6
            at = base + _U64(word)
            if bits[at] & bit == 0:
                bits[at] |= bit
                added = 1
        fresh += added
    return fresh


@kernel
def _contains(bits: U64Array, keys: U64Array, maybe: BoolArray) -> None:
    """Set `maybe` where all bits of a key are set, leaving it alone elsewhere."""
    lines = _U64(bits.shape[0]) // _WORDS
    for i in range(keys.shape[0]):
        prefetch_keys(bits, _line(keys[i], lines))
    for i in range(keys.shape[0]):
        base = _line(keys[i], lines)
        places = mix64(keys[i])
        missing = _U64(0)
        for word in range(8):
            missing |= ~bits[base + _U64(word)] & (_ONE << (places & _BITS))
            places >>= _S6
        maybe[i] |= missing == 0


class MembershipFilter:
    """Grows by layers, so it needs no size in advance. One thread owns it."""

    def __init__(self, expected_keys: int = 0) -> None:
        """Make a filter whose first layer holds `expected_keys` (at least 65,536) at its design load."""
        self._layers: list[U64Array] = []
        self._room: list[int] = []
        self.queries = self.negatives = self.false_positives = 0
        self._grow(max(FIRST_KEYS, expected_keys))
        _add(self._layers[0], np.zeros(0, np.uint64))  # compiled now, not in a step

    def _grow(self, keys: int) -> None:
        lines = -(-keys * BITS_PER_KEY // 512)
        memory = np.zeros(lines * 8 + 8, np.uint64)
        skip = -memory.ctypes.data % 64 // 8
        self._layers.append(memory[skip : skip + lines * 8])
        self._room.append(keys)
        self._newest_keys = keys

    @property
    def bytes_used(self) -> int:
        """Bytes allocated."""
        return sum(layer.nbytes + 64 for layer in self._layers)

    def add_many(self, keys: U64Array) -> None:
        """Add keys, uint64 (n,)."""
        start = 0
        while start < len(keys):
            if self._room[-1] <= 0:
                self._grow(self._newest_keys * GROWTH)
            part = keys[start : start + self._room[-1]]
            self._room[-1] -= _add(self._layers[-1], part)
            start += len(part)

    def contains_many(self, keys: U64Array) -> BoolArray:
        """Return which keys may be there, shape (n,); False is certain. Counts queries and negatives."""
        maybe = np.zeros(len(keys), np.bool_)
        for layer in self._layers:
            _contains(layer, keys, maybe)
        self.queries += len(keys)
        self.negatives += len(keys) - int(np.count_nonzero(maybe))
        return maybe

    def may_hold(self, keys: U64Array) -> BoolArray:
        """Like `contains_many` for the write path: counts nothing."""
        maybe = np.zeros(len(keys), np.bool_)
        for layer in self._layers:
            _contains(layer, keys, maybe)
        return maybe

    def count_false_positives(self, count: int) -> None:
        """Note that `count` keys let through were not in the store."""
        self.false_positives += count
