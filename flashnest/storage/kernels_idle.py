"""Machine code of sampled LRU: how long the records that a hand meets have been idle. Owns no memory."""

from __future__ import annotations

import numpy as np

from flashnest.hashing import mix64
from flashnest.jit import kernel
from flashnest.record import U32Array, U64Array
from flashnest.storage.kernels_evict import BUCKET, STATE_MASK, next_slot
from flashnest.storage.kernels_layout import ABSENT, ZERO, find, key_of, layout_of, row_of
from flashnest.storage.packed import FREQ_MASK, FREQ_SHIFT, ONE, PERIOD_S, QUEUE_MASK

_U64 = np.uint64
_THREE, _TIME, _CHANCE = _U64(3), _U64(PERIOD_S - 1), _U64(63)
_USES_SHIFT, _SECONDS_SHIFT = _U64(6), _U64(8)


@kernel
def idle_sample(
    desk: U64Array, state: U64Array, now: int, most_steps: int, keys: U64Array, idle: U32Array
) -> tuple[int, int]:
    """Move the hand on by at most `most_steps` slots until `keys` is full; returns (keys written, steps).

    idle uint32 (n,), most significant bits first: 24 of seconds since the last access; two of 3 less the uses since the
    hand last came by, so that of records used in one second the less used count as longer idle; six at random, so that
    those alike go evenly from everywhere (else every 16th bucket was emptied and the others overfilled). A record with
    the queue bit loses it and is left out: it was spared.
    """
    layout, count, steps = layout_of(desk), 0, 0
    salt = mix64(state[BUCKET])
    while steps < most_steps:
        if count == keys.shape[0]:
            break
        steps += 1
        slot = next_slot(layout, state)
        row, key = row_of(layout, slot), key_of(layout, slot)
        low = layout.memory[row]
        if key == ZERO:
            continue
        used = (low & FREQ_MASK) >> FREQ_SHIFT
        layout.memory[row] = low & ~STATE_MASK
        if low & QUEUE_MASK == ZERO:
            keys[count] = key
            seconds = (_U64(now) - layout.memory[row + ONE]) & _TIME
            chance = mix64(key ^ salt) & _CHANCE
            idle[count] = np.uint32((seconds << _SECONDS_SHIFT) | ((_THREE - used) << _USES_SHIFT) | chance)
            count += 1
    return count, steps


@kernel
def idle_spare(desk: U64Array, keys: U64Array) -> None:
    """Let the hand pass over these once."""
    layout = layout_of(desk)
    for i in range(keys.shape[0]):
        slot = find(layout, keys[i])
        if slot != ABSENT:
            layout.memory[row_of(layout, slot)] |= QUEUE_MASK
