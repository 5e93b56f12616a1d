"""Machine code of the DRAM table, the half that answers its owner: lookup, longest match, facts, scan. Owns no memory.

Every kernel takes a batch and asks early for the lines that it will need (`prefetch`), so that the misses overlap. The
layout is that of `kernels_layout.py`, the bit fields those of `packed.py`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest.hashing import hash_rows
from flashnest.jit import inline_kernel, kernel
from flashnest.record import BoolArray, I32Array, I64Array, U32Array, U64Array
from flashnest.storage.kernels_layout import (
    ABSENT,
    BLOCK,
    CAPACITY,
    CODE,
    HITS,
    LOOKUPS,
    PASSED,
    ZERO,
    Layout,
    answers_of,
    ask_bucket,
    ask_next,
    desk_at,
    find,
    find_at_home,
    find_further,
    key_of,
    layout_of,
    row_of,
    time_of,
)
from flashnest.storage.lines import prefetch_row
from flashnest.storage.packed import take_row, unpack_row

_FURTHER: Final = 2
"""State of a key, within a lookup, that is not in its first bucket and may be in a later one."""

_U64 = np.uint64
_ONE, _S32 = _U64(1), _U64(32)
_THREE = _U64(3)
_SEQUENCES: Final = 16
"""Sequences in a block of `table_longest`: four lengths each make 64 keys."""


@inline_kernel
def _take(layout: Layout, row: np.uint64, key: np.uint64, out: U32Array, to: np.uint64, now: int) -> None:
    """Note a hit of a record and unpack it to index `to` of `out` (flat)."""
    take_row(layout.memory, row, out, to, layout.words, layout.bits, key, layout.names, now)


@inline_kernel
def _hold(layout: Layout, slot: np.uint64, out: U32Array, to: np.uint64) -> bool:
    """Ask for a found record's row and keep its place in the answer itself until it is there; returns whether found."""
    if slot >= PASSED:
        return False
    row = row_of(layout, slot)
    prefetch_row(layout.memory, row)
    out[to] = np.uint32(row)
    out[to + _ONE] = np.uint32(row >> _S32)
    return True


@inline_kernel
def _held(out: U32Array, to: np.uint64) -> np.uint64:
    return _U64(out[to]) | (_U64(out[to + _ONE]) << _S32)


@inline_kernel
def _count(desk: U64Array, lookups: int, hits: int) -> int:
    desk[LOOKUPS] += _U64(lookups)
    desk[HITS] += _U64(hits)
    return hits


@kernel
def table_lookup(address: int, keys: U64Array) -> int:
    """Answer a batch into the bound buffers as `Store.lookup_many` says; returns the hits, -1 where it is too large.

    A pipeline of three stages, a block of 64 keys in each: ask for bucket lines, find keys and ask for row lines, take
    rows. One block's misses are under way while another's lines are worked on. Keys that are not in their first bucket
    wait, in stage two, until the unit's other line was asked for as well: one in eight, some 80 ns each otherwise.
    """
    n, hits, desk = keys.shape[0], 0, desk_at(address)
    if n > np.int64(desk[CAPACITY]):
        return -1
    layout, now = layout_of(desk), time_of(desk)
    state, tier, out = answers_of(layout)
    words, code = _U64(layout.words), np.uint8(desk[CODE])
    for start in range(0, n + 2 * BLOCK, BLOCK):
        for i in range(start, min(start + BLOCK, n)):
            ask_bucket(layout, keys[i])
        for i in range(max(0, start - BLOCK), min(start, n)):
            slot = find_at_home(layout, keys[i])
            state[i] = _hold(layout, slot, out, _U64(i) * words)
            if slot == PASSED:
                ask_next(layout, keys[i])
                state[i] = _FURTHER
        for i in range(max(0, start - BLOCK), min(start, n)):
            if state[i] == _FURTHER:
                state[i] = _hold(layout, find_further(layout, keys[i]), out, _U64(i) * words)
        for i in range(max(0, start - 2 * BLOCK), min(start - BLOCK, n)):
            if state[i] == 1:
                hits += 1
                tier[i] = code
                _take(layout, _held(out, _U64(i) * words), keys[i], out, _U64(i) * words, now)
    return _count(desk, n, hits)


@inline_kernel
def _find_longest(layout: Layout, keys: U64Array, slots: U64Array) -> int:
    """Return the index of the last key that is stored, with its slot in `slots`, or -1.

    slots (k,): what `find_at_home` said of each key.
    """
    for back in range(keys.shape[0]):
        k = keys.shape[0] - 1 - back
        if slots[k] == PASSED:
            slots[k] = find_further(layout, keys[k])
        if slots[k] != ABSENT:
            return int(k)
    return -1


