"""Linear layers in W8A8: int8 weights scaled by output channel, activations rounded to int8 row by row as they come.

Symmetric, no calibration: one scale an output channel, one a row of activations, as vLLM's dynamic per-token W8A8.
Products are exact in int32 (`torch._int_mm`), so a row's result does not depend on what else is in the batch.

Activations have a few channels far above the rest, which cost the others their bits. So both sides are first turned by
a block-diagonal Hadamard matrix H: x W^T = (x H) (W H)^T, and an outlier is spread over its block (QuaRot, Ashkboos et
al. 2024, arXiv:2404.00456). SmolLM2-135M's perplexity on 4096 tokens of prose, in ratio to float32: 1.025 without,
1.0079 / 1.0046 / 1.0014 with blocks of 16 / 32 / 64; weights alone rounded 1.0010.

Halves the weights of bfloat16; whether it is also faster depends on the machine and the layer, see docs/models.md. The
output head stays as it is: its weights are often the embedding's, and its 49 152 outputs a row cost more to scale back
than int8 saves.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, Self

import torch
import torch.nn.functional as functional
from torch import nn

from flashnest.runtime.int8_kernels import MOST, TINY, round_rows, scale_back
from flashnest.runtime.paged_kernel import KvArray

MOST_BLOCK: Final = 64
"""Inputs turned together, at most; fewer where they do not divide the layer's."""

CUDA_ROWS: Final = 32
"""`torch._int_mm` on CUDA takes more than 16 rows; fewer are padded to this."""


class Int8Linear(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Takes the place of an `nn.Linear`. Rows in, rows out, in the dtype of the rows; sums are scaled in float32."""

    weight: torch.Tensor
    """int8 (outputs, inputs), turned."""
    scales: torch.Tensor
    """float32 (outputs,)."""
    bias: torch.Tensor | None

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> None:
        """`bias` float (outputs,) or None. To be made by `of`."""
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("scales", scales)
        self.register_buffer("bias", bias)

    @classmethod
    def of(cls, *linears: nn.Linear | Self) -> Self:
        """Return one layer with the outputs of `linears` side by side: they see the same rows, rounded once."""
        parts = [part if isinstance(part, cls) else cls._rounded(part) for part in linears]
        biases = [part.bias for part in parts]
        if all(bias is None for bias in biases):
            bias = None
        else:
            bias = torch.cat([p.scales.new_zeros(len(p.scales)) if p.bias is None else p.bias.float() for p in parts])
        return cls(torch.cat([p.weight for p in parts]), torch.cat([p.scales for p in parts]), bias)

    @classmethod
    def _rounded(cls, linear: nn.Linear) -> Self:
        quantised, scales = _int8(linear.weight.detach())
        return cls(quantised, scales, None if linear.bias is None else linear.bias.detach())

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return (..., outputs) of rows (..., inputs)."""
        quantised, row_scales = _int8(rows.reshape(-1, rows.shape[-1]))
        sums = _int_mm(quantised, self.weight.t())
        if not _has_kernels(rows):
            scaled = sums.float().mul_(row_scales[:, None]).mul_(self.scales)
            out = (scaled if self.bias is None else scaled.add_(self.bias)).to(rows.dtype)
        else:
            out = torch.empty(sums.shape, dtype=rows.dtype)
            bias = self.scales[:0] if self.bias is None else self.bias
            scale_back(sums.numpy(), row_scales.numpy(), self.scales.numpy(), bias.numpy(), _words(out))
        return out.view(*rows.shape[:-1], len(self.scales))


def quantise_linears(module: Any) -> int:
    """Replace each linear layer of `module` but its output head by its int8 form; returns how many there were.

    One layer at a time, so the peak is the module's own size and one layer.
    """
    head = module.get_output_embeddings()
    found = [
        (parent, name)
        for parent in module.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and child is not head
    ]
    with torch.no_grad():
        for parent, name in found:
            setattr(parent, name, Int8Linear.of(getattr(parent, name)))
    return len(found)


def is_quantised(module: nn.Module) -> bool:
    """Return whether `quantise_linears` has been here."""
    return any(isinstance(child, Int8Linear) for child in module.modules())


def _has_kernels(rows: torch.Tensor) -> bool:
    return rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.bfloat16)


def _words(tensor: torch.Tensor) -> KvArray:
    """Return a CPU tensor's memory, bfloat16 as its bits: numpy has no such type."""
    array: KvArray = (tensor if tensor.dtype == torch.float32 else tensor.view(torch.uint16)).numpy()
    return array


def _int8(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows (n, k), turned, as int8, and each row's scale, float32 (n,)."""
    count = rows.shape[-1]
    block = min(MOST_BLOCK, count & -count)  # the largest power of two that divides it
    if _has_kernels(rows):
        quantised, scales = torch.empty(rows.shape, dtype=torch.int8), torch.empty(len(rows))
        round_rows(_words(rows.contiguous()), block, quantised.numpy(), scales.numpy())
        return quantised, scales
    turned = _turned(rows.float(), block)
    scales = turned.abs().amax(dim=-1).clamp_min_(float(TINY)).div_(float(MOST))
    return (turned / scales[:, None]).round_().to(torch.int8), scales


def _turned(rows: torch.Tensor, block: int) -> torch.Tensor:
    """Multiply inputs i, i + k / block, i + 2 k / block, ... of each row by the Hadamard matrix, as the kernel does."""
    return (_hadamard(block, rows.device) @ rows.view(len(rows), block, -1)).view(rows.shape)


@lru_cache(maxsize=16)
def _hadamard(size: int, device: torch.device) -> torch.Tensor:
    """Return Sylvester's symmetric matrix of +-1, scaled to be orthogonal, float32 (size, size)."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return (matrix / len(matrix) ** 0.5).to(device)


def least_rows(rows: torch.Tensor) -> int:
    """Return how many rows the device's int8 product takes at least."""
    return CUDA_ROWS if rows.is_cuda else 0


def _int_mm(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    missing = max(0, least_rows(rows) - len(rows))
    padded = functional.pad(rows, (0, 0, 0, missing)) if missing else rows
    return torch._int_mm(padded, weight)[: len(rows)]
