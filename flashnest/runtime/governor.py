"""How many draft tokens are worth verifying this step: measured forward cost against expected acceptance.

Goodput rule as in SmartSpec (Liu et al., 2024, arXiv:2406.14066): add the likeliest draft tokens of all sequences while
expected committed tokens per second rise. Costs are moving averages over forwards by packed tokens; acceptance is a
moving average by (source, matched tokens). There is no permanent off: every `PROBE_EVERY` steps without a draft a short
one goes out where there is one, so both sides of the rule stay measured.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from flashnest.record import F64Array, I32Array, I64Array
from flashnest.runtime.drafter import Drafts, Source, expected_acceptance

PROBE_EVERY = 32
COST_MEMORY = 0.9
"""Weight of the past in a cost average: half a cost is forgotten in 7 forwards."""
ACCEPT_MEMORY = 0.98
_BUCKETS_PER_OCTAVE = 2
_COST_BUCKETS = 40
"""Half-octaves of packed tokens: up to 2^19."""
_MATCH_EDGES = np.array([8, 16, 32])
_PRIOR = np.array([0.35, 0.5, 0.7, 0.8])
"""Start guesses by match length below 8, 16, 32 and from 32; measurements outweigh them within a few drafts."""


class NoDraft(IntEnum):
    """Why a row got no draft in a step."""

    NO_MATCH = 0
    """Neither the table nor the request's own text had a continuation at hand."""
    CAP = 1
    """The request's end or the step's budget left no room."""
    NOT_WORTH = 2
    """The measured cost outweighs the expected acceptance."""
    OFF = 3
    """Drafting is switched off."""


class Governor:
    """Picks draft lengths. Not thread-safe: the engine's thread owns it.

    `fixed_tokens`: every draft gets this length where match and caps allow it, whatever it costs; None weighs them.
    """

    def __init__(self, *, max_draft_tokens: int, fixed_tokens: int | None = None) -> None:
        self._max = max_draft_tokens if fixed_tokens is None else min(max_draft_tokens, fixed_tokens)
        self._fixed = fixed_tokens is not None
        self._no_draft = np.zeros(len(NoDraft), np.int64)
        self._cost_s = np.full(_COST_BUCKETS, np.nan)
        self._agreed = np.outer(np.ones(len(Source)), _PRIOR) * 4.0
        self._tried = np.full((len(Source), len(_PRIOR)), 4.0)
        self._idle_steps = 0

    def record_forward(self, tokens: int, seconds: float) -> None:
        """Take one measured forward over `tokens` packed tokens."""
        at = _bucket(tokens)
        old = self._cost_s[at]
        self._cost_s[at] = seconds if np.isnan(old) else COST_MEMORY * old + (1 - COST_MEMORY) * seconds

    def record_draft(self, source: int, matched: int, tried: int, agreed: int) -> None:
        """Take one verified draft: `tried` tokens judged (the accepted and the first refused), `agreed` accepted."""
        at = (source, int(np.searchsorted(_MATCH_EDGES, matched, side="right")))
        self._agreed[at] = ACCEPT_MEMORY * self._agreed[at] + agreed
        self._tried[at] = ACCEPT_MEMORY * self._tried[at] + tried

    def acceptance(self, sources: I32Array, matched: I32Array) -> F64Array:
        """Return the average acceptance by source and matched tokens, shape (rows,)."""
        at = np.searchsorted(_MATCH_EDGES, matched, side="right")
        share: F64Array = (self._agreed / self._tried)[sources, at]
        return share

    def cost_s(self, tokens: F64Array) -> F64Array:
        """Return the expected seconds of a forward over `tokens` packed tokens, interpolated, never falling."""
        known = np.flatnonzero(~np.isnan(self._cost_s))
        if len(known) == 0:
            return np.ones_like(tokens)
        at = 2.0 ** (known / _BUCKETS_PER_OCTAVE)
        rising = np.maximum.accumulate(self._cost_s[known])
        cost: F64Array = np.interp(tokens, at, rising)
        return cost

    def choose(self, drafts: Drafts, caps: I32Array, base_tokens: int) -> I32Array:
        """Return the draft length of each row, shape (rows,).

        caps int32 (rows,): the most tokens a row may draft; base_tokens: packed tokens of the step without any draft.
        """
        lengths = self._chosen(drafts, caps, base_tokens)
        self._count_reasons(drafts.lengths[: len(caps)], caps, lengths)
        return lengths

    @property
    def no_draft_counts(self) -> I64Array:
        """How many rows got no draft since the start, int64 by `NoDraft` code; a copy."""
        return self._no_draft.copy()

    def _count_reasons(self, offered: I32Array, caps: I32Array, lengths: I32Array) -> None:
        reason = np.where(offered <= 0, NoDraft.NO_MATCH, np.where(caps <= 0, NoDraft.CAP, NoDraft.NOT_WORTH))
        if self._max == 0:
            reason = np.full(len(caps), NoDraft.OFF)
        self._no_draft += np.bincount(reason[lengths == 0], minlength=len(NoDraft))

    def _chosen(self, drafts: Drafts, caps: I32Array, base_tokens: int) -> I32Array:
        rows = len(caps)
        limits = np.clip(np.minimum(drafts.lengths[:rows], caps), 0, self._max)
        if self._fixed or not limits.any():
            return limits
        share = expected_acceptance(
            drafts, rows, self.acceptance(drafts.sources[:rows].astype(np.int32), drafts.matched[:rows])
        )
        lengths = self._best_lengths(share, limits, rows, base_tokens)
        if lengths.any():
            self._idle_steps = 0
            return lengths
        self._idle_steps += 1
        if self._idle_steps >= PROBE_EVERY:
            self._idle_steps = 0
            row = int(np.argmax(np.where(limits > 0, share, -1.0)))
            lengths[row] = min(2, limits[row])
        return lengths

    def _best_lengths(self, share: F64Array, limits: I32Array, rows: int, base_tokens: int) -> I32Array:
        steps = np.arange(1, int(limits.max()) + 1)
        gain = share[:, None] ** steps
        allowed = steps <= limits[:, None]
        gains = gain[allowed]
        order = np.argsort(-gains, kind="stable")
        committed = rows + np.concatenate(([0.0], np.cumsum(gains[order])))
        cost = self.cost_s(base_tokens + np.arange(len(committed), dtype=np.float64))
        count = int(np.argmax(committed / cost))
        taken = np.zeros(allowed.shape, bool)
        # Gains fall along a row (shares are at most 1) and the sort is stable, so what is taken is always a prefix.
        row_of = np.nonzero(allowed)
        taken[row_of[0][order[:count]], row_of[1][order[:count]]] = True
        lengths: I32Array = taken.sum(axis=1).astype(np.int32)
        return lengths


def _bucket(tokens: int) -> int:
    return min(round(_BUCKETS_PER_OCTAVE * float(np.log2(max(1, tokens)))), _COST_BUCKETS - 1)
