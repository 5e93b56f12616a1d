"""Machine code of the DRAM table, the half that changes it: insert, remove, evict, feedback. Owns no memory.

The layout and the probing are those of `kernels.py`.
"""

from __future__ import annotations

import numpy as np

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
    Kind,
    U32Array,
    U64Array,
)
from flashnest.storage.kernels import (
    ABSENT,
    BLOCK,
    BUCKET_KEYS,
    BUCKET_WORDS,
    KEY_MASK,
    PLAIN,
    REFERENCED,
    add_capped,
    copy_row,
    find_row,
    home,
)
from flashnest.storage.lines import first_bit, match_line, prefetch_keys

_U64 = np.uint64
_ZERO, _ONE, _KEYS, _WORDS = _U64(0), _U64(1), _U64(BUCKET_KEYS), _U64(BUCKET_WORDS)
_KIND = np.uint32(0xFF)


@inline_kernel
def _overwrite(rows: U32Array, row: np.uint64, new: U32Array, i: np.uint64) -> None:
    """Replace a stored row, keeping its facts unless its kind or first continuation token changes."""
    same = (rows[row, META] & _KIND) == (new[i, META] & _KIND) and rows[row, CHAIN] == new[i, CHAIN]
    hits, inserted, referenced = rows[row, HITS], rows[row, INSERTED], rows[row, META] & REFERENCED
    drafted, accepted, refs = rows[row, DRAFTED], rows[row, ACCEPTED], rows[row, REFS]
    copy_row(rows, row, new, i)
    rows[row, META] &= PLAIN
    if same:
        rows[row, META] |= referenced
        rows[row, HITS], rows[row, INSERTED] = hits, inserted
        rows[row, DRAFTED], rows[row, ACCEPTED] = drafted, accepted
        if (new[i, META] & _KIND) == np.uint32(Kind.NGRAM):
            rows[row, REFS] = add_capped(refs, max(new[i, REFS], np.uint32(1)))


@inline_kernel
def _claim(lines: U64Array, buckets: np.uint64, key: np.uint64) -> np.uint64:
    """Put an absent key into the first free slot of its path, counting it in every bucket that it passes."""
    bucket = home(key, buckets)
    while True:
        base = bucket * _WORDS
        free = match_line(lines, base, _ZERO) & KEY_MASK
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
    for start in range(0, keys.shape[0], BLOCK):
        stop = min(start + BLOCK, keys.shape[0])
        for i in range(start, stop):
            prefetch_keys(lines, home(keys[i], buckets) * _WORDS)
        for i in range(start, stop):
            row = find_row(lines, buckets, keys[i])
            stored[i] = keys[i] != _ZERO and (row != ABSENT or inserted < room)
            if not stored[i]:
                continue
            if row != ABSENT:
                updated += 1
                _overwrite(rows, row, new, _U64(i))
            else:
                inserted += 1
                row = _claim(lines, buckets, keys[i])
                copy_row(rows, row, new, _U64(i))
                rows[row, META] &= PLAIN
            if rows[row, INSERTED] == np.uint32(0):
                rows[row, INSERTED] = now32
                rows[row, LAST_ACCESS] = now32
    return inserted, updated


@inline_kernel
def _release(lines: U64Array, buckets: np.uint64, row: np.uint64) -> None:
    """Free a row's slot and take its key out of the count of every bucket that it had passed."""
    own = row // _KEYS
    base = own * _WORDS + row % _KEYS
    bucket = home(lines[base], buckets)
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
        row = ABSENT
        if keys[i] != _ZERO:
            row = find_row(lines, buckets, keys[i])
        removed[i] = row != ABSENT
        if removed[i]:
            _release(lines, buckets, row)
            count += 1
    return count


@kernel
def table_feedback(lines: U64Array, rows: U32Array, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
    """Add draft counts to the records that are there."""
    buckets = _U64(lines.shape[0]) // _WORDS
    for i in range(keys.shape[0]):
        row = find_row(lines, buckets, keys[i])
        if row != ABSENT and keys[i] != _ZERO:
            rows[row, DRAFTED] = add_capped(rows[row, DRAFTED], drafted[i])
            rows[row, ACCEPTED] = add_capped(rows[row, ACCEPTED], accepted[i])


@kernel
def table_evict(
    lines: U64Array, rows: U32Array, hand: int, stride: int, keys: U64Array, out: U32Array
) -> tuple[int, int]:
    """Move the clock hand on until `keys` is full; returns (records evicted, the hand).

    Step s of a round visits bucket s * stride mod buckets, stride coprime to the buckets. In memory order it would
    empty one stretch of the table while the rest overfills, and probes grew to 1300 buckets. A record found since the
    hand last passed is spared once, so two rounds take every record there is.
    """
    buckets, count = _U64(lines.shape[0]) // _WORDS, 0
    slots = lines.shape[0] // BUCKET_WORDS * BUCKET_KEYS
    for _ in range(2 * slots):
        if count == keys.shape[0]:
            break
        bucket = _U64(hand // BUCKET_KEYS) * _U64(stride) % buckets
        slot = _U64(hand % BUCKET_KEYS)
        row = bucket * _KEYS + slot
        hand = hand + 1 if hand + 1 < slots else 0
        key = lines[bucket * _WORDS + slot]
        if key == _ZERO:
            continue
        if rows[row, META] & REFERENCED:
            rows[row, META] &= PLAIN
            continue
        keys[count] = key
        copy_row(out, _U64(count), rows, row)
        _release(lines, buckets, row)
        count += 1
    return count, hand
