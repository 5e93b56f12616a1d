"""How likely each token of a draft is accepted, once those before it were: by source, matched tokens and place.

Counts fade, so a table that has learnt a text since is seen soon; without news they fade to a start guess. A record's
own history (`Drafts.tried`, `.agreed`) is laid over the average of its kind. Chooses no length.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest.record import F64Array, I32Array, I64Array, U8Array
from flashnest.runtime.drafter import Drafts, Source

FADE_A_DRAFT: Final = 0.995
"""Weight that a cell's counts keep at each draft of their kind: the last 200 count."""
FADE_A_STEP: Final = 0.9998
"""Weight that all counts keep at each step with drafts: what is no longer tried is a guess again in 10,000 steps."""
PRIOR_TOKENS: Final = 4.0
"""Weight of a guess, and of the kind's average against a record's own history, in tokens tried."""
MATCH_EDGES: Final = np.array([2, 3, 4, 8, 16, 32])
PRIOR: Final = np.array([0.25, 0.35, 0.45, 0.55, 0.7, 0.8, 0.85])
"""Start guesses for matches of 1, 2, 3, 4-7, 8-15, 16-31 and 32 tokens; outweighed within a few drafts. SmolLM2's
greedy answers accept the first token after own-text matches of 1 / 2 / 3 / 4-7 / 8 and more tokens in 0.2-0.4 /
0.3-0.6 / 0.5 / 0.65 / 0.86 of the cases (benchmarks.drafts)."""
PLACE_EDGES: Final = np.array([2, 3, 5, 9, 17])
"""Places of a draft, from 1, that begin a new bucket: 1, 2, 3-4, 5-8, 9-16, 17 and on."""
PLACES: Final = len(PLACE_EDGES) + 1


class Acceptance:
    """Fading counts of tried and accepted tokens. Not thread-safe: the engine's thread owns it."""

    def __init__(self) -> None:
        shape = (len(Source), len(PRIOR), PLACES)
        self._tried = np.zeros(shape)
        self._agreed = np.zeros(shape)
        self.stale = np.zeros(shape[:2], np.int64)
        """Steps since a draft of that source and match was last verified, int64 (sources, match buckets)."""

    def record(self, sources: I32Array, matched: I32Array, tried: I32Array, agreed: I32Array) -> None:
        """Take a step's verified drafts, each (n,).

        tried: tokens judged, the accepted ones and the first refused; agreed: the accepted ones.
        """
        cells = sources * len(PRIOR) + match_buckets(matched)
        width = int(tried.max(initial=0))
        places = np.arange(width)
        at = (cells[:, None] * PLACES + place_buckets(width)).ravel()
        size = self._tried.size
        new_tried = np.bincount(at, (places < tried[:, None]).ravel(), size).reshape(self._tried.shape)
        new_agreed = np.bincount(at, (places < agreed[:, None]).ravel(), size).reshape(self._tried.shape)
        drafts = np.bincount(cells, minlength=self.stale.size).reshape(self.stale.shape)
        fade = (FADE_A_STEP * FADE_A_DRAFT**drafts)[:, :, None]
        self._tried = fade * self._tried + new_tried
        self._agreed = fade * self._agreed + new_agreed
        self.stale += 1
        self.stale[drafts > 0] = 0

    def shares(self) -> F64Array:
        """Return the chance of each place by kind, float64 (sources, match buckets, places).

        A place with few counts leans on the average of its kind, and that on the start guess.
        """
        of_kind = (self._agreed.sum(axis=2) + PRIOR_TOKENS * PRIOR) / (self._tried.sum(axis=2) + PRIOR_TOKENS)
        shares: F64Array = (self._agreed + PRIOR_TOKENS * of_kind[:, :, None]) / (self._tried + PRIOR_TOKENS)
        return shares

    def expected(self, drafts: Drafts, rows: int) -> F64Array:
        """Return each row's chance by place bucket, float64 (rows, places)."""
        kinds = self.shares()[drafts.sources[:rows], match_buckets(drafts.matched[:rows])]
        tried = drafts.tried[:rows, None].astype(np.float64)
        agreed = drafts.agreed[:rows, None].astype(np.float64)
        expected: F64Array = (agreed + PRIOR_TOKENS * kinds) / (tried + PRIOR_TOKENS)
        return expected

    def staleness(self, sources: U8Array, matched: I32Array) -> I64Array:
        """Return the steps since each row's kind of draft was last verified, int64 (rows,)."""
        stale: I64Array = self.stale[sources, match_buckets(matched)]
        return stale


def place_buckets(width: int) -> I64Array:
    """Return the bucket of each place of a draft of `width` tokens, int64 (width,)."""
    return np.searchsorted(PLACE_EDGES, np.arange(1, width + 1), side="right")


def match_buckets(matched: I32Array) -> I64Array:
    """Return the bucket of each count of matched tokens, int64 (n,)."""
    return np.searchsorted(MATCH_EDGES, matched, side="right")
