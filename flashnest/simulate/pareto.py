"""Pareto fronts: which points no other point beats. Plain arithmetic on arrays, knows no policy."""

from __future__ import annotations

import numpy as np

from flashnest.record import BoolArray, F64Array


def front(costs: F64Array) -> BoolArray:
    """Return which rows of `costs` (n, k), all to be small, are not dominated, (n,).

    A row dominates another if it is nowhere larger and somewhere smaller. Of equal rows the first alone is kept. The
    n x n comparison is done a row at a time: 1000 trials take 20 ms.
    """
    kept = np.ones(len(costs), np.bool_)
    for i, row in enumerate(costs):
        no_worse = (costs <= row).all(axis=1)
        better = (costs < row).any(axis=1)
        equal_before = (costs[:i] == row).all(axis=1)
        kept[i] = not (no_worse & better).any() and not equal_before.any()
    return kept


def dominates(first: F64Array, second: F64Array) -> bool:
    """Return whether costs (k,) are nowhere larger than others and somewhere smaller."""
    return bool((first <= second).all() and (first < second).any())
