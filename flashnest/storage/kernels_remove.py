"""Machine code of the DRAM table that takes records out: remove, clear. Owns no memory.

Like all that changes which row a key has, or where it lies, between `begin_change` and `end_change` of that key.
"""

from __future__ import annotations

import numpy as np

from flashnest.jit import inline_kernel, kernel
from flashnest.record import BoolArray, U64Array
from flashnest.storage.kernels_layout import (
    ABSENT,
    BLOCK,
    BUCKET_KEYS,
    KEYS,
    ONE,
    RECORDS,
    THREE,
    ZERO,
    Layout,
    ask_bucket,
    begin_change,
    copy_row,
    count_mask,
    end_change,
    find,
    home,
    key_of,
    layout_of,
    line_of,
    next_bucket,
    row_of,
)

_U64 = np.uint64


@inline_kernel
def _uncount(layout: Layout, key: np.uint64, first: np.uint64, last: np.uint64) -> None:
    """Take a key out of the counts of the buckets from `first` on that it passed on its way to `last`."""
    mask, start = count_mask(key), home(key, layout.buckets)
    one = mask & (ZERO - mask)
    while first != last:
        line = line_of(layout, first)
        if layout.memory[line + KEYS] & mask != mask:
            layout.memory[line + KEYS] -= one
        first = next_bucket(layout, first, start)


@inline_kernel
def _distance(layout: Layout, start: np.uint64, bucket: np.uint64) -> np.uint64:
    """Return how many buckets the path that begins at `start` passes before it comes to `bucket`."""
    first, last = start >> ONE, bucket >> ONE
    units = last - first if last >= first else last + (layout.buckets >> ONE) - first
    return (units << ONE) | ((start ^ bucket) & ONE)


@inline_kernel
def _passed(layout: Layout, hole: np.uint64, bucket: np.uint64) -> np.uint64:
    """Return the lane in `bucket` of a key that had passed bucket `hole` on its way, or KEYS where there is none."""
    line = line_of(layout, bucket)
    for lane in range(BUCKET_KEYS):
        key = layout.memory[line + _U64(lane)]
        if key != ZERO:
            start = home(key, layout.buckets)
            if _distance(layout, start, hole) < _distance(layout, start, bucket):
                return _U64(lane)
    return KEYS


@inline_kernel
def _find_passed(layout: Layout, hole: np.uint64) -> np.uint64:
    """Return the nearest slot of a key that had passed bucket `hole`, or ABSENT."""
    bucket = next_bucket(layout, hole, hole)
    while bucket != hole:
        lane = _passed(layout, hole, bucket)
        if lane != KEYS:
            return (bucket << THREE) | lane
        bucket = next_bucket(layout, bucket, hole)
    return ABSENT  # only where counts are stuck at their most


@inline_kernel
def _release(layout: Layout, slot: np.uint64) -> None:
    """Free a slot, then pull back keys that had passed it, until no bucket with a free slot was passed by any.

    Without the pulling back, keys stay where a once full table put them: after ten times its records had come and gone
    at load 0.8 an absent key cost 19 lines; with it, 2.1, as in a table filled once.
    """
    memory, key = layout.memory, key_of(layout, slot)
    begin_change(layout, key)
    _uncount(layout, key, home(key, layout.buckets), slot >> THREE)
    memory[line_of(layout, slot >> THREE) + (slot & KEYS)] = ZERO
    end_change(layout, key)
    while memory[line_of(layout, slot >> THREE) + KEYS] != ZERO:
        other = _find_passed(layout, slot >> THREE)
        if other == ABSENT:
            return
        key = key_of(layout, other)
        begin_change(layout, key)
        copy_row(layout, row_of(layout, slot), memory, row_of(layout, other))
        memory[line_of(layout, slot >> THREE) + (slot & KEYS)] = key
        _uncount(layout, key, slot >> THREE, other >> THREE)
        memory[line_of(layout, other >> THREE) + (other & KEYS)] = ZERO
        end_change(layout, key)
        slot = other


@kernel
def table_remove(desk: U64Array, keys: U64Array, removed: BoolArray) -> int:
    """Remove records; writes whether each was there, returns how many."""
    layout, count = layout_of(desk), 0
    for start in range(0, keys.shape[0] + BLOCK, BLOCK):
        for i in range(start, min(start + BLOCK, keys.shape[0])):
            ask_bucket(layout, keys[i])
        for i in range(max(0, start - BLOCK), min(start, keys.shape[0])):
            slot = find(layout, keys[i])
            removed[i] = slot != ABSENT
            if removed[i]:
                _release(layout, slot)
                count += 1
    desk[RECORDS] -= _U64(count)
    return count


@kernel
def table_clear(desk: U64Array) -> None:
    """Forget every record."""
    layout = layout_of(desk)
    for bucket in range(np.int64(layout.buckets)):
        line = line_of(layout, _U64(bucket))
        for lane in range(BUCKET_KEYS):
            key = layout.memory[line + _U64(lane)]
            if key != ZERO:
                begin_change(layout, key)
                layout.memory[line + _U64(lane)] = ZERO
                end_change(layout, key)
        layout.memory[line + KEYS] = ZERO
    desk[RECORDS] = ZERO
