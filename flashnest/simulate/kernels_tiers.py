"""Machine code of the tiers: put a record in, take it out, choose one to give up. Moves nothing between tiers.

S3-FIFO, SIEVE and sampled LRU as `storage.kernels_evict` and `kernels_idle` have them, one victim at a time, with the
ghost exact where the real one is a filter.
"""

from __future__ import annotations

from typing import Final, cast

import numpy as np

from flashnest.jit import inline_kernel, kernel
from flashnest.record import I64Array
from flashnest.simulate import state as at
from flashnest.simulate.desk import free_of, line_of, ring_of, slots_of, tier_of

SAMPLE: Final = 16
"""Records that LRU compares, as `storage.eviction.SAMPLE`."""
_LOOKS: Final = 8 + 128
"""Looks by the rules before the hand takes what it meets, as `storage.kernels_evict`."""
_NO_ONE: Final = cast(int, np.int64(-1))
_MOST_USES: Final = 3


@inline_kernel
def has_room(desk: I64Array, tier: int) -> bool:
    """Whether a tier takes one more record."""
    return bool(tier_of(desk, tier)[at.COUNT] < tier_of(desk, tier)[at.ROOM])


@kernel
def put(desk: I64Array, tier: int, record: int) -> None:
    """Make a tier the owner of a record that has none. The caller has seen to it that there is room."""
    line, mine = line_of(desk, record), tier_of(desk, tier)
    base, count = mine[at.BASE], mine[at.COUNT]
    slot = free_of(desk)[base + count]
    slots_of(desk)[base + slot] = record
    line[at.TIER], line[at.SLOT], line[at.USES], line[at.QUEUED] = tier, slot, 0, 0
    mine[at.COUNT] = count + 1
    mine[at.PEAK] = max(mine[at.PEAK], count + 1)
    algorithm = mine[at.EVICTION]
    if algorithm == at.SIEVE or (algorithm == at.S3FIFO and not _lay(desk, tier, record)):
        line[at.QUEUED] = 1
        _push(desk, tier, record)


@kernel
def take_out(desk: I64Array, record: int) -> None:
    """Leave a record without an owner; its facts stay as they are."""
    line = line_of(desk, record)
    mine, slot = tier_of(desk, int(line[at.TIER])), line[at.SLOT]
    base = mine[at.BASE]
    mine[at.COUNT] -= 1
    slots_of(desk)[base + slot] = at.NOWHERE
    free_of(desk)[base + mine[at.COUNT]] = slot
    line[at.TIER], line[at.USES], line[at.QUEUED] = at.NOWHERE, 0, 0


@inline_kernel
def _lay(desk: I64Array, tier: int, record: int) -> bool:
    """Forget a ghost; returns whether it was remembered."""
    line, mine = line_of(desk, record), tier_of(desk, tier)
    left = line[at.GHOST]
    line[at.GHOST] = 0
    return bool(left > 0 and mine[at.GHOSTS] - left < mine[at.GHOST_MOST])


@inline_kernel
def _push(desk: I64Array, tier: int, record: int) -> None:
    """Put a record behind the others of the queue. In a full ring the oldest makes room, as if it had been used."""
    mine = tier_of(desk, tier)
    if mine[at.RING_COUNT] == mine[at.SLOTS]:
        oldest = _pop(desk, tier)
        if oldest != _NO_ONE:
            line_of(desk, oldest)[at.QUEUED] = line_of(desk, oldest)[at.USES] = 0
    place = (mine[at.RING_START] + mine[at.RING_COUNT]) % mine[at.SLOTS]
    ring_of(desk)[mine[at.BASE] + place] = record
    mine[at.RING_COUNT] += 1


@inline_kernel
def _pop(desk: I64Array, tier: int) -> int:
    """Take the oldest entry off the ring; returns its record, or -1 where that is no longer in the queue."""
    mine = tier_of(desk, tier)
    record = int(ring_of(desk)[mine[at.BASE] + mine[at.RING_START]])
    mine[at.RING_START] = (mine[at.RING_START] + 1) % mine[at.SLOTS]
    mine[at.RING_COUNT] -= 1
    line = line_of(desk, record)
    return record if line[at.TIER] == tier and line[at.QUEUED] else _NO_ONE


