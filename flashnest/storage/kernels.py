"""Machine code of the DRAM table, the half that reads: probing, lookup, longest match, scan. Owns no memory.

The table's memory is one uint32 array of units, each a bucket and the seven rows that belong to it, padded to whole
64-byte lines. A bucket is one line, eight uint64 words: seven keys (0 = free) and eight one-byte counts of the keys
that passed over this bucket, because it was full, to a later one; a key's hash chooses the byte that counts it. A
lookup that meets a count of 0 stops: the key is nowhere (with one count for all keys one absent key in four went on at
load 0.75, with eight one in twelve). Removal takes the counts back along the same path and pulls later keys forward, so
there are no tombstones and nothing decays (the counts are folly F14's, the pulling is linear probing's backward shift).

A hit costs two lines, a miss one. Bucket and row lie in the same page (with the default chain a unit is 512 bytes), so
that a hit costs one walk of the page table, not two.

Every kernel takes a batch and asks early for the lines that it will need (`prefetch`), so that the misses overlap.
A row is named by the index of its first word in memory. Index arithmetic is uint64 throughout: numba turns uint64
mixed with int64 into float64.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest import record
from flashnest.hashing import mix64
from flashnest.jit import inline_kernel, kernel
from flashnest.record import BoolArray, I64Array, U8Array, U32Array, U64Array
from flashnest.storage.lines import LINE_WORDS, copy_line, first_bit, match_line, prefetch_keys, prefetch_row

BUCKET_KEYS: Final = 7

_U64 = np.uint64
ZERO, ONE, KEYS, LINE = _U64(0), _U64(1), _U64(BUCKET_KEYS), _U64(LINE_WORDS)
_TWO, _S32 = _U64(2), _U64(32)
META, HITS, LAST_ACCESS = _U64(record.META), _U64(record.HITS), _U64(record.LAST_ACCESS)
KEY_MASK = _U64(0x7F)
ABSENT = _U64(0xFFFF_FFFF_FFFF_FFFF)
REFERENCED = np.uint32(1 << 31)
"""Bit 31 of META inside the table: found since the clock hand last passed. Rows come out without it."""
PLAIN = np.uint32((1 << 31) - 1)
_MOST = np.uint32(0xFFFF_FFFF)
BLOCK: Final = 32
"""Keys whose lines are asked for together: more than a core's 24 line fill buffers, few enough to stay in its L1."""
_SEQUENCES: Final = 8


