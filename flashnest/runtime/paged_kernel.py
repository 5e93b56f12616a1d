"""Paged attention over KV blocks in place, for the CPU: a flash-style pass in numba, no gather, no T x T mask.

Knows flat arrays and plans of whole numbers only, no torch. Every sequence goes through it, decoding or prefilling,
whatever the dtype; a token's result does not depend on what else is in the batch, bit for bit.

A task is one piece (a few tokens of one sequence) of one KV head. The query heads that share the KV head are rows
beside each other, so that a block is read once for all of them. `vector_tiles` says how K and V lie in a block. exp is
written out because numba calls libm for it one value at a time.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
import numpy.typing as npt
from numba.extending import overload

from flashnest.jit import fused_kernel, parallel_kernel
from flashnest.record import CHUNK_TOKENS, I32Array
from flashnest.runtime.vector_tiles import TILE_ROWS, FactorArray, WordArray, blend_tile, score_rows

F32Array = npt.NDArray[np.float32]
KvArray = npt.NDArray[np.float32] | npt.NDArray[np.uint16]
"""Flat single numbers: float32, or the bits of a 16-bit float."""
Layout = tuple[int, int, int, int, int, int, int, int, int]
"""The layer's first block, KV heads, query heads a KV head, head dim, words of a key, words of a query, and from token
to token: words of query, words of key, numbers of value."""

STORE_TOKENS: Final = 64
"""Above so many new tokens, threads share the copying of their K and V."""

_LOWEST = np.float32(-3.0e38)  # not -inf: these kernels are compiled with fastmath
_ZERO, _ONE = np.float32(0), np.float32(1)


def _rounded(weights: F32Array, factors: FactorArray) -> FactorArray:
    """Return `weights` as factors of the kind of `factors`: themselves, or written there as pairs of bfloat16."""
    raise NotImplementedError("compiled code only")


@overload(_rounded)  # type: ignore[untyped-decorator]  # numba has no types
def _rounded_typed(weights: Any, factors: Any) -> Any:
    def same(weights: Any, factors: Any) -> Any:
        return weights

    def bfloat16(weights: Any, factors: Any) -> Any:
        bits, numbers = weights.view(np.uint32), factors.view(np.uint16)
        for i in range(bits.shape[0]):
            numbers[i] = (bits[i] + np.uint32(0x7FFF) + ((bits[i] >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return factors

    return same if factors.dtype == numba.float32 else bfloat16


def _write(row: F32Array, share: np.float32, out: Any, at: int) -> None:
    """Write share x row to out[at:], rounded to out's kind."""
    raise NotImplementedError("compiled code only")