@inline_kernel
def _next(desk: I64Array, tier: int) -> int:
    """Move the hand on; returns the record in the slot that it leaves, -1 for none. A full round: SIEVE's young."""
    mine = tier_of(desk, tier)
    hand = mine[at.HAND]
    mine[at.HAND] = hand + 1
    if mine[at.HAND] >= mine[at.SLOTS]:
        mine[at.HAND], mine[at.YOUNG] = 0, 1
    return int(slots_of(desk)[mine[at.BASE] + hand])


@inline_kernel
def _from_queue(desk: I64Array, tier: int, sieve: bool) -> bool:
    """Whether the next victim should come from the queue: S3-FIFO keeps it at a tenth, SIEVE goes through it whole."""
    mine = tier_of(desk, tier)
    if mine[at.RING_COUNT] == 0:
        mine[at.YOUNG] = 0
        return False
    if sieve:
        return bool(mine[at.YOUNG] != 0)
    return bool(mine[at.RING_COUNT] >= mine[at.QUEUE_MOST])


@inline_kernel
def _passed_over(desk: I64Array, record: int, sieve: bool) -> bool:
    """Judge what the hand meets: nothing, in the queue, or used since it last came by, which it takes back."""
    if record == _NO_ONE or line_of(desk, record)[at.QUEUED]:
        return True
    uses = line_of(desk, record)[at.USES]
    if uses == 0:
        return False
    line_of(desk, record)[at.USES] = 0 if sieve else uses - 1
    return True


@kernel
def _queue_victim(desk: I64Array, tier: int, sieve: bool) -> int:
    mine, steps = tier_of(desk, tier), 0
    while steps < 2 * _LOOKS:
        steps += 1
        if _from_queue(desk, tier, sieve) or (steps > _LOOKS and mine[at.RING_COUNT] > 0):
            record = _pop(desk, tier)
            if record == _NO_ONE:
                continue
            line = line_of(desk, record)
            used = line[at.USES] >= (1 if sieve else 2)
            line[at.USES] = line[at.QUEUED] = 0
            if used:
                continue
            if not sieve:
                mine[at.GHOSTS] += 1
                line[at.GHOST] = mine[at.GHOSTS]
            return record
        record = _next(desk, tier)
        if not _passed_over(desk, record, sieve):
            return record
    for _ in range(mine[at.SLOTS]):
        record = _next(desk, tier)
        if record != _NO_ONE:
            return record
    return _NO_ONE


@kernel
def _idlest(desk: I64Array, tier: int) -> int:
    """Return the record idle longest of 16 that the hand meets, least used of those alike; spared ones are left out."""
    best, seen = _NO_ONE, 0
    sample = min(SAMPLE, tier_of(desk, tier)[at.COUNT])
    for _ in range(2 * tier_of(desk, tier)[at.SLOTS]):
        if seen == sample:
            break
        record = _next(desk, tier)
        if record == _NO_ONE:
            continue
        line = line_of(desk, record)
        if line[at.QUEUED]:
            line[at.QUEUED] = 0
            continue
        seen += 1
        if best == _NO_ONE or _idler(desk, record, best):
            best = record
    return best


@inline_kernel
def _idler(desk: I64Array, record: int, best: int) -> bool:
    mine, other = line_of(desk, record), line_of(desk, best)
    if mine[at.LAST] != other[at.LAST]:
        return bool(mine[at.LAST] < other[at.LAST])
    return bool(mine[at.USES] < other[at.USES])


@kernel
def victim(desk: I64Array, tier: int) -> int:
    """Return the record that a tier's eviction would give up next, still stored; -1: it gives up none."""
    algorithm = tier_of(desk, tier)[at.EVICTION]
    if tier_of(desk, tier)[at.COUNT] == 0 or algorithm == at.REFUSE:
        return _NO_ONE
    if algorithm == at.LRU:
        return _idlest(desk, tier)
    return _queue_victim(desk, tier, algorithm == at.SIEVE)


@kernel
def spare(desk: I64Array, tier: int, record: int) -> None:
    """Say that a victim was not taken: it counts as just used."""
    line = line_of(desk, record)
    if tier_of(desk, tier)[at.EVICTION] == at.LRU:
        line[at.QUEUED] = 1  # the hand passes over it once
        return
    line[at.QUEUED], line[at.USES], line[at.GHOST] = 0, _MOST_USES, 0