def unit_words(words: int) -> int:
    """Return the uint32 words of a unit whose rows have `words` words."""
    return -(-(LINE_WORDS + BUCKET_KEYS * words) // LINE_WORDS) * LINE_WORDS


@inline_kernel
def unit_of(words: np.uint64) -> np.uint64:
    """Return `unit_words` in a kernel."""
    return (LINE + KEYS * words + LINE - ONE) // LINE * LINE


@inline_kernel
def home(key: np.uint64, buckets: np.uint64) -> np.uint64:
    """Return the first bucket of a key: mixed again, then scaled to the bucket count, which need be no power of two."""
    return ((mix64(key) >> _S32) * buckets) >> _S32


@inline_kernel
def count_mask(key: np.uint64) -> np.uint64:
    """Return the bits of the count that is this key's, of the eight in a bucket's last word."""
    return _U64(0xFF) << ((mix64(key) & KEYS) << _U64(3))


@inline_kernel
def ask_bucket(lines: U64Array, unit: np.uint64, buckets: np.uint64, key: np.uint64) -> None:
    """Ask for a key's first bucket line."""
    prefetch_keys(lines, home(key, buckets) * (unit // _TWO))


@inline_kernel
def find_row(lines: U64Array, unit: np.uint64, buckets: np.uint64, words: np.uint64, key: np.uint64) -> np.uint64:
    """Return a key's row, or ABSENT."""
    start = home(key, buckets)
    bucket = start
    while True:
        base = bucket * (unit // _TWO)
        equal = match_line(lines, base, key) & KEY_MASK
        if equal != ZERO:
            return bucket * unit + LINE + first_bit(equal) * words
        if lines[base + KEYS] & count_mask(key) == ZERO:
            return ABSENT
        bucket += ONE
        if bucket == buckets:
            bucket = ZERO
        if bucket == start:  # only where counts are stuck at their most
            return ABSENT


@inline_kernel
def copy_row(to: U32Array, to_item: np.uint64, source: U32Array, item: np.uint64, words: np.uint64) -> None:
    """Copy `words` words from index `item` of `source` to index `to_item` of `to`, both flat."""
    if words == LINE:
        copy_line(to, to_item, source, item)
        return
    for word in range(words):
        to[to_item + _U64(word)] = source[item + _U64(word)]


@inline_kernel
def add_capped(a: np.uint32, b: np.uint32) -> np.uint32:
    """Return a + b, at most 2^32 - 1."""
    total = np.uint32(a + b)
    return _MOST if total < a else total


@inline_kernel
def _take(memory: U32Array, row: np.uint64, out: U32Array, to: np.uint64, words: np.uint64, now: np.uint32) -> None:
    """Copy a found row to index `to` of `out` (flat) and touch its hits, last access and reference bit.

    The line is copied before the words are stored: a 64-byte load right after 4-byte stores waits for them.
    """
    hits = add_capped(memory[row + HITS], np.uint32(1))
    meta = memory[row + META]
    copy_row(out, to, memory, row, words)
    memory[row + META] = meta | REFERENCED
    memory[row + HITS] = hits
    memory[row + LAST_ACCESS] = now
    out[to + META] = meta & PLAIN
    out[to + HITS] = hits
    out[to + LAST_ACCESS] = now


@inline_kernel
def _hold(out: U32Array, to: np.uint64, row: np.uint64) -> None:
    """Keep the name of the row found in the answer itself until the row's line has arrived."""
    out[to] = np.uint32(row)
    out[to + ONE] = np.uint32(row >> _S32)


@inline_kernel
def _held(out: U32Array, to: np.uint64) -> np.uint64:
    return _U64(out[to]) | (_U64(out[to + ONE]) << _S32)


@kernel
def table_lookup(
    memory: U32Array,
    row_words: int,
    keys: U64Array,
    state: U8Array,
    tier: U8Array,
    answers: U32Array,
    now: int,
    code: int,
) -> int:
    """Answer a batch as `Store.lookup_many` says; returns the hits, -1 where the arrays do not fit together.

    A pipeline of three stages, a block of 32 keys in each: ask for bucket lines, find keys and ask for row lines, take
    rows. One block's misses are under way while another's lines are worked on (at 16 M records 4 % less time a hit and
    30 % less a miss than stage after stage over 128 keys).
    """
    if keys.shape[0] > state.shape[0] or answers.shape[1] != row_words or memory.shape[0] == 0:
        return -1
    words = _U64(row_words)
    unit = unit_of(words)
    lines, out, buckets = memory.view(np.uint64), answers.reshape(-1), _U64(memory.shape[0]) // unit
    n, now32, hits = keys.shape[0], np.uint32(now), 0
    for start in range(0, n + 2 * BLOCK, BLOCK):
        for i in range(start, min(start + BLOCK, n)):
            ask_bucket(lines, unit, buckets, keys[i])
        for i in range(max(0, start - BLOCK), min(start, n)):
            state[i] = 0
            row = find_row(lines, unit, buckets, words, keys[i])
            if row != ABSENT and keys[i] != ZERO:
                prefetch_row(memory, row)
                state[i] = 1
                tier[i] = code
                _hold(out, _U64(i) * words, row)
        for i in range(max(0, start - 2 * BLOCK), min(start - BLOCK, n)):
            if state[i] == 1:
                hits += 1
                _take(memory, _held(out, _U64(i) * words), out, _U64(i) * words, words, now32)
    return hits


@inline_kernel
def _find_longest(
    lines: U64Array, unit: np.uint64, buckets: np.uint64, words: np.uint64, keys: U64Array
) -> tuple[int, np.uint64]:
    """Return the index of the last key that is stored, with its row, or -1 and ABSENT."""
    for back in range(keys.shape[0]):
        k = keys.shape[0] - 1 - back
        if keys[k] != ZERO:
            row = find_row(lines, unit, buckets, words, keys[k])
            if row != ABSENT:
                return k, row
    return -1, ABSENT


@kernel
def table_longest(
    memory: U32Array,
    row_words: int,
    keys: U64Array,
    state: U8Array,
    tier: U8Array,
    answers: U32Array,
    index: I64Array,
    now: int,
    code: int,
) -> int:
    """Per row of `keys` (n, k), shortest length first, 0 = none: take the last key that is stored; returns hits.

    index int64 (n,): which key it was, -1 where none is stored. Only the record taken is touched. The pipeline is that
    of `table_lookup`, with 8 sequences a block. Returns -1 where the arrays do not fit together.
    """
    room = min(state.shape[0], index.shape[0])
    if keys.shape[0] > room or answers.shape[1] != row_words or memory.shape[0] == 0:
        return -1
    words = _U64(row_words)
    unit = unit_of(words)
    lines, out, buckets = memory.view(np.uint64), answers.reshape(-1), _U64(memory.shape[0]) // unit
    n, now32, hits = keys.shape[0], np.uint32(now), 0
    for start in range(0, n + 2 * _SEQUENCES, _SEQUENCES):
        for r in range(start, min(start + _SEQUENCES, n)):
            for k in range(keys.shape[1]):
                ask_bucket(lines, unit, buckets, keys[r, k])
        for r in range(max(0, start - _SEQUENCES), min(start, n)):
            k, row = _find_longest(lines, unit, buckets, words, keys[r])
            state[r] = k >= 0
            index[r] = k
            if k >= 0:
                prefetch_row(memory, row)
                tier[r] = code
                _hold(out, _U64(r) * words, row)
        for r in range(max(0, start - 2 * _SEQUENCES), min(start - _SEQUENCES, n)):
            if state[r] == 1:
                hits += 1
                _take(memory, _held(out, _U64(r) * words), out, _U64(r) * words, words, now32)
    return hits


@kernel
def table_contains(memory: U32Array, row_words: int, keys: U64Array, there: BoolArray) -> int:
    """Write which keys are stored; returns how many. Touches nothing."""
    words = _U64(row_words)
    unit = unit_of(words)
    lines, buckets, count = memory.view(np.uint64), _U64(memory.shape[0]) // unit, 0
    for start in range(0, keys.shape[0] + BLOCK, BLOCK):
        for i in range(start, min(start + BLOCK, keys.shape[0])):
            ask_bucket(lines, unit, buckets, keys[i])
        for i in range(max(0, start - BLOCK), min(start, keys.shape[0])):
            there[i] = keys[i] != ZERO and find_row(lines, unit, buckets, words, keys[i]) != ABSENT
            count += there[i]
    return count


@kernel
def table_scan(memory: U32Array, row_words: int, bucket: int, keys: U64Array, out: U32Array) -> tuple[int, int]:
    """Copy records from `bucket` on until `keys` is nearly full; returns (records, the bucket to go on from)."""
    words = _U64(row_words)
    unit = unit_of(words)
    lines, flat = memory.view(np.uint64), out.reshape(-1)
    buckets, count = memory.shape[0] // np.int64(unit), 0
    while bucket < buckets and count + BUCKET_KEYS <= keys.shape[0]:
        base = _U64(bucket) * unit
        for j in range(BUCKET_KEYS):
            key = lines[base // _TWO + _U64(j)]
            if key != ZERO:
                keys[count] = key
                copy_row(flat, _U64(count) * words, memory, base + LINE + _U64(j) * words, words)
                out[count, record.META] &= PLAIN
                count += 1
        bucket += 1
    return count, bucket
