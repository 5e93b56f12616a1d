"""Machine code of the DRAM table, the half that puts records in: insert, learn, feedback. Owns no memory.

The layout and the probing are those of `kernels_layout.py`. Whatever changes which row a key has, or where it lies,
happens between `begin_change` and `end_change` of that key, so that readers in other threads notice. Use of a record
(hits, draft counts) changes single words of its row and needs no notice.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest import record
from flashnest.hashing import hash_four_positions, hash_tail
from flashnest.jit import inline_kernel, kernel
from flashnest.record import CHAIN, MAX_NGRAM_LENGTHS, BoolArray, I32Array, U32Array, U64Array
from flashnest.storage.kernels_layout import (
    ABSENT,
    BLOCK,
    INSERTS,
    KEY_MASK,
    KEYS,
    MAX_RECORDS,
    ONE,
    RECORDS,
    THREE,
    UPDATES,
    ZERO,
    Layout,
    ask_bucket,
    begin_change,
    copy_row,
    count_mask,
    end_change,
    find,
    find_free,
    home,
    intern,
    layout_of,
    line_of,
    next_bucket,
    row_of,
)
from flashnest.storage.lines import first_bit, match_line, prefetch_row
from flashnest.storage.packed import QUEUE_MASK, feed_row, merge_header, pack_row, same_record

_U64 = np.uint64
_META, _NAMESPACE, _REFS = _U64(record.META), _U64(record.NAMESPACE), _U64(record.REFS)
_CHAIN = _U64(CHAIN)
_TOKENS_SHIFT, _LENGTH_SHIFT = np.uint32(8), np.uint32(16)
_POSITIONS: Final = BLOCK // 4
"""Positions whose n-grams `table_learn` stores together."""
_RING: Final = 4 * _POSITIONS
"""Positions whose keys it keeps meanwhile: three blocks, rounded up to a power of two."""


@inline_kernel
def _overwrite(layout: Layout, slot: np.uint64, key: np.uint64, new: U64Array, item: np.uint64) -> None:
    """Replace a stored row, keeping its facts unless its kind or first continuation token changes."""
    row = row_of(layout, slot)
    low, high = layout.memory[row], layout.memory[row + ONE]
    if same_record(layout.memory, row, new, item, layout.bits):
        merge_header(low, high, new, item)
    else:
        new[item] |= low & QUEUE_MASK
    begin_change(layout, key)
    copy_row(layout, row, new, item)
    end_change(layout, key)


@inline_kernel
def _claim(layout: Layout, key: np.uint64) -> np.uint64:
    """Put an absent key into the first free slot of its path, counting it in every bucket that it passes."""
    bucket, mask = home(key, layout.buckets), count_mask(key)
    one = mask & (ZERO - mask)
    while True:
        line = line_of(layout, bucket)
        free = match_line(layout.memory, line, ZERO) & KEY_MASK
        if free != ZERO:
            lane = first_bit(free)
            layout.memory[line + lane] = key
            return (bucket << THREE) | lane
        if layout.memory[line + KEYS] & mask != mask:  # a count of 255 stays: correct, if slower, whatever the keys
            layout.memory[line + KEYS] += one
        bucket = next_bucket(layout, bucket)


@inline_kernel
def _ask_row(layout: Layout, key: np.uint64) -> None:
    """Ask for the row that a key has or will get."""
    slot = find(layout, key)
    if slot == ABSENT:
        slot = find_free(layout, key)
    prefetch_row(layout.memory, row_of(layout, slot))


@inline_kernel
def _put(layout: Layout, key: np.uint64, packed: U64Array, item: np.uint64) -> int:
    """Insert or overwrite one record; returns 1 where it is new, 0 where it was there, -1 where there is no room."""
    slot = find(layout, key)
    if slot != ABSENT:
        _overwrite(layout, slot, key, packed, item)
        return 0
    if key == ZERO or layout.desk[RECORDS] >= layout.desk[MAX_RECORDS]:
        return -1
    begin_change(layout, key)
    copy_row(layout, row_of(layout, _claim(layout, key)), packed, item)
    end_change(layout, key)
    layout.desk[RECORDS] += ONE
    return 1


@inline_kernel
def _count(desk: U64Array, inserted: int, updated: int) -> None:
    desk[INSERTS] += _U64(inserted)
    desk[UPDATES] += _U64(updated)


@kernel
def table_insert(desk: U64Array, keys: U64Array, rows: U32Array, stored: BoolArray, fresh: BoolArray, now: int) -> int:
    """Insert or overwrite as `Store.insert_many` says while there is room; returns how many are new.

    Writes which are stored, and which are new. A row that comes with INSERTED 0 is given the time `now` as INSERTED and
    LAST_ACCESS.
    """
    layout, flat = layout_of(desk), rows.reshape(-1)
    words, packed = _U64(layout.words), np.empty(np.int64(layout.row), np.uint64)
    inserted = updated = 0
    for start in range(0, keys.shape[0] + 2 * BLOCK, BLOCK):
        for i in range(start, min(start + BLOCK, keys.shape[0])):
            ask_bucket(layout, keys[i])
        for i in range(max(0, start - BLOCK), min(start, keys.shape[0])):
            _ask_row(layout, keys[i])
        for i in range(max(0, start - 2 * BLOCK), min(start - BLOCK, keys.shape[0])):
            item = _U64(i) * words
            name = intern(layout, flat[item + _NAMESPACE])
            pack_row(packed, ZERO, flat, item, layout.words, layout.bits, name, now)
            new = _put(layout, keys[i], packed, ZERO)
            stored[i], fresh[i] = new >= 0, new == 1
            inserted += new == 1
            updated += new == 0
    _count(desk, inserted, updated)
    return inserted


@inline_kernel
def _ngram_row(row: U32Array, tokens: I32Array, position: int, length: int, namespace: np.uint32) -> None:
    """Write the row of an n-gram that ends before `position`: what follows, cut at `length`; the match is set later."""
    chain = min(row.shape[0] - CHAIN, length - position)
    row[:] = 0
    row[_META] = np.uint32(chain) << _LENGTH_SHIFT
    row[_NAMESPACE] = namespace
    row[_REFS] = np.uint32(1)
    for j in range(chain):
        row[_CHAIN + _U64(j)] = np.uint32(tokens[position + j])


@inline_kernel
def _hash_block(
    layout: Layout, tokens: I32Array, start: int, stop: int, salt: np.uint64, lengths: I32Array, keys: U64Array
) -> None:
    """Hash the n-grams before positions start..stop-1 into the ring `keys`, 0 where none, and ask for their buckets."""
    p, step = start, lengths.shape[0]
    while p < stop:
        at = p & (_RING - 1)
        if p + 4 <= stop and at + 4 <= _RING and p >= lengths[step - 1]:
            hash_four_positions(tokens, p, lengths, salt, keys[at:])
            p += 4
        else:
            for k in range(hash_tail(tokens, p, lengths, salt, keys[at]), step):
                keys[at, k] = ZERO
            p += 1
    for p in range(start, stop):
        for k in range(step):
            ask_bucket(layout, keys[p & (_RING - 1), k])


@kernel
def table_learn(
    desk: U64Array,
    tokens: I32Array,
    start: int,
    stop: int,
    length: int,
    salt: np.uint64,
    lengths: I32Array,
    namespace: int,
    now: int,
    fresh: U64Array,
) -> tuple[int, int, int]:
    """Store the n-grams that end before each of start..stop-1 of one text; returns (new, overwritten, no room for).

    fresh uint64 receives the keys that are new.

    What `hash_positions`, building rows and `table_insert` do in turn, in one pass: the chain of a position is packed
    once for all lengths, and no row is written to be read again.
    """
    layout, step = layout_of(desk), lengths.shape[0]
    words, size = layout.words, np.int64(layout.row)
    keys, packed = np.zeros((_RING, MAX_NGRAM_LENGTHS), np.uint64), np.empty(size, np.uint64)
    row, scratch = np.empty(words, np.uint32), np.empty(size, np.uint64)
    name, inserted, updated, refused = intern(layout, np.uint32(namespace)), 0, 0, 0
    for at in range(start, stop + 2 * _POSITIONS, _POSITIONS):
        _hash_block(layout, tokens, at, min(at + _POSITIONS, stop), salt, lengths, keys)
        for p in range(max(start, at - _POSITIONS), min(at, stop)):
            for k in range(step):
                _ask_row(layout, keys[p & (_RING - 1), k])
        for p in range(max(start, at - 2 * _POSITIONS), min(at - _POSITIONS, stop)):
            _ngram_row(row, tokens, p, length, np.uint32(namespace))
            pack_row(packed, ZERO, row, ZERO, words, layout.bits, name, now)
            for k in range(step):
                key = keys[p & (_RING - 1), k]
                if key != ZERO:
                    for word in range(size):
                        scratch[word] = packed[word]
                    scratch[0] |= _U64(lengths[k])
                    new = _put(layout, key, scratch, ZERO)
                    if new < 0:
                        refused += 1
                        continue
                    fresh[inserted] = key  # of an overwritten one, the next takes the place
                    inserted += new == 1
                    updated += new == 0
    _count(desk, inserted, updated)
    return inserted, updated, refused


@kernel
def table_feedback(desk: U64Array, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
    """Add draft counts to the records that are there."""
    layout = layout_of(desk)
    for i in range(keys.shape[0]):
        slot = find(layout, keys[i])
        if slot != ABSENT:
            feed_row(layout.memory, row_of(layout, slot), drafted[i], accepted[i])
