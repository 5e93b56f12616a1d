"""How many draft tokens are worth verifying this step: expected cost of a forward against expected acceptance.

`ForwardCost` knows what a shape of forward costs, `Acceptance` what becomes of a draft, `goodput` weighs them. There is
no permanent off: `probing` tries what looks too dear within half a percent of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final

import numpy as np

from flashnest.record import BoolArray, F64Array, I32Array, I64Array
from flashnest.runtime.acceptance import PLACES, Acceptance, place_buckets
from flashnest.runtime.drafter import Drafts
from flashnest.runtime.forward_cost import KNOTS, ForwardCost, ForwardShape, Prices
from flashnest.runtime.goodput import choose_lengths
from flashnest.runtime.probing import Probes

LEAST_GAIN: Final = 1.01
"""Drafts that promise less than 1 % are left out: the estimates are not better than that."""


class NoDraft(IntEnum):
    """Why a row got no draft in a step."""

    NO_MATCH = 0
    """Neither the table nor the request's own text had a continuation at hand."""
    CAP = 1
    """The request's end or the step's budget left no room."""
    NOT_WORTH = 2
    """The expected cost outweighs the expected acceptance."""
    OFF = 3
    """Drafting is switched off."""
    COLD = 4
    """Nothing was at hand, and a cold tier has been asked."""


