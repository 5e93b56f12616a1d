"""Which draft tokens the model agrees with. Pure functions on arrays: no model, no state, no randomness of its own.

What is committed is the accepted head of the draft and then one token that is the model's own, so a step always commits
at least one. Score row i belongs to the position before draft token i; the last row follows
the whole draft.

Sampling needs no accept-or-resample coin. A draft here is a point mass: "accept x with probability p(x), else draw from
p without x, renormalised" (Leviathan et al. 2023) has the same outcome as "draw y from p; x is accepted when y equals
x": P(y = x) = p(x), and a y that differs is distributed as p without x. Drawing first has one more virtue: with one
uniform number per position, the output for a seed is the same with drafts on and off, whatever the batch.
"""

from __future__ import annotations

import numpy as np

from flashnest.record import F64Array, I32Array, I64Array


def accepted_counts(inputs: I64Array, chosen: I64Array, starts: I32Array) -> I32Array:
    """Return how many draft tokens each of R sequences keeps, int32 (R,), in one pass over all of them.

    inputs int64 (S,): what went into the pass: per sequence its last committed token, then its draft; chosen int64
    (S,): what the model says after each; starts int32 (R + 1,): sequence r owns rows starts[r]..starts[r+1]-1, >= 1.
    """
    agrees = np.zeros(len(inputs), np.bool_)
    agrees[:-1] = inputs[1:] == chosen[:-1]
    agrees[starts[1:] - 1] = False  # after the last row of a sequence there is nothing to agree with
    stops = np.flatnonzero(~agrees)
    heads = starts[:-1]
    counts: I32Array = (stops[np.searchsorted(stops, heads)] - heads).astype(np.int32)
    return counts


def draw_many(probs: F64Array, uniforms: F64Array) -> I64Array:
    """Return each row's token whose share of [0, 1) holds the row's number, int64 (n,): inverse transform over the ids.

    probs float64 (n, vocab), each row summing to 1 within rounding; uniforms float64 (n,). A token of probability 0 is
    never drawn.
    """
    edges = np.cumsum(probs, axis=1)
    # Scaling by the sum, not by 1, keeps rounding from pointing past the last token that can be drawn. Counting the
    # edges at or below the number is `searchsorted(side="right")` on every row in one pass.
    tokens: I64Array = (edges <= (uniforms * edges[:, -1])[:, None]).sum(axis=1)
    for row in np.flatnonzero(tokens >= probs.shape[1]):
        tokens[row] = np.flatnonzero(probs[row])[-1]
    return tokens
