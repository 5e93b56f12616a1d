"""Where things lie in the DRAM table's memory, and how a key is found there. Owns no memory, changes no record.

The memory is one uint64 array of units. A unit is two buckets and the fourteen packed rows that belong to them, padded
to whole 64-byte lines: 2 lines + 14 x 32 bytes = 576 bytes with the default chain, 41.1 a slot. A bucket is one line,
eight words: seven keys (0 = free) and eight one-byte counts of the keys that passed over this bucket, because it was
full, to a later one; a key's hash chooses the byte that counts it. The bucket after a key's first is the other one of
the unit, then come those of the next unit. A lookup that meets a count of 0 stops: the key is nowhere (with one count
for all keys one absent key in four went on at load 0.75, with eight one in twelve). Removal
takes the counts back along the same path and pulls later keys forward, so there are no tombstones and nothing decays
(the counts are folly F14's, the pulling is linear probing's backward shift).

A hit costs two lines, a miss one, and both lie in one unit, so that a hit walks the page table once.

Kernels are given the table as one uint64 array, the desk: addresses, sizes and counters. Each array argument of a
kernel costs a call from Python some 60 ns to unbox; a lookup has two. Index arithmetic is uint64 throughout: numba
turns uint64 mixed with int64 into float64. A record is named by its slot: bucket x 8 + lane.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from flashnest.hashing import mix64
from flashnest.jit import inline_kernel, kernel
from flashnest.record import U8Array, U16Array, U32Array, U64Array
from flashnest.storage.lines import (
    fence_release,
    first_bit,
    match_line,
    prefetch_keys,
    store_release,
    u8_at,
    u16_at,
    u32_at,
    u64_at,
)
from flashnest.storage.packed import packed_words

BUCKET_KEYS: Final = 7
UNIT_BUCKETS: Final = 2
UNIT_KEYS: Final = UNIT_BUCKETS * BUCKET_KEYS
_LINE: Final = 8
"""uint64 words in a 64-byte line."""
BLOCK: Final = 64
"""Keys whose lines are asked for together. At 8 M records, batches of 128, hit / miss over the gather: 16 keys 1.97 /
1.65, 32 keys 1.94 / 1.58, 64 keys 1.86 / 1.46, 128 keys 1.86 / 1.45 (median of 3 to 5 runs on a busy machine)."""

MEMORY, BUCKETS, UNIT, ROW, WORDS, TOKEN_BITS = range(6)
NAMES, NAME_SLOTS, NAMES_ROOM, NAMES_COUNT, STRIPES, STRIPE_COUNT = range(6, 12)
RECORDS, MAX_RECORDS, LOOKUPS, HITS, INSERTS, UPDATES = range(12, 18)
STATE, TIER, ANSWERS, CAPACITY, CODE, CLOCK = range(18, 24)
DESK_WORDS: Final = 24
"""The desk: what the table is, its counters, the answer buffers that are bound to it, and where it finds the time."""

_U64 = np.uint64
ZERO, ONE, KEYS = _U64(0), _U64(1), _U64(BUCKET_KEYS)
_TWO, THREE, _S32 = _U64(2), _U64(3), _U64(32)
_UNIT_LINES = _U64(UNIT_BUCKETS * _LINE)
KEY_MASK = _U64(0x7F)
ABSENT = _U64(0xFFFF_FFFF_FFFF_FFFF)
PASSED = _U64(0xFFFF_FFFF_FFFF_FFFE)
_NAME_MIX, _M32 = _U64(0x9E3779B1), _U64(0xFFFF_FFFF)


class Layout(NamedTuple):
    """The desk's addresses as arrays, for the length of one kernel call."""

    desk: U64Array
    memory: U64Array
    buckets: np.uint64
    unit: np.uint64
    row: np.uint64
    words: int
    bits: np.uint64
    names: U32Array
    stripes: U32Array


