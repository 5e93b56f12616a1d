"""Machine code of the DRAM table, the half that changes it: insert, remove, evict, feedback. Owns no memory.

The layout and the probing are those of `kernels.py`.
"""

from __future__ import annotations

import numpy as np

from flashnest import record
from flashnest.jit import inline_kernel, kernel
from flashnest.record import BoolArray, Kind, U32Array, U64Array
from flashnest.storage.kernels import (
    ABSENT,
    BLOCK,
    BUCKET_KEYS,
    HITS,
    KEY_MASK,
    KEYS,
    LAST_ACCESS,
    LINE,
    META,
    ONE,
    PLAIN,
    REFERENCED,
    ZERO,
    add_capped,
    ask_bucket,
    copy_row,
    count_mask,
    find_row,
    home,
    unit_of,
)
from flashnest.storage.lines import first_bit, match_line

_U64 = np.uint64
_TWO = _U64(2)
_INSERTED, _DRAFTED, _ACCEPTED = _U64(record.INSERTED), _U64(record.DRAFTED), _U64(record.ACCEPTED)
_REFS, _CHAIN = _U64(record.REFS), _U64(record.CHAIN)
_KIND = np.uint32(0xFF)


@inline_kernel
def _overwrite(memory: U32Array, row: np.uint64, new: U32Array, item: np.uint64, words: np.uint64) -> None:
    """Replace a stored row, keeping its facts unless its kind or first continuation token changes."""
    kind = new[item + META] & _KIND
    same = (memory[row + META] & _KIND) == kind and memory[row + _CHAIN] == new[item + _CHAIN]
    hits, inserted, referenced = memory[row + HITS], memory[row + _INSERTED], memory[row + META] & REFERENCED
    drafted, accepted, refs = memory[row + _DRAFTED], memory[row + _ACCEPTED], memory[row + _REFS]
    copy_row(memory, row, new, item, words)
    memory[row + META] &= PLAIN
    if same:
        memory[row + META] |= referenced
        memory[row + HITS], memory[row + _INSERTED] = hits, inserted
        memory[row + _DRAFTED], memory[row + _ACCEPTED] = drafted, accepted
        if kind == np.uint32(Kind.NGRAM):
            memory[row + _REFS] = add_capped(refs, max(new[item + _REFS], np.uint32(1)))


