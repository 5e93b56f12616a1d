"""Sampling one row or one sequence at a time: what the batched functions are held against, and short calls of them."""

from __future__ import annotations

import numpy as np

from flashnest.record import F64Array, I32Array
from flashnest.runtime.sampler import row_uniforms
from flashnest.runtime.verify import accepted_counts, draw_many


def draw(probs: F64Array, uniform: float) -> int:
    """Return the token of one distribution whose share of [0, 1) holds `uniform`."""
    edges = np.cumsum(probs)
    token = int(np.searchsorted(edges, uniform * edges[-1], side="right"))
    return token if token < len(probs) else int(np.flatnonzero(probs)[-1])


def position_uniforms(seed: int, first: int, count: int) -> F64Array:
    """Return the numbers of one seed's positions first..first+count-1."""
    return row_uniforms([seed] * count, np.arange(first, first + count, dtype=np.int64))


def accept_sampled(draft: I32Array, probs: F64Array, uniforms: F64Array) -> I32Array:
    """Return what one sampled sequence commits: every row drawn, then the draft compared with what was drawn."""
    chosen = draw_many(probs, uniforms)
    inputs = np.concatenate(([-1], draft)).astype(np.int64)
    count = int(accepted_counts(inputs, chosen, np.array([0, len(chosen)], np.int32))[0])
    return chosen[: count + 1].astype(np.int32)
