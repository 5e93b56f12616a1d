"""Linear layers in bfloat16 by the register tiles of attention: one copy of the weights, read in order.

For CPUs with AVX-512 BF16 and no AMX. A row's outputs do not depend on what else is in the batch, bit for bit, so a
drafted token is scored as an undrafted one is. oneDNN takes another kernel for each number of rows.

SmolLM2's four products of all 30 layers, and its head, against oneDNN over packed weights (2 cores EPYC Zen 4, beside
niced work, interleaved, medians of 9, of 3 from 128 rows on, ms):

    rows                1      4      8     16     32     64    128    512
    layers, oneDNN   17.9   17.0   22.2   21.7   32.4   54.6   95.6    310
    layers, tiles    10.6   13.7   12.9   15.8   29.3   49.9   91.2    325
    head, oneDNN      3.3    2.7    3.5    3.8    6.4   10.6   22.7     91
    head, tiles       2.0    2.4    3.0    3.2    6.7   15.4   29.5    100
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
import torch

from flashnest.jit import fused_kernel, parallel_kernel
from flashnest.record import CHUNK_TOKENS, F32Array, I32Array
from flashnest.runtime.lean_kernels import write_number
from flashnest.runtime.paged_kernel import KvArray
from flashnest.runtime.vector_tiles import HAS_BFLOAT16_DOT, score_rows

TILE_OUTPUTS: Final = CHUNK_TOKENS
"""Outputs of a tile: what attention's tile has in keys."""

ROWS_AT_ONCE: Final = 48
"""Rows that go through one tile's weights before the next rows do: their inputs stay in a core's second cache."""


def can_tile(layer: torch.nn.Linear) -> bool:
    """Return whether `layer` is of a kind, on a CPU, for which tiles are the better choice.

    AMX multiplies an order of magnitude faster than the instruction used here, and oneDNN has it.
    """
    weight = layer.weight
    amx = getattr(torch.cpu, "_is_amx_tile_supported", bool)()
    return (
        HAS_BFLOAT16_DOT
        and not amx
        and weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and weight.shape[1] % 2 == 0
    )


class TileLinear:
    """The product with the weights of linear layers over the same input, outputs side by side. One thread calls it."""

    def __init__(self, *layers: torch.nn.Linear) -> None:
        """Copy the layers' weights; `can_tile` says of which layers."""
        with torch.inference_mode():
            weight = torch.cat([layer.weight.detach() for layer in layers])
        self.outputs, inputs = weight.shape
        self._words = inputs // 2
        tiles = -(-self.outputs // TILE_OUTPUTS)
        padded = np.zeros((tiles * TILE_OUTPUTS, self._words), np.int32)
        padded[: self.outputs] = weight.view(torch.int32).numpy()
        tiled = padded.reshape(tiles, TILE_OUTPUTS, self._words).transpose(0, 2, 1)
        self._weights: I32Array = np.ascontiguousarray(tiled).reshape(-1)
        self._biases = _biases(layers)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return bfloat16 (n, outputs) of contiguous bfloat16 rows (n, inputs)."""
        out = rows.new_empty(len(rows), self.outputs)
        inputs = rows.view(torch.int32).numpy().reshape(-1)
        numbers = out.view(torch.uint16).numpy()
        _product(inputs, self._weights, self._words, self._biases, numba.get_num_threads(), numbers)
        return out


def _biases(layers: tuple[Any, ...]) -> F32Array:
    """Return float32 (outputs,), or (0,) where no layer has a bias."""
    if all(layer.bias is None for layer in layers):
        return np.zeros(0, np.float32)
    parts = [torch.zeros(len(la.weight)) if la.bias is None else la.bias.detach().float() for la in layers]
    array: F32Array = torch.cat(parts).numpy()
    return array


@fused_kernel
def _write_tile(sums: F32Array, biases: F32Array, first_row: int, rows: int, first: int, out: KvArray) -> None:
    outputs = min(TILE_OUTPUTS, out.shape[1] - first)
    for row in range(rows):
        at = row * TILE_OUTPUTS
        if biases.shape[0]:
            for i in range(outputs):
                sums[at + i] += biases[first + i]
        for i in range(outputs):
            write_number(out, first_row + row, first + i, sums[at + i])


@fused_kernel
def _product_share(
    inputs: I32Array, weights: I32Array, words: int, biases: F32Array, first_tile: int, end_tile: int, out: KvArray
) -> None:
    rows, tile_words = out.shape[0], words * TILE_OUTPUTS
    sums = np.empty(ROWS_AT_ONCE * TILE_OUTPUTS, np.float32)
    for tile in range(first_tile, end_tile):
        for row in range(0, rows, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, rows - row)
            ahead = tile_words if row == 0 else 0  # the next tile's weights come while the first rows are computed
            some = inputs[row * words : (row + count) * words]
            score_rows(some, weights, tile * tile_words, ahead, words, np.float32(1), count, sums)
            _write_tile(sums, biases, row, count, tile * TILE_OUTPUTS, out)


@parallel_kernel
def _product(inputs: I32Array, weights: I32Array, words: int, biases: F32Array, threads: int, out: KvArray) -> None:
    """Write inputs x weights + biases to out (n, outputs).

    inputs flat: `words` pairs of bfloat16 a row; weights flat: tile by tile, in each word by word, 32 outputs side by
    side, padded with zeros.
    """
    tiles = (out.shape[1] + TILE_OUTPUTS - 1) // TILE_OUTPUTS
    for part in numba.prange(threads):
        first, end = tiles * part // threads, tiles * (part + 1) // threads
        _product_share(inputs, weights, words, biases, first, end, out)
