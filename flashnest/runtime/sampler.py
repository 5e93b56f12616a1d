"""From logits to the distribution that a request asked for, and the random numbers that belong to its positions.

Draws no token (`verify` does) and keeps no state: the number for a position is a hash of (seed, position), so the
output for a seed depends neither on the batch nor on how many draft tokens were verified together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flashnest.hashing import mix64_many
from flashnest.record import F64Array

if TYPE_CHECKING:
    import torch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

NUCLEUS_HEAD = 1024
"""Tokens looked at first for top-p: a partial sort of 49 152 logits takes a fifth of the time of a full one."""


def target_probs(logits: torch.Tensor, temperature: float, top_p: float) -> F64Array:
    """Return softmax(logits / temperature) cut to its nucleus, float64 (n, vocab), each row summing to 1.

    logits float32 (n, vocab) on the CPU; temperature > 0; top_p in (0, 1]: the fewest most likely tokens whose
    probabilities reach top_p stay (of equal ones the lower id first). Raises ValueError for other values.
    """
    if temperature <= 0.0 or not 0.0 < top_p <= 1.0:
        raise ValueError(f"temperature must be above 0 and top_p in (0, 1], got {temperature} and {top_p}")
    probs = (logits.double() / temperature).softmax(dim=-1)
    if top_p < 1.0:
        probs = _nucleus(probs, top_p)
    result: F64Array = probs.numpy()
    return result


def _nucleus(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    head = min(NUCLEUS_HEAD, probs.shape[-1])
    values, ids = probs.topk(head, dim=-1)
    if bool((values.sum(-1) < top_p).any()):
        values, ids = probs.sort(dim=-1, descending=True, stable=True)
    before = values.cumsum(-1) - values
    kept = values.masked_fill(before >= top_p, 0.0)
    kept /= kept.sum(-1, keepdim=True)
    return probs.new_zeros(probs.shape).scatter_(-1, ids, kept)


def position_uniforms(seed: int, first: int, count: int) -> F64Array:
    """Return one number in [0, 1) for each position first..first+count-1 of a request, float64 (count,).

    splitmix64 (Steele et al., OOPSLA 2014) at its `position`-th state, started from the mixed seed: random access to a
    stream that passes BigCrush. The top 53 bits make the fraction.
    """
    positions = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    start = mix64_many(np.array([seed & 0xFFFFFFFFFFFFFFFF], np.uint64) + _GOLDEN)
    return (mix64_many(start + positions * _GOLDEN) >> np.uint64(11)).astype(np.float64) * 2.0**-53
