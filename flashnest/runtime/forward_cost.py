"""What a forward costs by its shape: learnt from a profile and from every forward since. Measures and decides nothing.

    seconds = curve(packed tokens) + a * scored rows + b * KV tokens + c * attended tokens

`curve` is linear between `KNOTS`: linear layers, launch overhead, all that grows with packed tokens in steps that no
formula gives. The four figures move together while a load is steady, so plain averages cannot tell them apart. A Kalman
filter (Kalman 1960) can: it starts from a profile, or from a guess, and changes the least that explains a measurement,
the scale of everything first (a busy machine), then the neighbourhood of the shape, then one figure against another.
What is not measured for long drifts back to the start with a time constant of `MEMORY_FORWARDS`, so no mistake lasts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from flashnest.record import F64Array, I64Array
from flashnest.runtime.forward import ForwardBatch

KNOTS: Final = np.array([1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048], np.float64)
"""Packed tokens at which the curve has a value of its own; straight between, and past the last as before it."""
MEMORY_FORWARDS: Final = 1000
_SCORED, _KV, _ATTENDED = len(KNOTS), len(KNOTS) + 1, len(KNOTS) + 2
_FIGURES: Final = len(KNOTS) + 3
_GUESS_SLOPE: Final = 1 / 30
"""Cost of a packed token over a forward's fixed cost: bfloat16 SmolLM2 on 2 cores takes 19 / 21 / 37 / 109 ms for
1 / 8 / 32 / 128 tokens."""
_GUESS_ATTENDED: Final = 1e-5
"""Likewise of an attended token; of a KV token too."""
_SCALE_SPREAD: Final = 0.5
"""Relative standard deviation of all figures together, against the start."""
_GUESS_SPREAD, _PROFILE_SPREAD = 0.5, 0.1
"""Of the curve's shape, where it is a guess, and where it was measured."""
_GUESS_OTHERS, _PROFILE_OTHERS = 2.0, 0.3
"""Of the three other figures."""
_NOISE: Final = 0.08
"""Of one forward's time on a quiet machine."""
_PROFILE_NOISE: Final = 0.03
"""Of a median of a few."""
_LARGEST_SURPRISE: Final = 3.0
"""Standard deviations: what is further off (a pause, a page fault) counts as that far off."""


