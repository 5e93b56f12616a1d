"""Machine code of the DRAM table: probing, insert, remove, evict over cache-line buckets. Owns no memory.

A bucket is one 64-byte line, eight uint64 words: seven keys (0 = free) and a count of the keys that passed over this
bucket, because it was full, to a later one. A lookup that meets a count of 0 stops: the key is nowhere. Removal takes
the count back along the same path, so there are no tombstones and nothing decays (the idea of folly's F14). The row
of key j of bucket b is row 7 b + j: a hit costs two lines, a miss one.

Every kernel takes a batch and first asks for all lines that it will need (`prefetch`), so that the misses overlap:
128 lookups one after the other cost 90 ns each at 16 M records, overlapped 30 ns.

Index arithmetic is uint64 throughout: numba turns uint64 mixed with int64 into float64.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest.hashing import mix64
from flashnest.jit import inline_kernel, kernel
from flashnest.record import (
    ACCEPTED,
    CHAIN,
    DRAFTED,
    HITS,
    INSERTED,
    LAST_ACCESS,
    META,
    REFS,
    BoolArray,
    I64Array,
    Kind,
    U8Array,
    U32Array,
    U64Array,
)
from flashnest.storage.lines import copy_line, first_bit, match_line, prefetch_keys, prefetch_row

BUCKET_WORDS: Final = 8
BUCKET_KEYS: Final = 7
BUCKET_BYTES: Final = 64

_U64 = np.uint64
_ZERO, _ONE, _KEYS, _WORDS, _S32 = _U64(0), _U64(1), _U64(BUCKET_KEYS), _U64(BUCKET_WORDS), _U64(32)
_KEY_MASK = _U64(0x7F)
_ABSENT = _U64(0xFFFF_FFFF_FFFF_FFFF)
_REFERENCED = np.uint32(1 << 31)
"""Bit 31 of META inside the table: found since the clock hand last passed. Rows come out without it."""
_PLAIN = np.uint32((1 << 31) - 1)
_KIND = np.uint32(0xFF)
_MOST = np.uint32(0xFFFF_FFFF)
_BLOCK: Final = 128
"""Keys whose lines are asked for together: 128 bucket, row and answer lines are 24 KiB, inside a 32 KiB L1."""


@inline_kernel
def _home(key: np.uint64, buckets: np.uint64) -> np.uint64:
    """Return the first bucket of a key: mixed again, then scaled to the bucket count, which need be no power of two."""
    return ((mix64(key) >> _S32) * buckets) >> _S32


@inline_kernel
def _find(lines: U64Array, buckets: np.uint64, key: np.uint64) -> np.uint64:
    """Return the row number of a key, or _ABSENT. Ends because a full table still has free slots."""
    bucket = _home(key, buckets)
    while True:
        base = bucket * _WORDS
        equal = match_line(lines, base, key) & _KEY_MASK
        if equal != _ZERO:
            return bucket * _KEYS + first_bit(equal)
        if lines[base + _KEYS] == _ZERO:
            return _ABSENT
        bucket += _ONE
        if bucket == buckets:
            bucket = _ZERO


@inline_kernel
def _copy_row(to: U32Array, to_row: np.uint64, source: U32Array, row: np.uint64) -> None:
    words = _U64(source.shape[1])
    if words == _U64(16):
        copy_line(to, to_row * words, source, row * words)
        return
    for word in range(source.shape[1]):
        to[to_row, word] = source[row, word]


@inline_kernel
def _add(a: np.uint32, b: np.uint32) -> np.uint32:
    """Return a + b, at most 2^32 - 1."""
    total = np.uint32(a + b)
    return _MOST if total < a else total


@inline_kernel
def _take(rows: U32Array, row: np.uint64, out: U32Array, to: np.uint64, now: np.uint32) -> None:
    """Copy a found row out and touch its hits, last access and reference bit.

    The line is copied before the words are stored: a 64-byte load right after 4-byte stores waits for them.
    """
    hits = _add(rows[row, HITS], np.uint32(1))
    meta = rows[row, META]
    _copy_row(out, to, rows, row)
    rows[row, META] = meta | _REFERENCED
    rows[row, HITS] = hits
    rows[row, LAST_ACCESS] = now
    out[to, META] = meta & _PLAIN
    out[to, HITS] = hits
    out[to, LAST_ACCESS] = now


@kernel
def table_lookup(
    lines: U64Array, rows: U32Array, keys: U64Array, state: U8Array, tier: U8Array, out: U32Array, now: int, code: int
) -> int:
    """Answer a batch as `Store.lookup_many` says; returns the hits, -1 where the arrays do not fit together.

    While a block is under way its answer rows' words 0 and 1 hold the row number found.
    """
    if keys.shape[0] > state.shape[0] or out.shape[1] != rows.shape[1] or lines.shape[0] == 0:
        return -1
    buckets, words = _U64(lines.shape[0]) // _WORDS, _U64(rows.shape[1])
    n, now32, hits = keys.shape[0], np.uint32(now), 0
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        for i in range(start, stop):
            prefetch_keys(lines, _home(keys[i], buckets) * _WORDS)
        for i in range(start, stop):
            state[i] = 0
            row = _find(lines, buckets, keys[i])
            if row != _ABSENT and keys[i] != _ZERO:
                prefetch_row(rows, row * words)
                state[i] = 1
                tier[i] = code
                out[i, 0] = np.uint32(row)
                out[i, 1] = np.uint32(row >> _S32)
        for i in range(start, stop):
            if state[i] == 1:
                hits += 1
                _take(rows, _U64(out[i, 0]) | (_U64(out[i, 1]) << _S32), out, _U64(i), now32)
    return hits


@kernel
def table_longest(
    lines: U64Array,
    rows: U32Array,
    keys: U64Array,
    state: U8Array,
    tier: U8Array,
    out: U32Array,
    index: I64Array,
    now: int,
    code: int,
) -> int:
    """Per row of `keys` (n, k), shortest length first, 0 = none: take the last key that is stored; returns hits.

    index int64 (n,): which key it was, -1 where none is stored. Only the record taken is touched.
    Returns -1 where the arrays do not fit together.
    """
    if keys.shape[0] > min(state.shape[0], index.shape[0]) or out.shape[1] != rows.shape[1] or lines.shape[0] == 0:
        return -1
    buckets, words = _U64(lines.shape[0]) // _WORDS, _U64(rows.shape[1])
    now32, hits = np.uint32(now), 0
    lengths = keys.shape[1]
    for r in range(keys.shape[0]):
        for k in range(lengths):
            prefetch_keys(lines, _home(keys[r, k], buckets) * _WORDS)
    for r in range(keys.shape[0]):
        state[r] = 0
        index[r] = -1
        for back in range(lengths):
            k = lengths - 1 - back
            if keys[r, k] == _ZERO:
                continue
            row = _find(lines, buckets, keys[r, k])
            if row != _ABSENT:
                prefetch_row(rows, row * words)
                state[r] = 1
                tier[r] = code
                index[r] = k
                out[r, 0] = np.uint32(row)
                out[r, 1] = np.uint32(row >> _S32)
                break
    for r in range(keys.shape[0]):
        if state[r] == 1:
            hits += 1
            _take(rows, _U64(out[r, 0]) | (_U64(out[r, 1]) << _S32), out, _U64(r), now32)
    return hits


@kernel
def table_contains(lines: U64Array, keys: U64Array, there: BoolArray) -> int:
    """Write which keys are stored; returns how many. Touches nothing."""
    buckets, count = _U64(lines.shape[0]) // _WORDS, 0
    for start in range(0, keys.shape[0], _BLOCK):
        stop = min(start + _BLOCK, keys.shape[0])
        for i in range(start, stop):
            prefetch_keys(lines, _home(keys[i], buckets) * _WORDS)
        for i in range(start, stop):
            there[i] = keys[i] != _ZERO and _find(lines, buckets, keys[i]) != _ABSENT
            count += there[i]
    return count


@inline_kernel
def _overwrite(rows: U32Array, row: np.uint64, new: U32Array, i: np.uint64) -> None:
    """Replace a stored row, keeping its facts unless its kind or first continuation token changes."""
    same = (rows[row, META] & _KIND) == (new[i, META] & _KIND) and rows[row, CHAIN] == new[i, CHAIN]
    hits, inserted, referenced = rows[row, HITS], rows[row, INSERTED], rows[row, META] & _REFERENCED
    drafted, accepted, refs = rows[row, DRAFTED], rows[row, ACCEPTED], rows[row, REFS]
    _copy_row(rows, row, new, i)
    rows[row, META] &= _PLAIN
    if same:
        rows[row, META] |= referenced
        rows[row, HITS], rows[row, INSERTED] = hits, inserted
        rows[row, DRAFTED], rows[row, ACCEPTED] = drafted, accepted
        if (new[i, META] & _KIND) == np.uint32(Kind.NGRAM):
            rows[row, REFS] = _add(refs, max(new[i, REFS], np.uint32(1)))


@inline_kernel
def _claim(lines: U64Array, buckets: np.uint64, key: np.uint64) -> np.uint64:
    """Put an absent key into the first free slot of its path, counting it in every bucket that it passes."""
    bucket = _home(key, buckets)
    while True:
        base = bucket * _WORDS
        free = match_line(lines, base, _ZERO) & _KEY_MASK
        if free != _ZERO:
            slot = first_bit(free)
            lines[base + slot] = key
            return bucket * _KEYS + slot
        lines[base + _KEYS] += _ONE
        bucket += _ONE
        if bucket == buckets:
            bucket = _ZERO


@kernel
def table_insert(
    lines: U64Array, rows: U32Array, keys: U64Array, new: U32Array, stored: BoolArray, now: int, room: int
) -> tuple[int, int]:
    """Insert or overwrite as `Store.insert_many` says, at most `room` new records; returns (inserted, overwritten).

    A row that comes with INSERTED 0 is given the time `now` as INSERTED and LAST_ACCESS. Returns (-1, 0) where the
    arrays do not fit together.
    """
    if new.shape[0] < keys.shape[0] or new.shape[1] != rows.shape[1] or lines.shape[0] == 0:
        return -1, 0
    buckets = _U64(lines.shape[0]) // _WORDS
    now32, inserted, updated = np.uint32(now), 0, 0
    for start in range(0, keys.shape[0], _BLOCK):
        stop = min(start + _BLOCK, keys.shape[0])
        for i in range(start, stop):
            prefetch_keys(lines, _home(keys[i], buckets) * _WORDS)
        for i in range(start, stop):
            row = _find(lines, buckets, keys[i])
            stored[i] = keys[i] != _ZERO and (row != _ABSENT or inserted < room)
            if not stored[i]:
                continue
            if row != _ABSENT:
                updated += 1
                _overwrite(rows, row, new, _U64(i))
            else:
                inserted += 1
                row = _claim(lines, buckets, keys[i])
                _copy_row(rows, row, new, _U64(i))
                rows[row, META] &= _PLAIN
            if rows[row, INSERTED] == np.uint32(0):
                rows[row, INSERTED] = now32
                rows[row, LAST_ACCESS] = now32
    return inserted, updated


@inline_kernel
def _release(lines: U64Array, buckets: np.uint64, row: np.uint64) -> None:
    """Free a row's slot and take its key out of the count of every bucket that it had passed."""
    own = row // _KEYS
    base = own * _WORDS + row % _KEYS
    bucket = _home(lines[base], buckets)
    while bucket != own:
        lines[bucket * _WORDS + _KEYS] -= _ONE
        bucket += _ONE
        if bucket == buckets:
            bucket = _ZERO
    lines[base] = _ZERO