@inline_kernel
def _claim(lines: U64Array, unit: np.uint64, buckets: np.uint64, words: np.uint64, key: np.uint64) -> np.uint64:
    """Put an absent key into the first free slot of its path, counting it in every bucket that it passes."""
    bucket, mask = home(key, buckets), count_mask(key)
    one = mask & (ZERO - mask)
    while True:
        base = bucket * (unit // _TWO)
        free = match_line(lines, base, ZERO) & KEY_MASK
        if free != ZERO:
            slot = first_bit(free)
            lines[base + slot] = key
            return bucket * unit + LINE + slot * words
        if lines[base + KEYS] & mask != mask:  # a count of 255 stays: correct, if slower, whatever keys are given
            lines[base + KEYS] += one
        bucket += ONE
        if bucket == buckets:
            bucket = ZERO


@kernel
def table_insert(
    memory: U32Array, row_words: int, keys: U64Array, rows: U32Array, stored: BoolArray, now: int, room: int
) -> tuple[int, int]:
    """Insert or overwrite as `Store.insert_many` says, at most `room` new records; returns (inserted, overwritten).

    A row that comes with INSERTED 0 is given the time `now` as INSERTED and LAST_ACCESS. Returns (-1, 0) where the
    arrays do not fit together.
    """
    if rows.shape[0] < keys.shape[0] or rows.shape[1] != row_words or memory.shape[0] == 0:
        return -1, 0
    words = _U64(row_words)
    unit = unit_of(words)
    lines, new, buckets = memory.view(np.uint64), rows.reshape(-1), _U64(memory.shape[0]) // unit
    now32, inserted, updated = np.uint32(now), 0, 0
    for start in range(0, keys.shape[0] + BLOCK, BLOCK):
        for i in range(start, min(start + BLOCK, keys.shape[0])):
            ask_bucket(lines, unit, buckets, keys[i])
        for i in range(max(0, start - BLOCK), min(start, keys.shape[0])):
            row = find_row(lines, unit, buckets, words, keys[i])
            stored[i] = keys[i] != ZERO and (row != ABSENT or inserted < room)
            if not stored[i]:
                continue
            if row != ABSENT:
                updated += 1
                _overwrite(memory, row, new, _U64(i) * words, words)
            else:
                inserted += 1
                row = _claim(lines, unit, buckets, words, keys[i])
                copy_row(memory, row, new, _U64(i) * words, words)
                memory[row + META] &= PLAIN
            if memory[row + _INSERTED] == np.uint32(0):
                memory[row + _INSERTED] = now32
                memory[row + LAST_ACCESS] = now32
    return inserted, updated


@inline_kernel
def _uncount(
    lines: U64Array, unit: np.uint64, buckets: np.uint64, key: np.uint64, first: np.uint64, last: np.uint64
) -> None:
    """Take a key out of the counts of buckets first..last-1, which it had passed."""
    mask = count_mask(key)
    one = mask & (ZERO - mask)
    while first != last:
        if lines[first * (unit // _TWO) + KEYS] & mask != mask:
            lines[first * (unit // _TWO) + KEYS] -= one
        first += ONE
        if first == buckets:
            first = ZERO


@inline_kernel
def _passed(lines: U64Array, unit: np.uint64, buckets: np.uint64, hole: np.uint64, bucket: np.uint64) -> np.uint64:
    """Return the slot in `bucket` of a key that had passed bucket `hole` on its way, or KEYS where there is none."""
    away = bucket - hole if bucket >= hole else bucket + buckets - hole
    for j in range(BUCKET_KEYS):
        key = lines[bucket * (unit // _TWO) + _U64(j)]
        if key != ZERO:
            first = home(key, buckets)
            if (bucket - first if bucket >= first else bucket + buckets - first) >= away:
                return _U64(j)
    return KEYS


@inline_kernel
def _release(memory: U32Array, unit: np.uint64, buckets: np.uint64, words: np.uint64, row: np.uint64) -> None:
    """Free a row's slot, then pull back keys that had passed it, until no bucket with a free slot was passed by any.

    Without the pulling back, keys stay where a once full table put them: after ten times its records had come and gone
    at load 0.8 an absent key cost 19 lines; with it, 2.1, as in a table filled once.
    """
    lines, half = memory.view(np.uint64), unit // _TWO
    bucket, slot = row // unit, (row % unit - LINE) // words
    key = lines[bucket * half + slot]
    _uncount(lines, unit, buckets, key, home(key, buckets), bucket)
    while lines[bucket * half + KEYS] != ZERO:
        other = bucket
        found = KEYS
        while found == KEYS:
            other += ONE
            if other == buckets:
                other = ZERO
            if other == bucket:
                break
            found = _passed(lines, unit, buckets, bucket, other)
        if found == KEYS:
            break  # only where counts are stuck at their most
        key = lines[other * half + found]
        lines[bucket * half + slot] = key
        copy_row(memory, bucket * unit + LINE + slot * words, memory, other * unit + LINE + found * words, words)
        _uncount(lines, unit, buckets, key, bucket, other)
        bucket, slot = other, found
    lines[bucket * half + slot] = ZERO


@kernel
def table_remove(memory: U32Array, row_words: int, keys: U64Array, removed: BoolArray) -> int:
    """Remove records; writes whether each was there, returns how many."""
    words = _U64(row_words)
    unit = unit_of(words)
    lines, buckets, count = memory.view(np.uint64), _U64(memory.shape[0]) // unit, 0
    for i in range(keys.shape[0]):
        row = ABSENT
        if keys[i] != ZERO:
            row = find_row(lines, unit, buckets, words, keys[i])
        removed[i] = row != ABSENT
        if removed[i]:
            _release(memory, unit, buckets, words, row)
            count += 1
    return count


@kernel
def table_feedback(memory: U32Array, row_words: int, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
    """Add draft counts to the records that are there."""
    words = _U64(row_words)
    unit = unit_of(words)
    lines, buckets = memory.view(np.uint64), _U64(memory.shape[0]) // unit
    for i in range(keys.shape[0]):
        row = find_row(lines, unit, buckets, words, keys[i])
        if row != ABSENT and keys[i] != ZERO:
            memory[row + _DRAFTED] = add_capped(memory[row + _DRAFTED], drafted[i])
            memory[row + _ACCEPTED] = add_capped(memory[row + _ACCEPTED], accepted[i])


@kernel
def table_evict(memory: U32Array, row_words: int, hand: int, keys: U64Array, out: U32Array) -> tuple[int, int]:
    """Move the clock hand on until `keys` is full, at most as many as there are; returns (records evicted, the hand).

    The hand visits slot 0 of every bucket, then slot 1 of every bucket, and so on. Row by row it would empty one
    stretch of the table while the rest overfills: probes grew to 1300 buckets. A record found since the hand last
    passed is spared once.
    """
    words = _U64(row_words)
    unit = unit_of(words)
    lines, flat, buckets, count = memory.view(np.uint64), out.reshape(-1), _U64(memory.shape[0]) // unit, 0
    slots = np.int64(buckets * KEYS)
    while count < keys.shape[0]:
        bucket, slot = _U64(hand) % buckets, _U64(hand) // buckets
        row = bucket * unit + LINE + slot * words
        key = lines[bucket * (unit // _TWO) + slot]
        if key != ZERO and not memory[row + META] & REFERENCED:
            keys[count] = key
            copy_row(flat, _U64(count) * words, memory, row, words)
            _release(memory, unit, buckets, words, row)
            count += 1
        else:
            memory[row + META] &= PLAIN
        hand = hand + 1 if hand + 1 < slots else 0
    return count, hand