def unit_words(words: int, token_bits: int) -> int:
    """Return the uint64 words of a unit whose rows have `words` uint32 words."""
    return -(-(UNIT_BUCKETS * _LINE + UNIT_KEYS * packed_words(words, token_bits)) // _LINE) * _LINE


@inline_kernel
def desk_at(address: int) -> U64Array:
    """Return the desk at an address: a kernel that is called with one key saves the unboxing of an array, 60 ns."""
    return u64_at(_U64(address), _U64(DESK_WORDS))


@inline_kernel
def time_of(desk: U64Array) -> int:
    """Return the time by which a lookup goes."""
    return int(u64_at(desk[CLOCK], ONE)[0])


@inline_kernel
def layout_of(desk: U64Array) -> Layout:
    """Read the desk."""
    unit, buckets = desk[UNIT], desk[BUCKETS]
    return Layout(
        desk,
        u64_at(desk[MEMORY], (buckets >> ONE) * unit),
        buckets,
        unit,
        desk[ROW],
        int(desk[WORDS]),
        desk[TOKEN_BITS],
        u32_at(desk[NAMES], desk[NAMES_ROOM]),
        u32_at(desk[STRIPES], desk[STRIPE_COUNT]),
    )


@inline_kernel
def home(key: np.uint64, buckets: np.uint64) -> np.uint64:
    """Return the first bucket of a key: mixed again, then scaled to the bucket count, which need be no power of two."""
    return _U64(((mix64(key) >> _S32) * buckets) >> _S32)


@inline_kernel
def count_mask(key: np.uint64) -> np.uint64:
    """Return the bits of the count that is this key's, of the eight in a bucket's last word."""
    return _U64(0xFF) << ((mix64(key) & KEYS) << THREE)


@inline_kernel
def next_bucket(layout: Layout, bucket: np.uint64, start: np.uint64) -> np.uint64:
    """Return the bucket after this one on the path that begins at `start`: both of a unit, then the next unit's.

    The other bucket of a unit costs 10 % more than one line alone, the next unit's a walk of the page table as well.
    """
    other = bucket ^ ONE
    if (bucket ^ start) & ONE == ZERO:
        return other
    other += _TWO
    return other - layout.buckets if other >= layout.buckets else other


@inline_kernel
def line_of(layout: Layout, bucket: np.uint64) -> np.uint64:
    """Return the index in memory of a bucket's line."""
    return (bucket >> ONE) * layout.unit + ((bucket & ONE) << THREE)


@inline_kernel
def row_of(layout: Layout, slot: np.uint64) -> np.uint64:
    """Return the index in memory of a slot's packed row."""
    bucket, lane = slot >> THREE, slot & KEYS
    return (bucket >> ONE) * layout.unit + _UNIT_LINES + ((bucket & ONE) * KEYS + lane) * layout.row


@inline_kernel
def key_of(layout: Layout, slot: np.uint64) -> np.uint64:
    """Return the key in a slot, 0 where it is free."""
    return _U64(layout.memory[line_of(layout, slot >> THREE) + (slot & KEYS)])


@inline_kernel
def copy_row(layout: Layout, row: np.uint64, source: U64Array, item: np.uint64) -> None:
    """Write the packed row at index `item` of `source` to index `row` of memory."""
    for word in range(np.int64(layout.row)):
        layout.memory[row + _U64(word)] = source[item + _U64(word)]


@inline_kernel
def ask_bucket(layout: Layout, key: np.uint64) -> None:
    """Ask for a key's first bucket line."""
    prefetch_keys(layout.memory, line_of(layout, home(key, layout.buckets)))


@inline_kernel
def find_at_home(layout: Layout, key: np.uint64) -> np.uint64:
    """Return a key's slot where it lies in its first bucket, ABSENT where it is nowhere, else PASSED: look further."""
    if key == ZERO:
        return ABSENT
    bucket = home(key, layout.buckets)
    line = line_of(layout, bucket)
    equal = match_line(layout.memory, line, key) & KEY_MASK
    if equal != ZERO:
        return (bucket << THREE) | first_bit(equal)
    return ABSENT if layout.memory[line + KEYS] & count_mask(key) == ZERO else PASSED


@inline_kernel
def ask_next(layout: Layout, key: np.uint64) -> None:
    """Ask for the bucket line after a key's first, in the same unit."""
    start = home(key, layout.buckets)
    prefetch_keys(layout.memory, line_of(layout, next_bucket(layout, start, start)))


@inline_kernel
def find_further(layout: Layout, key: np.uint64) -> np.uint64:
    """Return the slot, or ABSENT, of a key that PASSED its first bucket."""
    start = home(key, layout.buckets)
    bucket, mask = next_bucket(layout, start, start), count_mask(key)
    while bucket != start:  # all around only where counts are stuck at their most
        line = line_of(layout, bucket)
        equal = match_line(layout.memory, line, key) & KEY_MASK
        if equal != ZERO:
            return (bucket << THREE) | first_bit(equal)
        if layout.memory[line + KEYS] & mask == ZERO:
            return ABSENT
        bucket = next_bucket(layout, bucket, start)
    return ABSENT


@inline_kernel
def find(layout: Layout, key: np.uint64) -> np.uint64:
    """Return a key's slot, or ABSENT. Key 0 is absent."""
    slot = find_at_home(layout, key)
    return find_further(layout, key) if slot == PASSED else slot


@inline_kernel
def find_free(layout: Layout, key: np.uint64) -> np.uint64:
    """Return the first free slot of an absent key's path. The caller guarantees that there is one."""
    bucket = start = home(key, layout.buckets)
    while True:
        free = match_line(layout.memory, line_of(layout, bucket), ZERO) & KEY_MASK
        if free != ZERO:
            return (bucket << THREE) | first_bit(free)
        bucket = next_bucket(layout, bucket, start)


@inline_kernel
def stripe_of(layout: Layout, key: np.uint64) -> np.uint64:
    """Return which sequence count guards a key: by its home bucket, wherever the key lies."""
    return home(key, layout.buckets) & _U64(layout.stripes.shape[0] - 1)


@inline_kernel
def begin_change(layout: Layout, key: np.uint64) -> None:
    """Make a key's sequence count odd: a reader of the key waits from here on. One thread writes."""
    stripe = stripe_of(layout, key)
    store_release(layout.stripes, stripe, np.uint32(layout.stripes[stripe] + np.uint32(1)))
    fence_release()


@inline_kernel
def end_change(layout: Layout, key: np.uint64) -> None:
    """Make it even again, another number than before."""
    stripe = stripe_of(layout, key)
    store_release(layout.stripes, stripe, np.uint32(layout.stripes[stripe] + np.uint32(1)))


@inline_kernel
def intern(layout: Layout, namespace: np.uint32) -> np.uint64:
    """Return the index that stands for a namespace id; 0 for id 0 and for ids beyond the list's room."""
    if namespace == np.uint32(0):
        return ZERO
    room, count = layout.desk[NAMES_ROOM], layout.desk[NAMES_COUNT]
    slots: U16Array = u16_at(layout.desk[NAME_SLOTS], room * _TWO)
    slot = (((_U64(namespace) * _NAME_MIX) & _M32) * room * _TWO) >> _S32
    while slots[slot] != np.uint16(0):
        index = _U64(slots[slot])
        if layout.names[index] == namespace:
            return index
        slot = (slot + ONE) % (room * _TWO)
    if count + ONE >= room:
        return ZERO
    layout.desk[NAMES_COUNT] = count + ONE
    layout.names[count + ONE] = namespace
    slots[slot] = np.uint16(count + ONE)
    return _U64(count + ONE)


@kernel
def table_reserve(desk: U64Array, namespaces: U32Array) -> None:
    """Intern ids ahead of others."""
    layout = layout_of(desk)
    for i in range(namespaces.shape[0]):
        intern(layout, namespaces[i])


@kernel
def table_bind(desk: U64Array, state: U8Array, tier: U8Array, answers: U32Array, code: int) -> bool:
    """Note where answers go; returns False where the buffers do not fit this table's rows.

    The caller keeps the buffers alive while they are bound.
    """
    if answers.shape[1] != np.int64(desk[WORDS]) or min(tier.shape[0], answers.shape[0]) < state.shape[0]:
        return False
    desk[STATE], desk[TIER], desk[ANSWERS] = state.ctypes.data, tier.ctypes.data, answers.ctypes.data
    desk[CAPACITY], desk[CODE] = state.shape[0], code
    return True


@inline_kernel
def answers_of(layout: Layout) -> tuple[U8Array, U8Array, U32Array]:
    """Return the bound buffers: state, tier, rows (flat)."""
    desk = layout.desk
    capacity = desk[CAPACITY]
    return (
        u8_at(desk[STATE], capacity),
        u8_at(desk[TIER], capacity),
        u32_at(desk[ANSWERS], capacity * _U64(layout.words)),
    )
