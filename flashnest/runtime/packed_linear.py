"""Faster linear layers on the CPU: oneDNN kernels over prepacked weights, in place of MKL's over plain ones.

A decode step multiplies 1 to 100 rows with each matrix. Measured here (2 cores, AVX2, float32, quiet, interleaved,
medians of 5, milliseconds), SmolLM2's 576 -> 1536 layer and its 576 -> 49152 head:

    rows               1      4      8     24     72
    layer, MKL      0.57   1.10   0.96   0.95   1.85
    layer, packed   0.45   0.47   0.63   0.71   1.47
    head, MKL       14.9   36.5   41.6   49.0   92.6
    head, packed     9.7   11.8   14.4   20.2   38.8

bfloat16 is packed where the CPU has its instructions (AVX-512 BF16, AMX). SmolLM2's whole forward on 2 cores EPYC Zen 4
(1 / 8 / 32 / 128 / 512 tokens, ms, beside other work): 59 / 64 / 105 / 288 / 956 packed, 96 / 91 / 128 / 328 / 1037
plain, 107 / 115 / 210 / 535 / 1495 in float32, packed. Elsewhere bfloat16 has no kernels worth having (decision 0001).

A numba kernel of dot products (0.38 / 0.43 / 0.63 / 0.80 / 1.81 for the layer) was no reason for code of our own. The
packed copy costs the weights' size once more. Decides nothing about which model is served, and changes results only by
float rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

import torch
from torch import nn

Linear: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""Rows (n, inputs) to rows (n, outputs)."""

PACK_ROWS: Final = 32
"""The batch that oneDNN is told to lay the weights out for; 512 gives the same times."""


_BFLOAT16_CHECKS: Final = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
"""Of torch.cpu, private, but older than its public names: a torch without one counts as a CPU without it."""


def can_pack(module: nn.Module) -> bool:
    """Return whether this torch has the kernels and `module` is of a kind measured: see the table above."""
    weight = next(module.parameters())
    return (
        weight.device.type == "cpu"
        and (weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and has_bfloat16()))
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


def has_bfloat16() -> bool:
    """Return whether this CPU multiplies bfloat16 itself; without, oneDNN falls back to a slow reference."""
    return any(getattr(torch.cpu, check, bool)() for check in _BFLOAT16_CHECKS)


def pack(*layers: nn.Linear) -> Linear:
    """Return one packed product that gives the outputs of linear layers over the same input side by side.

    For modules of which `can_pack` says yes. The layers stay as they are; the copy does not follow their changes.
    """
    with torch.inference_mode():
        weights = torch.cat([layer.weight.detach() for layer in layers])
        packed = torch.ops.mkldnn._reorder_linear_weight(weights, PACK_ROWS)
    biases = [layer.bias for layer in layers]
    known = [
        layer.weight.new_zeros(len(layer.weight)) if b is None else b for layer, b in zip(layers, biases, strict=True)
    ]
    bias = None if all(b is None for b in biases) else torch.cat(known).detach()
    return partial(_linear, packed, bias)


def pack_linears(module: nn.Module) -> tuple[nn.Linear, ...]:
    """Give each linear layer of `module` a packed copy of its weights; returns the layers changed.

    The layers' parameters stay as they are and must not change while packed. `unpack_linears` undoes it.
    """
    if not can_pack(module):
        return ()
    packed = tuple(child for child in module.modules() if type(child) is nn.Linear)
    with torch.inference_mode():
        for child in packed:
            weights = torch.ops.mkldnn._reorder_linear_weight(child.weight.detach(), PACK_ROWS)
            child.forward = partial(_linear, weights, child.bias)
    return packed


def free_weights(module: nn.Module) -> None:
    """Empty the weights of the module's linear layers, whose packed copies serve; shared embeddings stay."""
    for child in module.modules():
        if type(child) is nn.Linear:
            child.weight = nn.Parameter(child.weight.new_empty(0), requires_grad=False)


def unpack_linears(layers: tuple[nn.Linear, ...]) -> None:
    """Give the layers their own forward back and free the copies."""
    for child in layers:
        del child.forward


def _linear(packed: torch.Tensor, bias: torch.Tensor | None, rows: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
    return result
