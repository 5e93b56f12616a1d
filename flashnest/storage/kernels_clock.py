"""Machine code of the second-chance clock over the freq bits of the table's rows. Owns no memory."""

from __future__ import annotations

import numpy as np

from flashnest.jit import kernel
from flashnest.record import U64Array
from flashnest.storage.kernels_layout import ABSENT, BUCKET_KEYS, THREE, ZERO, find, key_of, layout_of, row_of
from flashnest.storage.packed import FREQ_MASK, FREQ_SHIFT, ONE

_U64 = np.uint64


@kernel
def clock_victims(desk: U64Array, hand: int, keys: U64Array) -> tuple[int, int]:
    """Move the clock hand on until `keys` is full or every slot was seen once; returns (keys written, the hand).

    The hand visits lane 0 of every bucket, then lane 1 of every bucket, and so on. Slot by slot it would empty one
    stretch of the table while the rest overfills: probes grew to 1300 buckets. A record's freq is taken down by one;
    at 0 it is a victim. It stays stored.
    """
    layout, count = layout_of(desk), 0
    buckets = np.int64(layout.buckets)
    slots = buckets * BUCKET_KEYS
    for _ in range(slots):
        if count == keys.shape[0]:
            break
        slot = (_U64(hand % buckets) << THREE) | _U64(hand // buckets)
        key = key_of(layout, slot)
        if key != ZERO:
            row = row_of(layout, slot)
            if layout.memory[row] & FREQ_MASK == ZERO:
                keys[count] = key
                count += 1
            else:
                layout.memory[row] -= ONE << FREQ_SHIFT
        hand = hand + 1 if hand + 1 < slots else 0
    return count, hand


@kernel
def clock_spare(desk: U64Array, keys: U64Array) -> None:
    """Let the hand pass these once."""
    layout = layout_of(desk)
    for i in range(keys.shape[0]):
        slot = find(layout, keys[i])
        if slot != ABSENT:
            row = row_of(layout, slot)
            if layout.memory[row] & FREQ_MASK == ZERO:
                layout.memory[row] |= ONE << FREQ_SHIFT
