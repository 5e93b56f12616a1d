"""Machine code of the eviction algorithms: a queue of new records, a hand over the others, a ghost. Owns no memory.

S3-FIFO and SIEVE are one machine with different rules. New records wait in a ring, first in first out, with the queue
bit of their row set; all others lie in the table, where a hand meets them: lane 0 of every bucket, then lane 1 of every
bucket, and so on. From bucket to bucket it leaps 0.618 of the table, so that what it takes is spread evenly at any
time. Going from bucket to bucket it emptied one stretch while others overfilled, until counts stuck at their most:
under LRU a removal took 0.3 ms after one turnover of a table at load 0.8.

A ring entry is the upper half of a key's mix, 4 bytes. It gives the key's home bucket exactly, so it stays good when
the record moves; it is skipped where no record of that half has the queue bit any more. A ghost line is 31 marks of 16
bits, of keys that left the queue unused, oldest overwritten first: one absent key in 2000 is taken for a ghost.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest.hashing import mix64
from flashnest.jit import inline_kernel, kernel
from flashnest.record import U16Array, U32Array, U64Array
from flashnest.storage.kernels_layout import (
    ABSENT,
    BLOCK,
    BUCKET_KEYS,
    KEYS,
    THREE,
    ZERO,
    Layout,
    ask_bucket,
    find,
    key_of,
    layout_of,
    line_of,
    next_bucket,
    row_of,
)
from flashnest.storage.lines import prefetch_keys, prefetch_row
from flashnest.storage.packed import FREQ_MASK, FREQ_SHIFT, ONE, QUEUE_MASK

BUCKET, LANE, LEAP, LEAP_AHEAD, YOUNG, START, COUNT = range(7)
STATE_WORDS: Final = 7
"""An algorithm's state, uint64: the hand's bucket and lane, its leap, 16 leaps at once; 1 while SIEVE's hand is among
the young, that is in the ring; the ring's oldest entry and how many it has."""
AHEAD: Final = 16
"""Steps ahead of the hand and of the ring's oldest entry at which lines are asked for."""
GHOST_LINE: Final = 32
"""uint16 in a ghost line: where the next mark goes, and the marks."""
GHOST_MARKS: Final = GHOST_LINE - 1

_STEPS: Final = 8
_FIRST_STEPS: Final = 128
"""A call looks at 8 records a victim and 128 more by its rules, as many again in the queue alone, and then takes what
the hand meets: never a round of the table. Where all were hot 4096 victims took 3 to 4.5 us each, with removal (at 32
looks 9.2 us); on Zipf traces of 70 to 92 % hits, 16 to 2048 keys at once, 8 and 32 looks gave the same hits."""
_AHEAD = np.uint64(AHEAD)
_U64 = np.uint64
_S32, _LOW16, _TWO = _U64(32), _U64(0xFFFF), _U64(2)
_LINE, _MARKS = _U64(GHOST_LINE), _U64(GHOST_MARKS)
_GOLDEN, _SALT = _U64(0x9E3779B97F4A7C15), _U64(0x3C6EF372FE94F82B)
_USED_ONCE, _MOST_USED = ONE << FREQ_SHIFT, FREQ_MASK
STATE_MASK = FREQ_MASK | QUEUE_MASK


