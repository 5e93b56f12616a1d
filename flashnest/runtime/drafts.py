"""What a drafter proposes: one draft a row, in buffers that are overwritten each step. Finds and judges nothing."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from flashnest.record import I32Array, Tier, U8Array, U32Array, U64Array


class Source(IntEnum):
    """Where a draft came from."""

    NONE = 0
    OWN = 1
    """The request's own text."""
    DRAM = 2
    NVME = 3
    VRAM = 4
    RECENT = 5
    """What followed the last one or two tokens lately, in any request of the namespace."""


SOURCE_OF_TIER: Final = {Tier.VRAM: Source.VRAM, Tier.DRAM: Source.DRAM, Tier.NVME: Source.NVME}


class Drafts(NamedTuple):
    """One proposal a row: buffers owned by the drafter and overwritten by the next `propose`.

    tokens int32 (rows, width); lengths int32 (rows,): 0 for no draft; sources uint8 (rows,): `Source` codes;
    matched int32 (rows,): tokens of context that matched; keys uint64 (rows,): the record, 0 for own text;
    tried, agreed uint32 (rows,): what speaks for the draft: how many tokens of the record, or successors of a recent
    context, were judged, and how many were right.
    """

    tokens: I32Array
    lengths: I32Array
    sources: U8Array
    matched: I32Array
    keys: U64Array
    tried: U32Array
    agreed: U32Array

    @classmethod
    def allocate(cls, rows: int, width: int) -> Drafts:
        """Return buffers for `rows` sequences and drafts of up to `width` tokens."""
        return cls(
            np.zeros((rows, width), np.int32),
            np.zeros(rows, np.int32),
            np.zeros(rows, np.uint8),
            np.zeros(rows, np.int32),
            np.zeros(rows, np.uint64),
            np.zeros(rows, np.uint32),
            np.zeros(rows, np.uint32),
        )

    def clear(self, rows: int) -> None:
        """Forget the proposals of the first `rows` rows."""
        for array in (self.lengths, self.sources, self.matched, self.keys, self.tried, self.agreed):
            array[:rows] = 0

    def known_tokens(self, rows: int, vocab_size: int) -> I32Array:
        """Return how many tokens of each draft come before the first that is not in 0..vocab_size-1, int32 (rows,).

        A record made for another vocabulary costs its draft, not an index error in the embedding.
        """
        tokens = self.tokens[:rows]
        unknown = (tokens < 0) | (tokens >= vocab_size)
        known: I32Array = np.where(unknown.any(axis=1), unknown.argmax(axis=1), tokens.shape[1]).astype(np.int32)
        return known


class DraftParts(NamedTuple):
    """Which records a row's draft was put together from, so that each hears what became of its own tokens.

    counts int32 (rows,): parts in each row's draft; keys uint64 (rows, parts): a part's record, 0 for none; ends int32
    (rows, parts): draft tokens up to where the part ends.
    """

    counts: I32Array
    keys: U64Array
    ends: I32Array

    @classmethod
    def allocate(cls, rows: int, parts: int) -> DraftParts:
        """Return buffers for `rows` drafts of up to `parts` parts."""
        return cls(np.zeros(rows, np.int32), np.zeros((rows, parts), np.uint64), np.zeros((rows, parts), np.int32))
