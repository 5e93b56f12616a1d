"""How many draft tokens are worth verifying this step: expected cost of a forward against expected acceptance.

`ForwardCost` knows what a shape of forward costs, `Acceptance` what becomes of a draft, `goodput` weighs them. There is
no permanent off: drafts that look too dear are tried in small samples, as often as `PROBE_SHARE` of the time pays for.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np

from flashnest.record import BoolArray, F64Array, I32Array, I64Array
from flashnest.runtime.acceptance import PLACES, Acceptance, place_buckets
from flashnest.runtime.drafter import Drafts
from flashnest.runtime.forward_cost import KNOTS, ForwardCost, ForwardShape
from flashnest.runtime.goodput import choose_lengths

LEAST_GAIN: Final = 1.01
"""Drafts that promise less than 1 % are left out: the estimates are not better than that."""
PROBE_SHARE: Final = 0.005
"""Most of the forwards' time that samples of drafts not worth it may take."""
PROBE_EVERY: Final = 8
"""Fewest steps between two samples."""
PROBE_TOKENS: Final = 2
LEAST_PRICE: Final = 0.02
"""Of a step, that a sample is taken to cost at least: what looks free is sampled every 8 steps at most."""


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
        self._probes = _Probes()
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
        refused = np.flatnonzero((lengths == 0) & (limits > 0))
        if len(refused):
            more = PROBE_TOKENS * (contexts[0] if rows else 0)
            sample = ForwardShape(base.tokens + 2, base.scored + 2, base.context_tokens, base.attended_tokens + more)
            price_s = prices.seconds(sample) - prices.seconds(base)
            stale = self._acceptance.staleness(drafts.sources[refused], drafts.matched[refused])
            if (chosen := self._probes.due(chances[refused, 0], stale, price_s, plain_s)) is not None:
                row = refused[chosen]
                lengths[row] = min(PROBE_TOKENS, limits[row])
        return lengths

    def _kernel_ready(self) -> None:
        """Load or compile the kernel: no step waits for it."""
        one = np.ones(1, np.int32)
        chances = np.zeros((1, PLACES))
        prices = np.ones(5)
        choose_lengths(chances, self._buckets, one, one.astype(np.int64), KNOTS, KNOTS, prices, one.copy())


class _Probes:
    """Small samples of drafts that were refused, within a share of the time.

    By turns the likeliest and the one whose kind was not verified for longest: the first finds that prices fell, the
    second that a kind became good.
    """

    def __init__(self) -> None:
        self._allowance_s = 0.0
        self._steps = 0
        self._count = 0

    def due(self, chances: F64Array, stale: I64Array, price_s: float, step_s: float) -> int | None:
        """Return which of the refused rows gets a sample in this step; None for no sample.

        chances, stale (n,): of each refused row; price_s: seconds that a sample adds; step_s: of the step without.
        """
        price_s = max(price_s, LEAST_PRICE * step_s)
        self._allowance_s = min(self._allowance_s + PROBE_SHARE * step_s, price_s)
        self._steps += 1
        if self._steps < PROBE_EVERY or self._allowance_s < price_s:
            return None
        self._steps, self._allowance_s = 0, 0.0
        self._count += 1
        return int(np.argmax(stale if self._count % 2 else chances))
