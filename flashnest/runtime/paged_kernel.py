"""Attention of few query tokens over KV blocks in place, for the CPU: a flash-style pass in numba, no gather.

Knows arrays only, no torch. Chosen over gathering into contiguous K and V + torch's SDPA because of its time a layer at
8 sequences x 500 tokens of context, 9 query heads over 3 KV heads of 64, fp32, 2 cores (AVX2), each call after a torch
GEMM as in a forward. Milliseconds: fastest tenth on a quiet machine | median while other work took a core and more.

    new tokens a sequence        1            2            3            5            9            16
    this kernel              0.63 | 1.7   0.93 | 4.8   1.4 | 5.3    1.9 | 6.7    2.6 | 8.6    4.0 | 12
    gather + folded SDPA     5.0 | 10     5.2 | 9.0    1.8 | 16     2.1 | 19     2.3 | 18     2.8 | 18

numba's thread pool and torch's are two OpenMP runtimes. Each spins after its work by default, and on 2 cores they then
wait for one another: few spins (`app.compute.OPENMP_SPINS`) or `OMP_WAIT_POLICY=PASSIVE`, set before torch is loaded,
end that.

The query heads that share a KV head are folded together, so a block is read once for all of them. exp is written out
because numba calls libm for it one value at a time, which was half of the time at 9 tokens.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba.extending import overload

from flashnest.jit import fused_kernel, parallel_kernel
from flashnest.record import CHUNK_TOKENS, I32Array

F32Array = npt.NDArray[np.float32]
KvArray = npt.NDArray[np.float32] | npt.NDArray[np.uint16]
"""K or V of one layer, (blocks, kv heads, 32, head dim): float32, or bfloat16 bits as uint16."""

_LOWEST = np.float32(-3.0e38)  # not -inf: these kernels are compiled with fastmath
_ZERO, _ONE = np.float32(0), np.float32(1)


def _widen(block: Any, scratch: Any) -> Any:
    """Return `block` as float32 (32, head dim): itself, or its bfloat16 bits shifted into `scratch`."""
    raise NotImplementedError("compiled code only")


@overload(_widen)  # type: ignore[untyped-decorator]  # numba has no types
def _widen_typed(block: Any, scratch: Any) -> Any:
    def same(block: Any, scratch: Any) -> Any:
        return block

    def shift(block: Any, scratch: Any) -> Any:
        for j in range(block.shape[0]):
            for c in range(block.shape[1]):
                scratch[j, c] = np.uint32(np.uint32(block[j, c]) << 16).view(np.float32)
        return scratch

    return same if block.dtype == numba.float32 else shift


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
def _scores(query: F32Array, keys: F32Array, scores: F32Array) -> None:
    for j in range(0, CHUNK_TOKENS, 4):  # four dot products at a time share the loads of the query
        a, b, c, d = _ZERO, _ZERO, _ZERO, _ZERO
        for i in range(query.shape[0]):
            q = query[i]
            a += q * keys[j, i]
            b += q * keys[j + 1, i]
            c += q * keys[j + 2, i]
            d += q * keys[j + 3, i]
        scores[j], scores[j + 1], scores[j + 2], scores[j + 3] = a, b, c, d


@fused_kernel
def _weigh(scores: F32Array, visible: int, peak: np.float32) -> np.float32:
    total = _ZERO
    for j in range(CHUNK_TOKENS):
        weight = exp_below_zero(min(scores[j] - peak, _ZERO))
        weight = weight if j < visible else _ZERO
        scores[j] = weight
        total += weight
    return total


@fused_kernel
def _accumulate(weights: F32Array, values: F32Array, decay: np.float32, out: F32Array) -> None:
    for i in range(out.shape[0]):
        out[i] *= decay
    for j in range(0, CHUNK_TOKENS, 8):  # eight rows at a time share one load and store of the sum
        a, b, c, d = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
        e, f, g, h = weights[j + 4], weights[j + 5], weights[j + 6], weights[j + 7]
        for i in range(out.shape[0]):
            out[i] += (
                a * values[j, i]
                + b * values[j + 1, i]
                + c * values[j + 2, i]
                + d * values[j + 3, i]
                + e * values[j + 4, i]
                + f * values[j + 5, i]
                + g * values[j + 6, i]
                + h * values[j + 7, i]
            )


@fused_kernel
def _attend_head(
    query: F32Array,
    keys: KvArray,
    values: KvArray,
    table: I32Array,
    context: int,
    lo: int,
    hi: int,
    head: int,
    scale: np.float32,
    out: F32Array,
) -> None:
    """One sequence, tokens lo..hi-1, and one KV head; the rest as in `attend`. Loops, not slices: they compile fast."""
    width = query.shape[2]
    group = query.shape[1] // keys.shape[1]
    rows = (hi - lo) * group
    folded = np.empty((rows, width), np.float32)
    sums = np.empty((rows, width), np.float32)
    peaks = np.empty(rows, np.float32)
    totals = np.empty(rows, np.float32)
    weights = np.empty((rows, CHUNK_TOKENS), np.float32)
    decays = np.empty(rows, np.float32)
    scratch = np.empty((CHUNK_TOKENS, width), np.float32)
    for row in range(rows):
        peaks[row], totals[row] = _LOWEST, _ZERO
        for i in range(width):
            folded[row, i] = query[lo + row // group, head * group + row % group, i] * scale
            sums[row, i] = _ZERO
    for block in range((context + CHUNK_TOKENS - 1) // CHUNK_TOKENS):
        k = _widen(keys[table[block], head], scratch)
        seen = context - (hi - lo) + 1 - block * CHUNK_TOKENS  # slots of this block that the first token sees
        for row in range(rows):
            visible = min(CHUNK_TOKENS, seen + row // group)
            _scores(folded[row], k, weights[row])
            peak = peaks[row]
            for j in range(visible):
                peak = max(peak, weights[row, j])
            decays[row] = exp_below_zero(peaks[row] - peak)
            peaks[row] = peak
            totals[row] = totals[row] * decays[row] + _weigh(weights[row], visible, peak)
        v = _widen(values[table[block], head], scratch)
        for row in range(rows):
            _accumulate(weights[row], v, decays[row], sums[row])
    for row in range(rows):
        share = _ONE / totals[row]
        for i in range(width):
            out[lo + row // group, head * group + row % group, i] = sums[row, i] * share


@parallel_kernel
def attend(
    query: F32Array,
    keys: KvArray,
    values: KvArray,
    tables: I32Array,
    context_lens: I32Array,
    q_starts: I32Array,
    rows: I32Array,
    scale: np.float32,
    out: F32Array,
) -> None:
    """Attend causally for the sequences named in `rows`, each over its own blocks.

    query and out float32 (T, heads, head dim); keys and values (blocks, kv heads, 32, head dim);
    tables int32 (R, width), context_lens int32 (R,), q_starts int32 (R + 1,) as in `ForwardBatch`; rows int32 (n,).
    Writes `out` at those sequences' tokens only. Call it from one thread at a time: numba's fallback thread pool
    (workqueue, where no OpenMP is found) ends the process when two threads launch parallel work at once.
    """
    heads = keys.shape[1]
    for task in numba.prange(rows.shape[0] * heads):
        row, head = rows[task // heads], task % heads
        lo, hi = q_starts[row], q_starts[row + 1]
        _attend_head(query, keys, values, tables[row], context_lens[row], lo, hi, head, scale, out)


@fused_kernel
def store(fresh: KvArray, pool: KvArray, blocks: I32Array, offsets: I32Array) -> None:
    """Copy the new tokens' K or V into their slots: fresh (T, kv heads, head dim) to pool[blocks[t], :, offsets[t]]."""
    for t in range(fresh.shape[0]):
        for head in range(fresh.shape[1]):
            for i in range(fresh.shape[2]):
                pool[blocks[t], head, offsets[t], i] = fresh[t, head, i]
