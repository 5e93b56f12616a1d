"""Machine code of the DRAM table, the half that puts records in: insert, feedback. Owns no memory.

The layout and the probing are those of `kernels_layout.py`. Whatever changes which row a key has, or where it lies,
happens between `begin_change` and `end_change` of that key, so that readers in other threads notice. Use of a record
(hits, draft counts) changes single words of its row and needs no notice.
"""

from __future__ import annotations

import numpy as np

from flashnest import record
from flashnest.jit import inline_kernel, kernel
from flashnest.record import BoolArray, U32Array, U64Array
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
_NAMESPACE = _U64(record.NAMESPACE)


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
    bucket = start = home(key, layout.buckets)
    mask = count_mask(key)
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
        bucket = next_bucket(layout, bucket, start)


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


@kernel
def table_feedback(desk: U64Array, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
    """Add draft counts to the records that are there."""
    layout = layout_of(desk)
    for i in range(keys.shape[0]):
        slot = find(layout, keys[i])
        if slot != ABSENT:
            feed_row(layout.memory, row_of(layout, slot), drafted[i], accepted[i])
