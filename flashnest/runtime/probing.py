"""Which choice against the rule is worth its price in what it teaches. Holds an allowance, weighs no draft itself.

The rule's own choices measure only themselves. So by turns a row that got no draft gets a short one (the kind that was
not verified for longest, then the likeliest), all rows get longer drafts, and all get shorter ones. What such a step is
expected to lose is paid from `PROBE_SHARE` of the forwards' time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from flashnest.record import F64Array, I32Array, I64Array

PROBE_SHARE: Final = 0.005
"""Most of the forwards' time that choices against the rule may lose."""
PROBE_EVERY: Final = 8
"""Fewest steps between two."""
PROBE_TOKENS: Final = 2
"""Draft of a row that the rule gave none."""
_LEAST_PRICE: Final = 0.02
"""Of a step, that a probe is taken to lose at least: the estimates are no better than that."""
_START_STEPS: Final = 4.0
"""Allowance at the start in steps, where forwards were never measured: the first hundred steps learn the prices."""
_LONGER: Final = (8, 4, 2, 1)
"""Tokens added to each draft: the most whose loss is not above a step."""


class Probes:
    """Chooses lengths for the steps that look around. Not thread-safe: the governor's own."""

    def __init__(self, *, measured: bool) -> None:
        """`measured`: forwards were profiled, so nothing has to be learnt in a hurry."""
        self._allowance = 0.0 if measured else _START_STEPS
        self._price = _LEAST_PRICE
        self._since = 0
        self._turn = 0

    def lengths(
        self,
        chosen: I32Array,
        limits: I32Array,
        chances: F64Array,
        stale: I64Array,
        lost_steps: Callable[[I32Array], float],
    ) -> I32Array:
        """Return what to verify: the rule's lengths, or others if it is time to look around and the allowance pays.

        chosen, limits int32 (n,); chances float64 (n,): of each row's first token; stale int64 (n,): steps since the
        row's kind of draft was verified; lost_steps: what other lengths are expected to lose, in steps without drafts.
        """
        self._since += 1
        self._allowance += PROBE_SHARE
        if self._since < PROBE_EVERY or self._allowance < self._price:
            return chosen
        for _ in range(4):
            other = self._other(chosen, limits, chances, stale, lost_steps)
            if other is not None:
                break
            self._turn += 1
        else:
            return chosen
        self._price = max(_LEAST_PRICE, lost_steps(other))
        if self._allowance < self._price:
            return chosen  # and it is not weighed again before the allowance has grown to that
        self._allowance -= self._price
        self._price = _LEAST_PRICE
        self._since = 0
        self._turn += 1
        return other

    def _other(
        self,
        chosen: I32Array,
        limits: I32Array,
        chances: F64Array,
        stale: I64Array,
        lost_steps: Callable[[I32Array], float],
    ) -> I32Array | None:
        """Return the lengths of this turn's kind of probe; None where there is nothing of the kind to try."""
        turn = self._turn % 4
        if turn == 1:
            return self._longer(chosen, limits, lost_steps)
        if turn == 3:
            return chosen // 2 if chosen.any() else None
        refused = np.flatnonzero((chosen == 0) & (limits > 0))
        if len(refused) == 0:
            return None
        row = int(refused[np.argmax((stale if turn == 0 else chances)[refused])])
        other = chosen.copy()
        other[row] = min(PROBE_TOKENS, int(limits[row]))
        return other

    def _longer(self, chosen: I32Array, limits: I32Array, lost_steps: Callable[[I32Array], float]) -> I32Array | None:
        if not (chosen < limits).any():
            return None
        for more in _LONGER:
            other = np.minimum(chosen + more, limits).astype(np.int32)
            if lost_steps(other) <= 1.0:
                return other
        return None
