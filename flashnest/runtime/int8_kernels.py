"""What a W8A8 layer does on the CPU around its int8 product: turn and round rows, scale sums back, one pass each.

Values are float32, or bfloat16 as its bits in uint16; sums int32. Few values run on the calling thread, many are shared
out (`lean_kernels.SERIAL_VALUES`). A row is computed alike whatever stands beside it. One thread calls these at a time.
"""

from __future__ import annotations

from typing import Final

import numba
import numpy as np
import numpy.typing as npt

from flashnest.jit import fused_kernel, parallel_kernel
from flashnest.record import I32Array
from flashnest.runtime.lean_kernels import SERIAL_VALUES, read_number, write_number
from flashnest.runtime.paged_kernel import F32Array, KvArray

I8Array = npt.NDArray[np.int8]

TINY: Final = np.float32(3e-36)
"""Stands in for the largest value of a row of zeros; still a normal number after division by 127."""

MOST: Final = np.float32(127)
"""Scales are symmetric: -128 is not used."""


@fused_kernel
def _cross(low: F32Array, high: F32Array) -> None:
    """Sums to `low`, differences to `high`. Two arrays, so that LLVM vectorises: one array takes twice the time."""
    for i in range(low.shape[0]):
        a, b = low[i], high[i]
        low[i], high[i] = a + b, a - b


@fused_kernel
def _round_row(rows: KvArray, block: int, out: I8Array, scales: F32Array, t: int) -> None:
    """Walsh-Hadamard along the first axis of the row seen as (block, n), so that each step runs over neighbours."""
    count = rows.shape[1]
    turned = np.empty(count, np.float32)
    for i in range(count):
        turned[i] = read_number(rows, t, i)
    reach = count // block
    while reach < count:
        for start in range(0, count, 2 * reach):
            _cross(turned[start : start + reach], turned[start + reach : start + 2 * reach])
        reach *= 2
    largest = TINY
    for i in range(count):
        largest = max(largest, abs(turned[i]))
    factor = MOST / largest
    for i in range(count):
        out[t, i] = np.int8(np.rint(turned[i] * factor))
    scales[t] = largest / (MOST * np.sqrt(np.float32(block)))


@fused_kernel
def _round_serial(rows: KvArray, block: int, out: I8Array, scales: F32Array) -> None:
    for t in range(rows.shape[0]):
        _round_row(rows, block, out, scales, t)


@parallel_kernel
def _round_parallel(rows: KvArray, block: int, out: I8Array, scales: F32Array) -> None:
    for t in numba.prange(rows.shape[0]):
        _round_row(rows, block, out, scales, t)


def round_rows(rows: KvArray, block: int, out: I8Array, scales: F32Array) -> None:
    """Turn rows (n, k) and write them as int8 (n, k), with each row's scale, float32 (n,).

    block: a power of two that divides k; inputs i, i + k / block, i + 2 k / block, ... are turned together.
    """
    run = _round_serial if rows.size <= SERIAL_VALUES else _round_parallel
    run(rows, block, out, scales)


@fused_kernel
def _scale_row(sums: I32Array, row_scales: F32Array, scales: F32Array, bias: F32Array, out: KvArray, t: int) -> None:
    scale = row_scales[t]
    if bias.shape[0]:
        for i in range(sums.shape[1]):
            write_number(out, t, i, np.float32(sums[t, i]) * scale * scales[i] + bias[i])
    else:
        for i in range(sums.shape[1]):
            write_number(out, t, i, np.float32(sums[t, i]) * scale * scales[i])


@fused_kernel
def _scale_serial(sums: I32Array, row_scales: F32Array, scales: F32Array, bias: F32Array, out: KvArray) -> None:
    for t in range(sums.shape[0]):
        _scale_row(sums, row_scales, scales, bias, out, t)


@parallel_kernel
def _scale_parallel(sums: I32Array, row_scales: F32Array, scales: F32Array, bias: F32Array, out: KvArray) -> None:
    for t in numba.prange(sums.shape[0]):
        _scale_row(sums, row_scales, scales, bias, out, t)


def scale_back(sums: I32Array, row_scales: F32Array, scales: F32Array, bias: F32Array, out: KvArray) -> None:
    """Write sums int32 (n, m) times row_scales (n,) and scales (m,), plus bias (m,) or (0,), to out (n, m)."""
    run = _scale_serial if sums.size <= SERIAL_VALUES else _scale_parallel
    run(sums, row_scales, scales, bias, out)