@overload(_write)  # type: ignore[untyped-decorator]  # numba has no types
def _write_typed(row: Any, share: Any, out: Any, at: Any) -> Any:
    def same(row: Any, share: Any, out: Any, at: Any) -> Any:
        for i in range(row.shape[0]):
            out[at + i] = row[i] * share

    def bfloat16(row: Any, share: Any, out: Any, at: Any) -> Any:
        for i in range(row.shape[0]):
            row[i] *= share
        bits = row.view(np.uint32)
        for i in range(row.shape[0]):
            out[at + i] = (bits[i] + np.uint32(0x7FFF) + ((bits[i] >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)

    return same if out.dtype == numba.float32 else bfloat16


@fused_kernel
def exp_below_zero(x: np.float32) -> np.float32:
    """Return exp(x) for x <= 0 within 2 units in the last place: Cephes' expf, in a form that vectorises."""
    x = max(x, np.float32(-87.0))
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + np.float32(1.0)
    power: np.float32 = np.int32((np.int32(n) + 127) << 23).view(np.float32)
    return np.float32(p * power)


@fused_kernel
def _blend(
    weights: FactorArray, values: WordArray, value: int, ahead: int, width: int, decays: F32Array, sums: F32Array
) -> None:
    rows = decays.shape[0]
    stride = weights.shape[0] // rows
    row = 0
    while row + TILE_ROWS <= rows:
        weight, total = row * stride, row * width
        blend_tile(TILE_ROWS, weights, weight, stride, values, value, width, decays, row, sums, total, ahead)
        row += TILE_ROWS
    weight, total, left = row * stride, row * width, rows - row
    if left == 5:
        blend_tile(5, weights, weight, stride, values, value, width, decays, row, sums, total, ahead)
    elif left == 4:
        blend_tile(4, weights, weight, stride, values, value, width, decays, row, sums, total, ahead)
    elif left == 3:
        blend_tile(3, weights, weight, stride, values, value, width, decays, row, sums, total, ahead)
    elif left == 2:
        blend_tile(2, weights, weight, stride, values, value, width, decays, row, sums, total, ahead)
    elif left == 1:
        blend_tile(1, weights, weight, stride, values, value, width, decays, row, sums, total, ahead)


@fused_kernel
def _weigh(scores: F32Array, seen: int, group: int, peaks: F32Array, decays: F32Array, totals: F32Array) -> None:
    """Turn scores into weights in place; seen: slots of this block that the first token sees, the next one more."""
    rows = peaks.shape[0]
    for row in range(rows):
        visible, at = seen + row // group, row * CHUNK_TOKENS
        peak = peaks[row]
        for j in range(CHUNK_TOKENS):
            score = scores[at + j] if j < visible else _LOWEST
            scores[at + j] = score
            peak = max(peak, score)
        decays[row] = peaks[row] - peak
        peaks[row] = peak
    for row in range(rows):
        decays[row] = exp_below_zero(decays[row])
    for row in range(rows):
        at, peak, total = row * CHUNK_TOKENS, peaks[row], _ZERO
        for j in range(CHUNK_TOKENS):
            score = scores[at + j]
            weight = exp_below_zero(min(score - peak, _ZERO)) if score > _LOWEST else _ZERO
            scores[at + j] = weight
            total += weight
        totals[row] = totals[row] * decays[row] + total


@fused_kernel
def _attend_piece(
    layout: Layout,
    query: FactorArray,
    keys: WordArray,
    values: WordArray,
    table: I32Array,
    piece: I32Array,
    head: int,
    scale: np.float32,
    out: KvArray,
) -> None:
    first_block, heads, group, width, key_words, query_words, query_stride, _, _ = layout
    lo, tokens, seen = piece[1], piece[2], piece[3]
    rows, block_words = tokens * group, key_words * CHUNK_TOKENS
    folded = np.empty(rows * query_words, query.dtype)
    scores = np.empty(rows * CHUNK_TOKENS, np.float32)
    factors = np.empty(scores.shape[0] * query_words // width, query.dtype)
    sums = np.zeros(rows * width, np.float32)
    peaks = np.full(rows, _LOWEST, np.float32)
    totals = np.zeros(rows, np.float32)
    decays = np.empty(rows, np.float32)
    for row in range(rows):
        start = (lo + row // group) * query_stride + (head * group + row % group) * query_words
        for i in range(query_words):
            folded[row * query_words + i] = query[start + i]
    blocks = (seen + tokens + CHUNK_TOKENS - 2) // CHUNK_TOKENS
    for block in range(blocks):
        place = (first_block + table[block]) * heads + head
        following = (first_block + table[min(block + 1, blocks - 1)]) * heads + head
        place, ahead = place * block_words, (following - place) * block_words
        score_rows(folded, keys, place, ahead, key_words, scale, rows, scores)
        _weigh(scores, seen - block * CHUNK_TOKENS, group, peaks, decays, totals)
        _blend(_rounded(scores, factors), values, place, ahead, width, decays, sums)
    for row in range(rows):
        at = (((lo + row // group) * heads + head) * group + row % group) * width
        _write(sums[row * width : (row + 1) * width], _ONE / totals[row], out, at)


@fused_kernel
def _attend_share(
    layout: Layout,
    query: FactorArray,
    keys: WordArray,
    values: WordArray,
    tables: I32Array,
    pieces: I32Array,
    first: int,
    end: int,
    scale: np.float32,
    out: KvArray,
) -> None:
    heads = layout[1]
    for task in range(first, end):
        piece = pieces[task // heads]
        _attend_piece(layout, query, keys, values, tables[piece[0]], piece, task % heads, scale, out)


@fused_kernel
def _store(
    layout: Layout,
    key: WordArray,
    value: KvArray,
    keys: WordArray,
    value_numbers: KvArray,
    slots: I32Array,
    first: int,
    end: int,
) -> None:
    first_block, heads, _, width, key_words, _, _, key_stride, value_stride = layout
    pair = width // key_words
    for t in range(first, end):
        block, offset = (first_block + slots[0, t]) * heads, slots[1, t]
        for head in range(heads):
            place = (block + head) * key_words * CHUNK_TOKENS
            for i in range(key_words):
                keys[place + i * CHUNK_TOKENS + offset] = key[t * key_stride + head * key_words + i]
            place = (block + head) * CHUNK_TOKENS * width + offset // pair * pair * width + offset % pair
            for i in range(width):
                value_numbers[place + i * pair] = value[t * value_stride + head * width + i]


@parallel_kernel
def attend(
    alone: bool,
    layout: Layout,
    query: FactorArray,
    key: WordArray,
    value: KvArray,
    keys: WordArray,
    values: WordArray,
    value_numbers: KvArray,
    slots: I32Array,
    tables: I32Array,
    pieces: I32Array,
    shares: I32Array,
    scale: np.float32,
    out: KvArray,
) -> None:
    """Store K and V of the new tokens in their blocks, then attend causally, each sequence over its own blocks.

    alone: do it all in the calling thread, because there is too little to wake another; query, key, value: flat, a
    token's heads side by side, `layout`'s stride from token to token; keys, values: the whole pool, flat;
    value_numbers: the same memory as values, number by number; slots int32 (2, T): each new token's block and place in
    it; tables int32 (R, width); pieces int32 (n, 4): sequence, first token, tokens, and how many slots the first token
    sees; shares int32 (threads + 1,): bounds of each thread's tasks, a task being piece * kv heads + kv head; out: flat
    (T, heads, head dim), written at the pieces' tokens only.

    Call it from one thread at a time: numba's fallback thread pool (workqueue, where no OpenMP is found) ends the
    process when two threads launch parallel work at once.
    """
    threads, tokens = shares.shape[0] - 1, slots.shape[1]
    if tokens <= STORE_TOKENS:
        _store(layout, key, value, keys, value_numbers, slots, 0, tokens)
    else:
        for part in numba.prange(threads):
            first, end = tokens * part // threads, tokens * (part + 1) // threads
            _store(layout, key, value, keys, value_numbers, slots, first, end)
    if alone:
        _attend_share(layout, query, keys, values, tables, pieces, 0, shares[threads], scale, out)
    else:
        for part in numba.prange(threads):
            _attend_share(layout, query, keys, values, tables, pieces, shares[part], shares[part + 1], scale, out)
