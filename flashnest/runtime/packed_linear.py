"""Faster linear layers on the CPU: oneDNN kernels over prepacked weights, in place of MKL's over plain ones.

A decode step multiplies 2 to 100 rows with each matrix. Measured here (2 cores, AVX2, float32, interleaved, with other
work running; least of 5, milliseconds), SmolLM2's 576 -> 1536 layer and its 576 -> 49152 head:

    rows               1      4      8     24     72    256
    layer, MKL      0.54   1.13   1.67   2.41   2.99   7.12
    layer, packed   0.72   0.73   0.87   1.39   2.06   6.10
    head, MKL         21     57    124     94    135    571
    head, packed      22     30     35     32     65    303

So one row keeps MKL's kernel and the plain weights; the packed copy costs the weights' size once more. Decides nothing
about which model is served, and changes results only by float rounding.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import torch
from torch import nn

PACK_ROWS: Final = 32
"""The batch that oneDNN is told to lay the weights out for; 512 gives the same times."""


def can_pack(module: nn.Module) -> bool:
    """Return whether this torch has the kernels and `module` is of the kind measured: float32 on the CPU."""
    weight = next(module.parameters())
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


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
            child.forward = partial(_linear, weights, child.weight, child.bias)
    return packed


def unpack_linears(layers: tuple[nn.Linear, ...]) -> None:
    """Give the layers their own forward back and free the copies."""
    for child in layers:
        del child.forward


def _linear(packed: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, rows: torch.Tensor) -> torch.Tensor:
    if rows.numel() == rows.shape[-1]:
        return nn.functional.linear(rows, weight, bias)
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
    return result