@inline_kernel
def _ghost_line(ghost: U16Array, key: np.uint64) -> tuple[np.uint64, np.uint16]:
    """Return where a key's ghost line begins, and its mark, which is never 0."""
    mixed = mix64(key ^ _SALT)
    mark = np.uint16(mixed & _LOW16)
    line = ((mixed >> _S32) * (_U64(ghost.shape[0]) // _LINE)) >> _S32
    return line * _LINE, max(mark, np.uint16(1))


@inline_kernel
def _haunt(ghost: U16Array, key: np.uint64) -> None:
    """Remember a key that left the queue unused. An empty ghost remembers nothing."""
    if ghost.shape[0] == 0:
        return
    line, mark = _ghost_line(ghost, key)
    place = _U64(ghost[line])
    ghost[line + ONE + place] = mark
    ghost[line] = np.uint16((place + ONE) % _MARKS)


@inline_kernel
def _lay(ghost: U16Array, key: np.uint64) -> bool:
    """Forget a key; returns whether it was remembered."""
    if ghost.shape[0] == 0:
        return False
    line, mark = _ghost_line(ghost, key)
    for place in range(GHOST_MARKS):
        if ghost[line + ONE + _U64(place)] == mark:
            ghost[line + ONE + _U64(place)] = np.uint16(0)
            return True
    return False


@inline_kernel
def _find_queued(layout: Layout, entry: np.uint64) -> np.uint64:
    """Return the slot of a record in the queue whose key has this upper half, or ABSENT."""
    bucket = start = (entry * layout.buckets) >> _S32
    while True:
        line = line_of(layout, bucket)
        for lane in range(BUCKET_KEYS):
            key = layout.memory[line + _U64(lane)]
            if key != ZERO and mix64(key) >> _S32 == entry:
                slot = (bucket << THREE) | _U64(lane)
                if layout.memory[row_of(layout, slot)] & QUEUE_MASK != ZERO:
                    return slot
        if layout.memory[line + KEYS] == ZERO:
            return ABSENT
        bucket = next_bucket(layout, bucket, start)
        if bucket == start:
            return ABSENT


@inline_kernel
def _ring_place(ring: U32Array, state: U64Array, behind: np.uint64) -> np.uint64:
    """Return the index of the entry `behind` places behind the oldest, of at most as many as the ring has."""
    place, size = _U64(state[START] + behind), _U64(ring.shape[0])
    return _U64(place - size) if place >= size else place


@inline_kernel
def _pop(layout: Layout, ring: U32Array, state: U64Array) -> np.uint64:
    """Take the oldest entry off the ring; returns its record's slot, or ABSENT where that is no longer in the queue."""
    entry = _U64(ring[state[START]])
    if state[COUNT] > _AHEAD:
        far, near = _U64(ring[_ring_place(ring, state, _AHEAD)]), _U64(ring[_ring_place(ring, state, _AHEAD // _TWO)])
        prefetch_keys(layout.memory, line_of(layout, (far * layout.buckets) >> _S32))
        slot = _find_queued(layout, near)
        if slot != ABSENT:
            prefetch_row(layout.memory, row_of(layout, slot))
    state[START] = _ring_place(ring, state, ONE)
    state[COUNT] -= ONE
    return _find_queued(layout, entry)


@inline_kernel
def _push(layout: Layout, ring: U32Array, state: U64Array, key: np.uint64) -> None:
    """Put a record that has the queue bit behind the others. In a full ring the oldest makes room: it leaves the queue
    as if it had been used."""
    if state[COUNT] == _U64(ring.shape[0]):
        oldest = _pop(layout, ring, state)
        if oldest != ABSENT:
            layout.memory[row_of(layout, oldest)] &= ~QUEUE_MASK
    ring[_ring_place(ring, state, state[COUNT])] = np.uint32(mix64(key) >> _S32)
    state[COUNT] += ONE


@kernel
def queue_note(desk: U64Array, ring: U32Array, ghost: U16Array, state: U64Array, keys: U64Array) -> None:
    """Put new records into the queue, except those that the ghost remembers."""
    layout, words = layout_of(desk), ghost.view(np.uint64)
    for start in range(0, keys.shape[0] + BLOCK, BLOCK):
        for i in range(start, min(start + BLOCK, keys.shape[0])):
            ask_bucket(layout, keys[i])
            if ghost.shape[0] > 0:
                prefetch_keys(words, _ghost_line(ghost, keys[i])[0] >> _TWO)
        for i in range(max(0, start - BLOCK), min(start, keys.shape[0])):
            slot = find(layout, keys[i])
            if slot != ABSENT and not _lay(ghost, keys[i]):
                layout.memory[row_of(layout, slot)] |= QUEUE_MASK
                _push(layout, ring, state, keys[i])


@inline_kernel
def _leapt(layout: Layout, bucket: np.uint64, leap: np.uint64) -> np.uint64:
    bucket = _U64(bucket + leap)
    return _U64(bucket - layout.buckets) if bucket >= layout.buckets else bucket


@inline_kernel
def next_slot(layout: Layout, state: U64Array) -> np.uint64:
    """Move the hand on; returns the slot that it leaves. A full round turns SIEVE's hand to the young."""
    bucket, lane = state[BUCKET], state[LANE]
    ahead = _leapt(layout, bucket, state[LEAP_AHEAD])
    prefetch_keys(layout.memory, line_of(layout, ahead))
    prefetch_row(layout.memory, row_of(layout, (ahead << THREE) | lane))
    state[BUCKET] = _leapt(layout, bucket, state[LEAP])
    if state[BUCKET] == ZERO:
        state[LANE] = (lane + ONE) % KEYS
        state[YOUNG] |= _U64(state[LANE] == ZERO)
    return _U64((bucket << THREE) | lane)


@inline_kernel
def _claim(claimed: U64Array, slot: np.uint64) -> bool:
    """Note that a slot's record is a victim of this call; returns False where it already is."""
    mask = _U64(claimed.shape[0] - 1)
    at = ((slot * _GOLDEN) >> _S32) & mask
    while claimed[at] != ABSENT:
        if claimed[at] == slot:
            return False
        at = (at + ONE) & mask
    claimed[at] = slot
    return True


@inline_kernel
def _from_queue(state: U64Array, count: int, target: int, sieve: bool) -> bool:
    """Whether the next victim should come from the queue.

    S3-FIFO keeps the queue at `target` records. The victims of a call count as if the records that will take their
    places were in it already: evicting a batch and then inserting one equals doing it one by one. SIEVE goes through
    the whole table, then through the whole queue.
    """
    if state[COUNT] == ZERO:
        state[YOUNG] = ZERO
        return False
    return bool(state[YOUNG] != ZERO) if sieve else bool(np.int64(state[COUNT]) + count >= target)


@inline_kernel
def _spared(layout: Layout, slot: np.uint64, uses: np.uint64) -> bool:
    """Judge a record in the queue: used `uses` times or more, it leaves the queue and starts afresh."""
    row = row_of(layout, slot)
    used = bool(layout.memory[row] & FREQ_MASK >= uses)
    layout.memory[row] &= ~STATE_MASK
    return used


@inline_kernel
def _passed_over(layout: Layout, slot: np.uint64, sieve: bool) -> bool:
    """Judge a slot that the hand meets: free, in the queue, or used since it last came by, which it takes back."""
    row = row_of(layout, slot)
    low = layout.memory[row]
    if key_of(layout, slot) == ZERO or low & QUEUE_MASK != ZERO:
        return True
    if low & FREQ_MASK == ZERO:
        return False
    layout.memory[row] = low & ~FREQ_MASK if sieve else low - _USED_ONCE
    return True


@inline_kernel
def _claims_for(victims: int) -> U64Array:
    size = 4
    while size < 2 * victims:
        size *= 2
    return np.full(size, ABSENT, np.uint64)


@kernel
def queue_victims(
    desk: U64Array, ring: U32Array, ghost: U16Array, state: U64Array, target: int, sieve: bool, keys: U64Array
) -> int:
    """Choose victims until `keys` is full; returns how many, fewer only where fewer are stored.

    S3-FIFO moves a queued record on when it was used twice, SIEVE when it was used once.
    """
    layout, wanted, count, steps = layout_of(desk), keys.shape[0], 0, 0
    claimed, uses = _claims_for(wanted), _USED_ONCE if sieve else _USED_ONCE * _TWO
    limit = _STEPS * wanted + _FIRST_STEPS
    while count < wanted and steps < 2 * limit:
        steps += 1
        if _from_queue(state, count, target, sieve) or (steps > limit and state[COUNT] != ZERO):
            slot = _pop(layout, ring, state)
            if slot == ABSENT or _spared(layout, slot, uses):
                continue
            _haunt(ghost, key_of(layout, slot))
            _claim(claimed, slot)
        else:
            slot = next_slot(layout, state)
            if _passed_over(layout, slot, sieve) or not _claim(claimed, slot):
                continue
        keys[count] = key_of(layout, slot)
        count += 1
    for _ in range(np.int64(layout.buckets) * BUCKET_KEYS):
        if count == wanted:
            break
        slot = next_slot(layout, state)
        key = key_of(layout, slot)
        if key != ZERO and _claim(claimed, slot):
            keys[count] = key
            count += 1
    return count


@kernel
def queue_spare(desk: U64Array, ghost: U16Array, keys: U64Array) -> None:
    """Take records out of the queue as if they had been used as often as counts."""
    layout = layout_of(desk)
    for i in range(keys.shape[0]):
        slot = find(layout, keys[i])
        if slot != ABSENT:
            row = row_of(layout, slot)
            layout.memory[row] = (layout.memory[row] & ~QUEUE_MASK) | _MOST_USED
            _lay(ghost, keys[i])