@kernel
def table_remove(lines: U64Array, keys: U64Array, removed: BoolArray) -> int:
    """Remove records; writes whether each was there, returns how many."""
    buckets, count = _U64(lines.shape[0]) // _WORDS, 0
    for i in range(keys.shape[0]):
        row = _ABSENT
        if keys[i] != _ZERO:
            row = _find(lines, buckets, keys[i])
        removed[i] = row != _ABSENT
        if removed[i]:
            _release(lines, buckets, row)
            count += 1
    return count


@kernel
def table_feedback(lines: U64Array, rows: U32Array, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
    """Add draft counts to the records that are there."""
    buckets = _U64(lines.shape[0]) // _WORDS
    for i in range(keys.shape[0]):
        row = _find(lines, buckets, keys[i])
        if row != _ABSENT and keys[i] != _ZERO:
            rows[row, DRAFTED] = _add(rows[row, DRAFTED], drafted[i])
            rows[row, ACCEPTED] = _add(rows[row, ACCEPTED], accepted[i])


@kernel
def table_scan(lines: U64Array, rows: U32Array, bucket: int, keys: U64Array, out: U32Array) -> tuple[int, int]:
    """Copy records from `bucket` on until `keys` is nearly full; returns (records, the bucket to go on from)."""
    buckets, count = lines.shape[0] // BUCKET_WORDS, 0
    while bucket < buckets and count + BUCKET_KEYS <= keys.shape[0]:
        for j in range(BUCKET_KEYS):
            key = lines[bucket * BUCKET_WORDS + j]
            if key != _ZERO:
                keys[count] = key
                _copy_row(out, _U64(count), rows, _U64(bucket * BUCKET_KEYS + j))
                out[count, META] &= _PLAIN
                count += 1
        bucket += 1
    return count, bucket


@kernel
def table_evict(lines: U64Array, rows: U32Array, hand: int, keys: U64Array, out: U32Array) -> tuple[int, int]:
    """Move the clock hand (a row number) on until `keys` is full; returns (records evicted, the hand).

    A record found since the hand last passed is spared once. Two rounds take every record there is.
    """
    buckets, count = _U64(lines.shape[0]) // _WORDS, 0
    slots = lines.shape[0] // BUCKET_WORDS * BUCKET_KEYS
    for _ in range(2 * slots):
        if count == keys.shape[0]:
            break
        row = _U64(hand)
        hand = hand + 1 if hand + 1 < slots else 0
        key = lines[(row // _KEYS) * _WORDS + row % _KEYS]
        if key == _ZERO:
            continue
        if rows[row, META] & _REFERENCED:
            rows[row, META] &= _PLAIN
            continue
        keys[count] = key
        _copy_row(out, _U64(count), rows, row)
        _release(lines, buckets, row)
        count += 1
    return count, hand