class Governor:
    """Picks draft lengths. Not thread-safe: the engine's thread owns it.

    `fixed_tokens`: every draft gets this length where match and caps allow it, whatever it costs; None weighs them.
    `cost`: what is known of the model's forwards; None learns it from the first on.
    """

    def __init__(
        self, *, max_draft_tokens: int, fixed_tokens: int | None = None, cost: ForwardCost | None = None
    ) -> None:
        self._max = max_draft_tokens if fixed_tokens is None else min(max_draft_tokens, fixed_tokens)
        self._fixed = fixed_tokens is not None
        self._cost = cost or ForwardCost()
        self._acceptance = Acceptance()
        self._buckets = place_buckets(self._max)
        self._no_draft = np.zeros(len(NoDraft), np.int64)
        self._probes = Probes(measured=self._cost.profiled)
        self._kernel_ready()

    def record_forward(self, shape: ForwardShape, seconds: float) -> None:
        """Take one measured forward."""
        self._cost.record(shape, seconds)

    def record_drafts(self, sources: I32Array, matched: I32Array, tried: I32Array, agreed: I32Array) -> None:
        """Take a step's verified drafts, each int (n,).

        sources: `Source` codes; matched: tokens of context that matched; tried: tokens judged (the accepted and the
        first refused); agreed: tokens accepted.
        """
        self._acceptance.record(sources, matched, tried, agreed)

    def chances(self, drafts: Drafts, rows: int) -> F64Array:
        """Return the chance of each draft token, given those before it, float64 (rows, `max_draft_tokens`)."""
        chances: F64Array = self._acceptance.expected(drafts, rows)[:, self._buckets]
        return chances

    def cost_s(self, shape: ForwardShape) -> float:
        """Return the expected seconds of a forward."""
        return self._cost.prices.seconds(shape)

    def choose(
        self,
        drafts: Drafts,
        caps: I32Array,
        base: ForwardShape,
        contexts: I64Array | None = None,
        waiting: BoolArray | None = None,
    ) -> I32Array:
        """Return the draft length of each row, int32 (rows,).

        caps int32 (rows,): the most tokens a row may draft; base: the step without any draft; contexts int64 (rows,):
        KV tokens of each row, None for the base's average; waiting bool (rows,): a cold tier was asked for the row.
        """
        rows = len(caps)
        limits = np.clip(np.minimum(drafts.lengths[:rows], caps), 0, self._max).astype(np.int32)
        lengths = limits
        if not self._fixed and limits.any():
            lengths = self._worth(drafts, limits, base, contexts)
        self._count_reasons(drafts.lengths[:rows], caps, lengths, waiting)
        return lengths

    def take_no_draft_counts(self) -> I64Array:
        """Return and reset how many rows got no draft, int64 by `NoDraft` code."""
        counts = self._no_draft
        self._no_draft = np.zeros_like(counts)
        return counts

    def _count_reasons(self, offered: I32Array, caps: I32Array, lengths: I32Array, waiting: BoolArray | None) -> None:
        reason = np.where(caps <= 0, NoDraft.CAP, NoDraft.NOT_WORTH)
        nothing = NoDraft.NO_MATCH if waiting is None else np.where(waiting, NoDraft.COLD, NoDraft.NO_MATCH)
        reason = np.where(offered <= 0, nothing, reason)
        if self._max == 0:
            reason = np.full(len(caps), NoDraft.OFF)
        self._no_draft += np.bincount(reason[lengths == 0], minlength=len(NoDraft))

    def _worth(self, drafts: Drafts, limits: I32Array, base: ForwardShape, contexts: I64Array | None) -> I32Array:
        rows = len(limits)
        if contexts is None:
            contexts = np.full(rows, base.attended_tokens // max(1, base.tokens), np.int64)
        prices = self._cost.prices
        context_tokens = int(contexts.sum())
        plain_s = prices.seconds(ForwardShape(rows, rows, context_tokens, context_tokens))
        weighed = np.array([base.tokens, max(plain_s, 1e-9), prices.scored_s, prices.attended_s, LEAST_GAIN])
        chances = self._acceptance.expected(drafts, rows)
        lengths = np.empty(rows, np.int32)
        choose_lengths(chances, self._buckets, limits, contexts, KNOTS, prices.curve, weighed, lengths)
        forecast = _Forecast(chances[:, self._buckets], contexts, base, plain_s, prices)
        stale = self._acceptance.staleness(drafts.sources[:rows], drafts.matched[:rows])
        return self._probes.lengths(lengths, limits, chances[:, 0], stale, forecast.lost_steps(lengths))

    def _kernel_ready(self) -> None:
        """Load or compile the kernel: no step waits for it."""
        one = np.ones(1, np.int32)
        chances = np.zeros((1, PLACES))
        prices = np.ones(5)
        choose_lengths(chances, self._buckets, one, one.astype(np.int64), KNOTS, KNOTS, prices, one.copy())


class _Forecast:
    """What lengths are expected to bring in one step. Slow beside the kernel: for the steps that look around."""

    def __init__(
        self, chances: F64Array, contexts: I64Array, base: ForwardShape, plain_s: float, prices: Prices
    ) -> None:
        """chances float64 (rows, width): of each draft token; plain_s: seconds of a plain decode step of the rows."""
        self._chances, self._contexts, self._base = chances, contexts, base
        self._plain_s, self._prices = plain_s, prices

    def lost_steps(self, chosen: I32Array) -> Callable[[I32Array], float]:
        """Return a function that says how much time other lengths lose against `chosen`, in plain steps."""

        def lost(other: I32Array) -> float:
            tokens, seconds = self._expected(chosen)
            other_tokens, other_s = self._expected(other)
            return (other_s - other_tokens * seconds / tokens) / self._plain_s

        return lost

    def _expected(self, lengths: I32Array) -> tuple[float, float]:
        """Return the committed tokens and the seconds that the step takes of the scored rows' time."""
        base, drafted = self._base, int(lengths.sum())
        attended = base.attended_tokens + int((lengths * self._contexts).sum())
        shape = ForwardShape(base.tokens + drafted, base.scored + drafted, base.context_tokens, attended)
        seconds = self._plain_s + self._prices.seconds(shape) - self._prices.seconds(base)
        taken = np.arange(self._chances.shape[1]) < lengths[:, None]
        gains = np.where(taken, self._chances.cumprod(axis=1), 0.0)
        return len(lengths) + float(gains.sum()), seconds
