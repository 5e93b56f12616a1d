"""Machine code of the DRAM table, the half that answers its owner: lookup, longest match, facts, scan. Owns no memory.

Every kernel takes a batch and asks early for the lines that it will need (`prefetch`), so that the misses overlap. The
layout is that of `kernels_layout.py`, the bit fields those of `packed.py`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest.hashing import hash_tail
from flashnest.jit import inline_kernel, kernel
from flashnest.record import BoolArray, I32Array, I64Array, U32Array, U64Array
from flashnest.storage.kernels_layout import (
    ABSENT,
    BLOCK,
    CAPACITY,
    CODE,
    HITS,
    LOOKUPS,
    ZERO,
    Layout,
    answers_of,
    ask_bucket,
    find,
    key_of,
    layout_of,
    row_of,
)
from flashnest.storage.lines import prefetch_row
from flashnest.storage.packed import hit_row, unpack_row

_U64 = np.uint64
_ONE, _S32 = _U64(1), _U64(32)
_THREE = _U64(3)
_SEQUENCES: Final = 8
"""Sequences in a block of `table_longest`: four lengths each make 32 keys."""


@inline_kernel
def _take(layout: Layout, slot: np.uint64, key: np.uint64, out: U32Array, to: np.uint64, now: int) -> None:
    """Note a hit of a slot's record and unpack it to index `to` of `out` (flat)."""
    row = row_of(layout, slot)
    hit_row(layout.memory, row, now)
    unpack_row(layout.memory, row, out, to, layout.words, layout.bits, key, layout.names, now)


@inline_kernel
def _hold(out: U32Array, to: np.uint64, slot: np.uint64) -> None:
    """Keep the slot found in the answer itself until the row's line has arrived."""
    out[to] = np.uint32(slot)
    out[to + _ONE] = np.uint32(slot >> _S32)


@inline_kernel
def _held(out: U32Array, to: np.uint64) -> np.uint64:
    return _U64(out[to]) | (_U64(out[to + _ONE]) << _S32)


@kernel
def table_lookup(desk: U64Array, keys: U64Array, now: int) -> int:
    """Answer a batch into the bound buffers as `Store.lookup_many` says; returns the hits, -1 where it is too large.

    A pipeline of three stages, a block of 32 keys in each: ask for bucket lines, find keys and ask for row lines, take
    rows. One block's misses are under way while another's lines are worked on (at 16 M records 4 % less time a hit and
    30 % less a miss than stage after stage over 128 keys).
    """
    n, hits = keys.shape[0], 0
    if n > np.int64(desk[CAPACITY]):
        return -1
    layout = layout_of(desk)
    state, tier, out = answers_of(layout)
    words, code = _U64(layout.words), np.uint8(desk[CODE])
    for start in range(0, n + 2 * BLOCK, BLOCK):
        for i in range(start, min(start + BLOCK, n)):
            ask_bucket(layout, keys[i])
        for i in range(max(0, start - BLOCK), min(start, n)):
            slot = find(layout, keys[i])
            state[i] = slot != ABSENT
            if slot != ABSENT:
                prefetch_row(layout.memory, row_of(layout, slot))
                tier[i] = code
                _hold(out, _U64(i) * words, slot)
        for i in range(max(0, start - 2 * BLOCK), min(start - BLOCK, n)):
            if state[i] == 1:
                hits += 1
                _take(layout, _held(out, _U64(i) * words), keys[i], out, _U64(i) * words, now)
    desk[LOOKUPS] += _U64(n)
    desk[HITS] += _U64(hits)
    return hits


@inline_kernel
def _find_longest(layout: Layout, keys: U64Array) -> tuple[int, np.uint64]:
    """Return the index of the last key that is stored, with its slot, or -1 and ABSENT."""
    for back in range(keys.shape[0]):
        k = keys.shape[0] - 1 - back
        slot = find(layout, keys[k])
        if slot != ABSENT:
            return k, slot
    return -1, ABSENT


@inline_kernel
def _longest(
    layout: Layout,
    tokens: I32Array,
    ends: I32Array,
    salts: U64Array,
    lengths: I32Array,
    keys: U64Array,
    index: I64Array,
    now: int,
    hashing: bool,
) -> int:
    """The pipeline of `table_lookup`, 8 sequences a block; with `hashing`, stage one makes the keys as well."""
    n, hits, desk = keys.shape[0], 0, layout.desk
    state, tier, out = answers_of(layout)
    words, code = _U64(layout.words), np.uint8(desk[CODE])
    for start in range(0, n + 2 * _SEQUENCES, _SEQUENCES):
        for r in range(start, min(start + _SEQUENCES, n)):
            if hashing:
                for k in range(hash_tail(tokens[r], ends[r], lengths, salts[r], keys[r]), keys.shape[1]):
                    keys[r, k] = ZERO
            for k in range(keys.shape[1]):
                ask_bucket(layout, keys[r, k])
        for r in range(max(0, start - _SEQUENCES), min(start, n)):
            k, slot = _find_longest(layout, keys[r])
            state[r] = k >= 0
            index[r] = k
            if k >= 0:
                prefetch_row(layout.memory, row_of(layout, slot))
                tier[r] = code
                _hold(out, _U64(r) * words, slot)
        for r in range(max(0, start - 2 * _SEQUENCES), min(start - _SEQUENCES, n)):
            if state[r] == 1:
                hits += 1
                key = keys[r, index[r]]
                _take(layout, _held(out, _U64(r) * words), key, out, _U64(r) * words, now)
    desk[LOOKUPS] += _U64(n)
    desk[HITS] += _U64(hits)
    return hits


@kernel
def table_longest(desk: U64Array, keys: U64Array, index: I64Array, now: int) -> int:
    """Per row of `keys` (n, k), shortest length first, 0 = none: take the last key that is stored; returns hits.

    index int64 (n,): which key it was, -1 where none is stored. Only the record taken is touched. Returns -1 where the
    arrays do not fit together.
    """
    if keys.shape[0] > min(np.int64(desk[CAPACITY]), index.shape[0]):
        return -1
    none, no_lengths = np.zeros((0, 0), np.int32), np.zeros(0, np.int32)
    return _longest(layout_of(desk), none, no_lengths, keys[:0, 0], no_lengths, keys, index, now, False)


@kernel
def table_longest_tails(
    desk: U64Array,
    tokens: I32Array,
    ends: I32Array,
    salts: U64Array,
    lengths: I32Array,
    keys: U64Array,
    index: I64Array,
    now: int,
) -> int:
    """Hash the tails of n sequences as `hash_tails` does, into `keys` (n, k), then answer as `table_longest`."""
    n = keys.shape[0]
    room = min(np.int64(desk[CAPACITY]), index.shape[0])
    if n > min(room, tokens.shape[0], ends.shape[0], salts.shape[0]) or keys.shape[1] != lengths.shape[0]:
        return -1
    return _longest(layout_of(desk), tokens, ends, salts, lengths, keys, index, now, True)


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
