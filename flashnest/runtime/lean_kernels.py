"""What a decoder layer does between its matrix products, each in one pass over memory: norm, rope, SwiGLU.

A row is a token. Values are float32, or bfloat16 as its bits in uint16; sums are float32 always, so bfloat16 is rounded
once where a Hugging Face module rounds after every operation. Few rows run on the calling thread, because waking a
second one costs more than it saves; many are shared out. One thread calls these at a time.

numba's threads are torch's: torch makes its libgomp's symbols global, and numba's OpenMP layer, loaded later, takes
them. Two pools would spin against one another between a layer's operations (tests/runtime/test_one_thread_pool.py).
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from numba.extending import overload

from flashnest.jit import fused_kernel, parallel_kernel
from flashnest.record import I64Array
from flashnest.runtime.paged_kernel import F32Array, KvArray, exp_below_zero

SERIAL_VALUES: Final = 16384
"""Up to so many values a call stays on one thread: 10 to 20 us of work, where handing half of it over takes 5."""

_ONE = np.float32(1)


def read_number(values: Any, row: int, at: int) -> Any:
    """Return values[row, at] as float32."""
    raise NotImplementedError("compiled code only")


def write_number(values: Any, row: int, at: int, value: Any) -> None:
    """Set values[row, at] to a float32, rounded to nearest even where it is bfloat16."""
    raise NotImplementedError("compiled code only")


@overload(read_number)  # type: ignore[untyped-decorator]  # numba has no types
def _read_number_typed(values: Any, row: int, at: int) -> Any:
    def same(values: Any, row: int, at: int) -> Any:
        return values[row, at]

    def widened(values: Any, row: int, at: int) -> Any:
        return np.uint32(np.uint32(values[row, at]) << np.uint32(16)).view(np.float32)

    return same if values.dtype == numba.float32 else widened


@overload(write_number)  # type: ignore[untyped-decorator]
def _write_number_typed(values: Any, row: int, at: int, value: Any) -> Any:
    def same(values: Any, row: int, at: int, value: Any) -> None:
        values[row, at] = value

    def narrowed(values: Any, row: int, at: int, value: Any) -> None:
        bits = np.float32(value).view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        values[row, at] = np.uint16((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))

    return same if values.dtype == numba.float32 else narrowed


@fused_kernel
def _add_norm_row(
    hidden: F32Array, fresh: KvArray, weight: F32Array, epsilon: np.float32, out: KvArray, t: int
) -> None:
    width = hidden.shape[1]
    squares = np.float32(0)
    for i in range(width):
        value = hidden[t, i] + read_number(fresh, t, i)
        hidden[t, i] = value
        squares += value * value
    scale = _ONE / np.sqrt(squares / np.float32(width) + epsilon)
    for i in range(width):
        write_number(out, t, i, hidden[t, i] * scale * weight[i])


@fused_kernel
def _add_norm_serial(hidden: F32Array, fresh: KvArray, weight: F32Array, epsilon: np.float32, out: KvArray) -> None:
    for t in range(hidden.shape[0]):
        _add_norm_row(hidden, fresh, weight, epsilon, out, t)


@parallel_kernel
def _add_norm_parallel(hidden: F32Array, fresh: KvArray, weight: F32Array, epsilon: np.float32, out: KvArray) -> None:
    for t in numba.prange(hidden.shape[0]):
        _add_norm_row(hidden, fresh, weight, epsilon, out, t)


def add_norm(hidden: F32Array, fresh: KvArray, weight: F32Array, epsilon: np.float32, out: KvArray) -> None:
    """Add a block's output to the residual stream and write the sum's RMS norm times `weight` to `out`.

    hidden float32 (T, width), changed; fresh and out (T, width); weight float32 (width,). RMSNorm as in Zhang and
    Sennrich, 2019.
    """
    run = _add_norm_serial if hidden.size <= SERIAL_VALUES else _add_norm_parallel
    run(hidden, fresh, weight, epsilon, out)


@fused_kernel
def _rotate_row(
    qkv: KvArray, cosines: F32Array, sines: F32Array, norms: F32Array, heads: int, epsilon: np.float32, t: int
) -> None:
    half = cosines.shape[1]
    for head in range(heads):
        first = head * 2 * half
        second = first + half
        scale = _ONE
        if norms.shape[0]:
            squares = np.float32(0)
            for i in range(2 * half):
                value = read_number(qkv, t, first + i)
                squares += value * value
            scale = _ONE / np.sqrt(squares / np.float32(2 * half) + epsilon)
            for i in range(half):
                a = read_number(qkv, t, first + i) * scale * norms[head, i]
                b = read_number(qkv, t, second + i) * scale * norms[head, half + i]
                write_number(qkv, t, first + i, a * cosines[t, i] - b * sines[t, i])
                write_number(qkv, t, second + i, b * cosines[t, i] + a * sines[t, i])
        else:
            for i in range(half):
                a, b = read_number(qkv, t, first + i), read_number(qkv, t, second + i)
                write_number(qkv, t, first + i, a * cosines[t, i] - b * sines[t, i])
                write_number(qkv, t, second + i, b * cosines[t, i] + a * sines[t, i])


@fused_kernel
def _rotate_serial(
    qkv: KvArray, cosines: F32Array, sines: F32Array, norms: F32Array, heads: int, epsilon: np.float32
) -> None:
    for t in range(qkv.shape[0]):
        _rotate_row(qkv, cosines, sines, norms, heads, epsilon, t)


@parallel_kernel
def _rotate_parallel(
    qkv: KvArray, cosines: F32Array, sines: F32Array, norms: F32Array, heads: int, epsilon: np.float32
) -> None:
    for t in numba.prange(qkv.shape[0]):
        _rotate_row(qkv, cosines, sines, norms, heads, epsilon, t)


def rotate(qkv: KvArray, cosines: F32Array, sines: F32Array, norms: F32Array, heads: int, epsilon: np.float32) -> None:
    """Turn the first `heads` heads of each row by its token's angles (rope, Su et al., 2021, halves as in Llama).

    qkv (T, width), changed: queries, then keys, then values, head by head; cosines and sines float32 (T, head dim / 2);
    norms float32 (heads, head dim): weights of an RMS norm that goes before, or (0, 0) for none (Qwen3 has it).
    """
    run = _rotate_serial if qkv.size <= SERIAL_VALUES else _rotate_parallel
    run(qkv, cosines, sines, norms, heads, epsilon)


@fused_kernel
def _swiglu_row(gate_up: KvArray, out: KvArray, t: int) -> None:
    width = out.shape[1]
    for i in range(width):
        gate = read_number(gate_up, t, i)
        small = exp_below_zero(-abs(gate))
        share = _ONE / (_ONE + small)
        share = share if gate >= 0 else small * share
        write_number(out, t, i, gate * share * read_number(gate_up, t, width + i))


@fused_kernel
def _swiglu_serial(gate_up: KvArray, out: KvArray) -> None:
    for t in range(out.shape[0]):
        _swiglu_row(gate_up, out, t)


@parallel_kernel
def _swiglu_parallel(gate_up: KvArray, out: KvArray) -> None:
    for t in numba.prange(out.shape[0]):
        _swiglu_row(gate_up, out, t)


def swiglu(gate_up: KvArray, out: KvArray) -> None:
    """Write silu(gate) * up to `out` (T, width); gate_up (T, 2 * width): gates, then ups (Shazeer, 2020)."""
    run = _swiglu_serial if out.size <= SERIAL_VALUES else _swiglu_parallel
    run(gate_up, out)


_PIECE = 512


@fused_kernel
def _best_of_row(logits: KvArray, row: int) -> int:
    best, where = np.float32(-3.4e38), 0
    for start in range(0, logits.shape[1], _PIECE):  # a piece's maximum vectorises, the place of it does not
        end = min(start + _PIECE, logits.shape[1])
        peak = np.float32(-3.4e38)
        for i in range(start, end):
            peak = max(peak, read_number(logits, row, i))
        if peak > best:
            best, where = peak, start
    for i in range(where, min(where + _PIECE, logits.shape[1])):
        if read_number(logits, row, i) == best:
            return i
    return 0


@parallel_kernel
def _best_parallel(logits: KvArray, out: I64Array) -> None:
    for row in numba.prange(logits.shape[0]):
        out[row] = _best_of_row(logits, row)


@fused_kernel
def _best_serial(logits: KvArray, out: I64Array) -> None:
    for row in range(logits.shape[0]):
        out[row] = _best_of_row(logits, row)


def best_of_rows(logits: KvArray) -> I64Array:
    """Return each row's arg max, int64 (S,), the first of equals; logits (S, vocab). 0 where all are NaN.

    torch's own took 20 ms for 160 rows of 49152 in bfloat16, as long as the head's product.
    """
    out = np.empty(len(logits), np.int64)
    run = _best_serial if len(logits) == 1 else _best_parallel
    run(logits, out)
    return out
