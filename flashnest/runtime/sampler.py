"""From logits to the distribution that a request asked for, and the random numbers that belong to its positions.

Draws no token (`verify` does) and keeps no state: the number for a position is a hash of (seed, position), so the
output for a seed depends neither on the batch nor on how many draft tokens were verified together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flashnest.hashing import mix64_many
from flashnest.record import F64Array, I64Array

if TYPE_CHECKING:
    import torch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = 0xFFFFFFFFFFFFFFFF

NUCLEUS_HEAD = 1024
"""Tokens looked at first for top-p: a partial sort of 49 152 logits takes a fifth of the time of a full one."""


def target_probs(
    logits: torch.Tensor,
    temperature: float | F64Array,
    top_p: float | F64Array = 1.0,
    top_k: int | I64Array = 0,
    min_p: float | F64Array = 0.0,
) -> F64Array:
    """Return softmax(logits / temperature) cut by min-p, top-k and top-p, float64 (n, vocab), each row summing to 1.

    logits float32 (n, vocab) on the CPU; the rules one for all rows or (n,). temperature > 0; min_p in [0, 1]: tokens
    less likely than that share of the likeliest go; top_k: the k likeliest stay, and what equals the last of them, 0 =
    all; top_p in (0, 1]: of what is left the fewest likeliest whose probabilities reach top_p stay (of equal ones the
    lower id first, when more than `NUCLEUS_HEAD` tokens have to be sorted). A row's result depends on that row alone.
    Raises ValueError for other values.
    """
    rows = logits.shape[0]
    heat, nucleus, least = (np.broadcast_to(np.asarray(rule, np.float64), rows) for rule in (temperature, top_p, min_p))
    most = np.broadcast_to(np.asarray(top_k, np.int64), rows)
    if not ((heat > 0.0).all() and ((nucleus > 0.0) & (nucleus <= 1.0)).all()):
        raise ValueError(f"temperature must be above 0 and top_p in (0, 1], got {temperature} and {top_p}")
    if not (((least >= 0.0) & (least <= 1.0)).all() and (most >= 0).all()):
        raise ValueError(f"min_p must be in [0, 1] and top_k 0 or above, got {min_p} and {top_k}")
    scores = logits.double()
    scores /= _column(heat)
    probs = scores.softmax(dim=-1)
    _replace(probs, np.flatnonzero(least > 0.0), _above_share, least)
    _replace(probs, np.flatnonzero((most > 0) & (most < probs.shape[-1])), _likeliest, most)
    _replace(probs, np.flatnonzero(nucleus < 1.0), _nucleus, nucleus)
    result: F64Array = probs.numpy()
    return result


def _column(values: np.ndarray[Any, Any]) -> torch.Tensor:
    import torch

    return torch.from_numpy(values.copy())[:, None]


def _replace(
    probs: torch.Tensor,
    rows: I64Array,
    cut: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    rules: np.ndarray[Any, Any],
) -> None:
    """Cut the rows that a rule changes and make them sum to 1 again."""
    if len(rows):
        kept = cut(probs[rows], _column(rules[rows]))
        probs[rows] = kept / kept.sum(-1, keepdim=True)


def _above_share(probs: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    return probs.masked_fill(probs < share * probs.amax(-1, keepdim=True), 0.0)


def _likeliest(probs: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    values = probs.topk(int(counts.max()), dim=-1).values
    return probs.masked_fill(probs < values.gather(-1, counts - 1), 0.0)


def _nucleus(probs: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    values, ids = probs.topk(min(NUCLEUS_HEAD, probs.shape[-1]), dim=-1)
    kept = probs.new_zeros(probs.shape).scatter_(-1, ids, _head(values, share))
    # Row by row: were one long row to send all of them here, equal tokens would be ordered by what the batch holds.
    long = (values.sum(-1, keepdim=True) < share)[:, 0]
    if bool(long.any()):
        values, ids = probs[long].sort(dim=-1, descending=True, stable=True)
        kept[long] = probs.new_zeros(values.shape).scatter_(-1, ids, _head(values, share[long]))
    return kept


def _head(values: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    return values.masked_fill(values.cumsum(-1) - values >= share, 0.0)


def row_uniforms(seeds: Sequence[int], positions: I64Array) -> F64Array:
    """Return one number in [0, 1) for each row, float64 (n,): of its seed (any integer) at its output position (n,).

    splitmix64 (Steele et al., OOPSLA 2014) at its `position`-th state, started from the mixed seed: random access to a
    stream that passes BigCrush. The top 53 bits make the fraction.
    """
    starts = mix64_many(np.array([seed & _MASK for seed in seeds], np.uint64) + _GOLDEN)
    states = starts + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    return (mix64_many(states) >> np.uint64(11)).astype(np.float64) * 2.0**-53
