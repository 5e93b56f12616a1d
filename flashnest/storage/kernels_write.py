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
def _uncount(lines: U64Array, buckets: np.uint64, first: np.uint64, last: np.uint64) -> None:
    """Take one key out of the counts of buckets first..last-1, which it had passed."""
    while first != last:
        lines[first * _WORDS + _KEYS] -= _ONE
        first += _ONE
        if first == buckets:
            first = _ZERO


@inline_kernel
def _passed(lines: U64Array, buckets: np.uint64, hole: np.uint64, bucket: np.uint64) -> np.uint64:
    """Return the slot in `bucket` of a key that had passed bucket `hole` on its way, or _KEYS where there is none."""
    away = bucket - hole if bucket >= hole else bucket + buckets - hole
    for j in range(BUCKET_KEYS):
        slot = _U64(j)
        key = lines[bucket * _WORDS + slot]
        if key != _ZERO:
            first = home(key, buckets)
            if (bucket - first if bucket >= first else bucket + buckets - first) >= away:
                return slot
    return _KEYS


@inline_kernel
def _release(lines: U64Array, rows: U32Array, buckets: np.uint64, row: np.uint64) -> None:
    """Free a row's slot, then pull back keys that had passed it, until no bucket with a free slot was passed by any.

    Without the pulling back, keys stay where a once full table put them: after ten times its records had come and gone
    at load 0.8 an absent key cost 19 lines; with it, 2.1, as in a table filled once.
    """
    bucket, slot = row // _KEYS, row % _KEYS
    _uncount(lines, buckets, home(lines[bucket * _WORDS + slot], buckets), bucket)
    while lines[bucket * _WORDS + _KEYS] != _ZERO:
        other = bucket
        found = _KEYS
        while found == _KEYS:
            other += _ONE
            if other == buckets:
                other = _ZERO
            found = _passed(lines, buckets, bucket, other)
        lines[bucket * _WORDS + slot] = lines[other * _WORDS + found]
        copy_row(rows, bucket * _KEYS + slot, rows, other * _KEYS + found)
        _uncount(lines, buckets, bucket, other)
        bucket, slot = other, found
    lines[bucket * _WORDS + slot] = _ZERO


@kernel
def table_remove(lines: U64Array, rows: U32Array, keys: U64Array, removed: BoolArray) -> int:
    """Remove records; writes whether each was there, returns how many."""
    buckets, count = _U64(lines.shape[0]) // _WORDS, 0
    for i in range(keys.shape[0]):
        row = ABSENT
        if keys[i] != _ZERO:
            row = find_row(lines, buckets, keys[i])
        removed[i] = row != ABSENT
        if removed[i]:
            _release(lines, rows, buckets, row)
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
def table_evict(lines: U64Array, rows: U32Array, hand: int, keys: U64Array, out: U32Array) -> tuple[int, int]:
    """Move the clock hand on until `keys` is full, at most as many as there are; returns (records evicted, the hand).

    The hand visits slot 0 of every bucket, then slot 1 of every bucket, and so on. Row by row it would empty one
    stretch of the table while the rest overfills: probes grew to 1300 buckets. A record found since the hand last
    passed is spared once.
    """
    buckets, count = _U64(lines.shape[0]) // _WORDS, 0
    slots = lines.shape[0] // BUCKET_WORDS * BUCKET_KEYS
    while count < keys.shape[0]:
        bucket, slot = _U64(hand) % buckets, _U64(hand) // buckets
        row = bucket * _KEYS + slot
        key = lines[bucket * _WORDS + slot]
        if key != _ZERO and not rows[row, META] & REFERENCED:
            keys[count] = key
            copy_row(out, _U64(count), rows, row)
            _release(lines, rows, buckets, row)
            count += 1
        else:
            rows[row, META] &= PLAIN
        hand = hand + 1 if hand + 1 < slots else 0
    return count, hand
