"""The kernel that picks draft lengths: most committed tokens a second, by sorted gains. Keeps no state."""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest.jit import kernel
from flashnest.record import F64Array, I32Array, I64Array

_LEVELS: Final = 1024
"""Gains lie in (0, 1]; a sort by 1/1024 is exact enough, and counting sorts 2000 of them in 10 us."""


@kernel
def choose_lengths(
    chances: F64Array,
    buckets: I64Array,
    limits: I32Array,
    contexts: I64Array,
    knots: F64Array,
    curve: F64Array,
    prices: F64Array,
    lengths: I32Array,
) -> None:
    """Write the draft length of each row, int32 (n,).

    chances float64 (n, places): that a token is accepted once those before it are, by place bucket; buckets int64
    (width,): bucket of each place; limits int32 (n,); contexts int64 (n,): KV tokens that a row's tokens attend to;
    knots, curve float64 (k,): seconds by packed tokens. prices float64 (5,): packed tokens of the step without drafts;
    seconds of a plain decode step of the scored rows; seconds a scored row; seconds an attended token; the least rate
    to reach, relative to no drafts.

    Goodput rule as in SmartSpec (Liu et al., 2024, arXiv:2406.14066): with the likeliest tokens first, take as many as
    give the most committed tokens a second. Prefill that shares the step is paid for anyway: a draft is weighed by what
    it adds to this step against what the scored rows cost in a step of their own.
    """
    rows, width = limits.shape[0], buckets.shape[0]
    gains = np.zeros((rows, width))
    count_of = np.zeros(_LEVELS + 1, np.int64)
    total: int = 0
    for r in range(rows):
        gain = 1.0
        for j in range(min(limits[r], width)):
            gain *= chances[r, buckets[j]]
            gains[r, j] = gain
            count_of[int(gain * (_LEVELS - 1))] += 1
            total += 1
    # Counting sort, best level first and place-major inside a level, so that what is taken of a row is a prefix.
    start: int = 0
    for level in range(_LEVELS, -1, -1):
        here = count_of[level]
        count_of[level] = start
        start += here
    order = np.empty(total, np.int64)
    for j in range(width):
        for r in range(rows):
            if j < limits[r]:
                level = int(gains[r, j] * (_LEVELS - 1))
                order[count_of[level]] = r * width + j
                count_of[level] += 1
    tokens, plain_s, scored_s, attended_s, least = prices
    at: int = 1
    while at < knots.shape[0] - 1 and knots[at] < tokens:
        at += 1
    slope = (curve[at] - curve[at - 1]) / (knots[at] - knots[at - 1])
    committed, cost_s = float(rows), plain_s
    best_rate, best = least * committed / plain_s, 0
    for i in range(total):
        r = order[i] // width
        tokens += 1.0
        if tokens > knots[at] and at < knots.shape[0] - 1:
            at += 1
            slope = (curve[at] - curve[at - 1]) / (knots[at] - knots[at - 1])
        cost_s += slope + scored_s + attended_s * contexts[r]
        committed += gains[r, order[i] - r * width]
        rate = committed / cost_s
        if rate > best_rate:
            best_rate, best = rate, i + 1
    for r in range(rows):
        lengths[r] = 0
    for i in range(best):
        lengths[order[i] // width] += 1