@dataclass(frozen=True, slots=True)
class ForwardShape:
    """What a forward's time depends on.

    tokens: packed tokens; scored: rows that go through the head; context_tokens: KV tokens that its sequences hold,
    summed; attended_tokens: summed over the packed tokens, the KV tokens that each one attends to.
    """

    tokens: int
    scored: int
    context_tokens: int
    attended_tokens: int

    @classmethod
    def of(cls, batch: ForwardBatch) -> Self:
        """Return the shape of a packed batch."""
        attended = int(batch.positions.sum()) + len(batch.positions)
        return cls(len(batch.token_ids), len(batch.score_rows), int(batch.context_lens.sum()), attended)

    @classmethod
    def of_pieces(cls, counts: I64Array, contexts: I64Array, scored: int) -> Self:
        """Return the shape of sequences that bring `counts` new tokens (n,) and then hold `contexts` KV tokens (n,)."""
        attended = int((counts * contexts - counts * (counts - 1) // 2).sum())
        return cls(int(counts.sum()), scored, int(contexts.sum()), attended)


@dataclass(frozen=True, slots=True)
class Prices:
    """The model's figures now, seconds: curve float64 (knots,), never falling; the others >= 0."""

    curve: F64Array
    scored_s: float
    context_s: float
    attended_s: float

    def seconds(self, shape: ForwardShape) -> float:
        """Return the expected seconds of one forward."""
        others = self.scored_s * shape.scored + self.context_s * shape.context_tokens
        others += self.attended_s * shape.attended_tokens
        return float(_weights(shape.tokens) @ self.curve) + others


class ForwardCost:
    """Expected seconds by shape. Not thread-safe: the engine's thread owns it."""

    def __init__(self, profile: Iterable[tuple[ForwardShape, float]] = ()) -> None:
        """`profile`: (shape, median seconds) of measured forwards; without one the first forward scales a guess."""
        self._start: F64Array
        self._figures: F64Array
        self._start_spread: F64Array
        self._spread: F64Array
        points = list(profile)
        self._scaled = self.profiled = bool(points)
        self._start_from(_guess(1.0), _GUESS_SPREAD, _GUESS_OTHERS)
        if points:
            self._scale_to(*points[0])
            for shape, seconds in points:
                self._update(shape, seconds, _PROFILE_NOISE, largest_surprise=np.inf)
            wrong = max(abs(float(_row(shape) @ self._figures) / seconds - 1) for shape, seconds in points)
            self._start_from(self._figures.clip(min=1e-12), max(_PROFILE_SPREAD, 2 * wrong), _PROFILE_OTHERS)
        self._prices: Prices | None = None

    @property
    def prices(self) -> Prices:
        """The figures now."""
        if self._prices is None:
            figures = self._figures
            curve: F64Array = np.maximum.accumulate(figures[: len(KNOTS)].clip(min=0.0))
            others = (max(0.0, float(figures[at])) for at in (_SCORED, _KV, _ATTENDED))
            self._prices = Prices(curve, *others)
        return self._prices

    def record(self, shape: ForwardShape, seconds: float) -> None:
        """Take one measured forward."""
        if seconds <= 0.0:
            return  # a clock that stands still
        if not self._scaled:
            self._scale_to(shape, seconds)
            self._scaled = True
        keep = 1 - 1 / MEMORY_FORWARDS
        self._figures = keep * self._figures + (1 - keep) * self._start
        self._spread = keep**2 * self._spread + (1 - keep**2) * self._start_spread
        self._update(shape, seconds, _NOISE, _LARGEST_SURPRISE)
        self._prices = None

    def _start_from(self, figures: F64Array, spread: float, others: float) -> None:
        self._start, self._figures = figures, figures
        self._start_spread = _spread(figures, spread, others)
        self._spread = self._start_spread

    def _scale_to(self, shape: ForwardShape, seconds: float) -> None:
        self._start_from(_guess(seconds / float(_row(shape) @ _guess(1.0))), _GUESS_SPREAD, _GUESS_OTHERS)

    def _update(self, shape: ForwardShape, seconds: float, noise: float, largest_surprise: float) -> None:
        row = _row(shape)
        expected = float(row @ self._figures)
        moved = self._spread @ row
        variance = float(row @ moved) + (noise * max(expected, seconds)) ** 2
        if variance <= 0.0:
            return
        far = largest_surprise * variance**0.5
        surprise = min(max(seconds - expected, -far), far)
        self._figures = self._figures + moved * (surprise / variance)
        self._spread = self._spread - np.outer(moved, moved) / variance


def _guess(fixed_s: float) -> F64Array:
    others = np.array([0.2 * _GUESS_SLOPE, _GUESS_ATTENDED, _GUESS_ATTENDED])
    return fixed_s * np.concatenate([1 + 0.8 * _GUESS_SLOPE * KNOTS, others])


def _spread(figures: F64Array, curve: float, others: float) -> F64Array:
    """Return the covariance of the figures: one scale for all; the curve's knots vary with their neighbours."""
    octaves = np.abs(np.log2(KNOTS)[:, None] - np.log2(KNOTS))
    relative = np.zeros((_FIGURES, _FIGURES))
    relative[: len(KNOTS), : len(KNOTS)] = curve**2 * (0.8 * np.exp(-(octaves**2) / 8) + 0.2 * np.exp(-octaves / 2))
    relative[range(_SCORED, _FIGURES), range(_SCORED, _FIGURES)] = others**2
    spread: F64Array = (relative + _SCALE_SPREAD**2) * np.outer(figures, figures)
    return spread


def _weights(tokens: int) -> F64Array:
    """Return the share of each knot in the curve at `tokens`."""
    at = min(max(int(np.searchsorted(KNOTS, tokens)), 1), len(KNOTS) - 1)
    left, right = KNOTS[at - 1], KNOTS[at]
    weights = np.zeros(len(KNOTS))
    weights[at] = (tokens - left) / (right - left)
    weights[at - 1] = 1 - weights[at]
    return weights


def _row(shape: ForwardShape) -> F64Array:
    row = np.empty(_FIGURES)
    row[: len(KNOTS)] = _weights(shape.tokens)
    row[_SCORED:] = (shape.scored, shape.context_tokens, shape.attended_tokens)
    return row