@inline_kernel
def _longest_block(layout: Layout, keys: U64Array, index: I64Array, slots: U64Array, start: int, now: int) -> int:
    """One step of the pipeline of `table_lookup`, 16 sequences a block, the youngest from `start`; returns the hits.

    slots uint64 (16, k) carries one block from its second stage to its third.
    """
    n, hits = keys.shape[0], 0
    state, tier, out = answers_of(layout)
    words, code = _U64(layout.words), np.uint8(layout.desk[CODE])
    for r in range(start, min(start + _SEQUENCES, n)):
        for k in range(keys.shape[1]):
            ask_bucket(layout, keys[r, k])
    for r in range(max(0, start - _SEQUENCES), min(start, n)):
        for k in range(keys.shape[1]):
            slot = find_at_home(layout, keys[r, k])
            slots[r % _SEQUENCES, k] = slot
            if slot == PASSED:
                ask_next(layout, keys[r, k])
    for r in range(max(0, start - _SEQUENCES), min(start, n)):
        k = _find_longest(layout, keys[r], slots[r % _SEQUENCES])
        index[r] = k
        state[r] = k >= 0 and _hold(layout, slots[r % _SEQUENCES, k], out, _U64(r) * words)
    for r in range(max(0, start - 2 * _SEQUENCES), min(start - _SEQUENCES, n)):
        if state[r] == 1:
            hits += 1
            tier[r] = code
            _take(layout, _held(out, _U64(r) * words), keys[r, index[r]], out, _U64(r) * words, now)
    return hits


@kernel
def table_longest(address: int, keys: U64Array, index: I64Array) -> int:
    """Per row of `keys` (n, k), shortest length first, 0 = none: take the last key that is stored; returns hits.

    index int64 (n,): which key it was, -1 where none is stored. Only the record taken is touched. Returns -1 where the
    arrays do not fit together.
    """
    n, hits, desk = keys.shape[0], 0, desk_at(address)
    if n > min(np.int64(desk[CAPACITY]), index.shape[0]):
        return -1
    layout, slots, now = layout_of(desk), np.empty((_SEQUENCES, keys.shape[1]), np.uint64), time_of(desk)
    for start in range(0, n + 2 * _SEQUENCES, _SEQUENCES):
        hits += _longest_block(layout, keys, index, slots, start, now)
    return _count(desk, n, hits)


@kernel
def table_longest_tails(
    address: int,
    tokens: I32Array,
    ends: I32Array,
    salts: U64Array,
    lengths: I32Array,
    keys: U64Array,
    index: I64Array,
) -> int:
    """Hash the tails of n sequences as `hash_tails` does, into `keys` (n, k), then answer as `table_longest`."""
    n, hits, desk = keys.shape[0], 0, desk_at(address)
    room = min(np.int64(desk[CAPACITY]), index.shape[0])
    if n > min(room, tokens.shape[0], ends.shape[0], salts.shape[0]) or keys.shape[1] != lengths.shape[0]:
        return -1
    layout, slots, now = layout_of(desk), np.empty((_SEQUENCES, keys.shape[1]), np.uint64), time_of(desk)
    for start in range(0, n + 2 * _SEQUENCES, _SEQUENCES):
        hash_rows(tokens, ends, salts, lengths, keys, start, min(start + _SEQUENCES, n))
        hits += _longest_block(layout, keys, index, slots, start, now)
    return _count(desk, n, hits)


@kernel
def table_contains(desk: U64Array, keys: U64Array, there: BoolArray) -> int:
    """Write which keys are stored; returns how many. Touches nothing."""
    layout, count = layout_of(desk), 0
    for start in range(0, keys.shape[0] + BLOCK, BLOCK):
        for i in range(start, min(start + BLOCK, keys.shape[0])):
            ask_bucket(layout, keys[i])
        for i in range(max(0, start - BLOCK), min(start, keys.shape[0])):
            there[i] = find(layout, keys[i]) != ABSENT
            count += there[i]
    return count


@kernel
def table_read(desk: U64Array, keys: U64Array, rows: U32Array, there: BoolArray, now: int) -> int:
    """Unpack the rows of stored keys and write which are stored; returns how many. Touches nothing."""
    layout, flat, count = layout_of(desk), rows.reshape(-1), 0
    words = _U64(layout.words)
    for start in range(0, keys.shape[0] + BLOCK, BLOCK):
        for i in range(start, min(start + BLOCK, keys.shape[0])):
            ask_bucket(layout, keys[i])
        for i in range(max(0, start - BLOCK), min(start, keys.shape[0])):
            slot = find(layout, keys[i])
            there[i] = slot != ABSENT
            count += there[i]
            if there[i]:
                unpack_row(
                    layout.memory, row_of(layout, slot), flat, _U64(i) * words, layout.words, layout.bits, keys[i],
                    layout.names, now,
                )  # fmt: skip
    return count


@kernel
def table_scan(desk: U64Array, bucket: int, keys: U64Array, out: U32Array, now: int) -> tuple[int, int]:
    """Copy records from `bucket` on until `keys` has no room for another bucket's; returns (records, where to go on).

    The first bucket's records always go in: `keys` has room for at least seven.
    """
    layout, flat, count = layout_of(desk), out.reshape(-1), 0
    words, buckets = _U64(layout.words), np.int64(layout.buckets)
    while bucket < buckets and count + 7 <= keys.shape[0]:
        for lane in range(7):
            slot = (_U64(bucket) << _THREE) | _U64(lane)
            key = key_of(layout, slot)
            if key != ZERO:
                keys[count] = key
                unpack_row(
                    layout.memory, row_of(layout, slot), flat, _U64(count) * words, layout.words, layout.bits, key,
                    layout.names, now,
                )  # fmt: skip
                count += 1
        bucket += 1
    return count, bucket
