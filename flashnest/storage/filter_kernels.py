"""Machine code of the membership filter: one pass over a batch asks the sealed part and the delta. Owns no memory.

The sealed part is a sharded binary fuse filter (`fuse.py`), the delta a blocked Bloom filter: one 64-byte line a key,
one bit in each of its eight words (Putze, Sanders and Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", 2007,
with a bit in each word as in the split block filters of Impala). A key that passes either may be in the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

import numpy as np

from flashnest.hashing import mix64
from flashnest.jit import inline_kernel, kernel
from flashnest.record import BoolArray, I64Array, U8Array, U64Array
from flashnest.storage.fuse import BASE, SEED, SEGMENT, SPAN, fingerprint, place, shard_of
from flashnest.storage.lines import prefetch_keys

BLOCK: Final = 16
"""Keys whose lines are asked for together, four lines each: what a core keeps under way."""

_U64 = np.uint64
_ZERO, _ONE, _TWO, _WORDS, _S32, _BITS, _S6 = _U64(0), _U64(1), _U64(2), _U64(8), _U64(32), _U64(63), _U64(6)
prefetch_bytes = cast(Callable[[U8Array, np.uint64], None], prefetch_keys)
_SALT, _ODD, _S16 = _U64(0x6A09E667F3BCC909), _U64(0x9E3779B97F4A7C15), _U64(16)


@inline_kernel
def bloom_line(key: np.uint64, lines: np.uint64) -> np.uint64:
    """Return the first word of a key's line."""
    return ((mix64(key ^ _SALT) >> _S32) * lines >> _S32) * _WORDS


@inline_kernel
def _places(key: np.uint64) -> np.uint64:
    """Return eight times six bits, a bit's place in each word of the line."""
    return mix64(key ^ _SALT) * _ODD >> _S16


@inline_kernel
def _all_set(bits: U64Array, base: np.uint64, places: np.uint64) -> bool:
    """Return whether the bits at `places` of the line at `base` are all set."""
    missing = _ZERO
    for word in range(8):
        missing |= ~bits[base + _U64(word)] & (_ONE << (places >> _S6 * _U64(word) & _BITS))
    return bool(missing == _ZERO)


@kernel
def bloom_add(bits: U64Array, keys: U64Array) -> int:
    """Set the bits of each key; returns how many keys were not there before."""
    lines = _U64(bits.shape[0]) // _WORDS
    fresh: int = 0
    for i in range(keys.shape[0]):
        base = bloom_line(keys[i], lines)
        places = _places(keys[i])
        added = 0
        for word in range(8):
            bit = _ONE << (places >> _S6 * _U64(word) & _BITS)
            at = base + _U64(word)
            if bits[at] & bit == 0:
                bits[at] |= bit
                added = 1
        fresh += added
    return fresh


@kernel
def bloom_contains(bits: U64Array, keys: U64Array, maybe: BoolArray) -> None:
    """Set `maybe` where all bits of a key are set, leaving it alone elsewhere."""
    lines = _U64(bits.shape[0]) // _WORDS
    for i in range(keys.shape[0]):
        maybe[i] |= _all_set(bits, bloom_line(keys[i], lines), _places(keys[i]))


@inline_kernel
def _ask(table: U8Array, shards: U64Array, shift: np.uint64, bits: U64Array, key: np.uint64) -> None:
    """Ask for the four lines of a key. Noting where they are for `_may_hold` took longer than finding them again."""
    shard = shard_of(key, shift)
    h, segment, span = mix64(key + shards[shard, SEED]), shards[shard, SEGMENT], shards[shard, SPAN]
    for w in range(3):
        prefetch_bytes(table, shards[shard, BASE] + place(h, _U64(w), segment, span))
    prefetch_keys(bits, bloom_line(key, _U64(bits.shape[0]) // _WORDS))


@inline_kernel
def _may_hold(table: U8Array, shards: U64Array, shift: np.uint64, bits: U64Array, key: np.uint64) -> bool:
    shard = shard_of(key, shift)
    base, segment, span = shards[shard, BASE], shards[shard, SEGMENT], shards[shard, SPAN]
    if span != _ZERO:
        h = mix64(key + shards[shard, SEED])
        value = table[base + place(h, _ZERO, segment, span)] ^ table[base + place(h, _ONE, segment, span)]
        if value ^ table[base + place(h, _TWO, segment, span)] == fingerprint(h):
            return True
    return _all_set(bits, bloom_line(key, _U64(bits.shape[0]) // _WORDS), _places(key))


@kernel
def filter_contains(
    table: U8Array, shards: U64Array, shift: np.uint64, bits: U64Array, keys: U64Array, maybe: BoolArray
) -> int:
    """Write which keys may be there, (n,); returns how many. A key of 0 is not."""
    passed: int = 0
    for start in range(0, keys.shape[0], BLOCK):
        stop = min(start + BLOCK, keys.shape[0])
        for i in range(start, stop):
            _ask(table, shards, shift, bits, keys[i])
        for i in range(start, stop):
            maybe[i] = keys[i] != _ZERO and _may_hold(table, shards, shift, bits, keys[i])
            passed += maybe[i]
    return passed


@kernel
def filter_open(
    table: U8Array,
    shards: U64Array,
    shift: np.uint64,
    bits: U64Array,
    keys: U64Array,
    state: U8Array,
    known: BoolArray,
    at: I64Array,
) -> int:
    """Like `filter_contains` for lookups: clears `state`, sets `known` where a key is surely absent.

    Writes the places of the others to `at`, ascending; returns how many they are.
    """
    passed: int = 0
    for start in range(0, keys.shape[0], BLOCK):
        stop = min(start + BLOCK, keys.shape[0])
        for i in range(start, stop):
            _ask(table, shards, shift, bits, keys[i])
        for i in range(start, stop):
            state[i] = 0
            known[i] = keys[i] == _ZERO or not _may_hold(table, shards, shift, bits, keys[i])
            if not known[i]:
                at[passed] = i
                passed += 1
    return passed
