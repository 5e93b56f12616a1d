"""An index of each running request's own text: the longest earlier match of its last tokens. Knows no table.

Each row has a hash table of its bigrams, whose buckets are chains of places, newest first. A token is added in O(1); a
match walks at most `WALK` places, so a text of 50,000 tokens costs what one of 500 does (vllm #16883: it need not).
Counting which continuation of equally long matches is the most frequent changed no acceptance on the recorded
streams (docs/drafting.md), so the most recent one wins.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest.jit import inline_kernel, kernel
from flashnest.record import I32Array, I64Array
from flashnest.runtime.drafts import DraftParts, Drafts, Source

GRAM: Final = 2
"""Tokens hashed into a bucket, and the shortest match: 2 instead of 4 adds 2 % accepted tokens on a first pass."""
WALK: Final = 64
"""Earlier places looked at."""
COMPARE: Final = 32
"""Most tokens compared at a place: longer matches are equal."""
_BUCKETS: Final = 2048
"""Buckets a row, 8 KiB; two bigrams in one bucket cost a step of the walk."""
_FACTOR_A, _FACTOR_B = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77)
_SHIFT = np.uint32(32 - 11)
_OWN: Final = int(Source.OWN)


class OwnText:
    """The index of all rows. One thread owns it; tokens come in and stay the caller's."""

    def __init__(self, rows: int) -> None:
        self._heads = np.zeros((rows, _BUCKETS), np.int32)
        self._previous = np.zeros((rows, 1), np.int32)
        self._read = np.zeros(rows, np.int32)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._heads.nbytes + self._previous.nbytes

    def begin(self, row: int) -> None:
        """Forget a row: another request has it now."""
        self._heads[row] = 0
        self._read[row] = 0

    def read_to(self, rows: I64Array) -> I32Array:
        """Return how many tokens of each row are in the index, int32 (n,)."""
        return self._read[rows]

    def read(self, tokens: I32Array, rows: I64Array, lengths: I32Array) -> None:
        """Take in what rows have gained: tokens int32 (R, capacity), rows int64 (n,), lengths int32 (R,)."""
        if self._previous.shape[1] <= tokens.shape[1]:
            grown = np.zeros((len(self._heads), tokens.shape[1] + 1), np.int32)
            grown[:, : self._previous.shape[1]] = self._previous
            self._previous = grown
        read_rows(tokens, rows, lengths, self._read, self._heads, self._previous)

    def offer(self, tokens: I32Array, rows: I64Array, lengths: I32Array, drafts: Drafts, parts: DraftParts) -> None:
        """Replace the draft of each row whose own text has a longer match; `read` comes first."""
        offer_rows(tokens, rows, lengths, self._previous, drafts, parts)


@inline_kernel
def _bucket(first: np.int32, second: np.int32) -> np.uint32:
    mixed = (np.uint32(first) * _FACTOR_A) ^ (np.uint32(second) * _FACTOR_B)
    return np.uint32(mixed * _FACTOR_A) >> _SHIFT


@kernel
def read_rows(
    tokens: I32Array, rows: I64Array, lengths: I32Array, read: I32Array, heads: I32Array, previous: I32Array
) -> None:
    """Add the bigrams that end at places read[r]+1..lengths[r] of each row; a place is the index after the bigram.

    heads int32 (R, buckets): a bucket's newest place, 0 for none; previous int32 (R, capacity + 1): the one before.
    """
    for i in range(rows.shape[0]):
        r = rows[i]
        for end in range(max(read[r] + 1, GRAM), lengths[r] + 1):
            bucket = _bucket(tokens[r, end - 2], tokens[r, end - 1])
            previous[r, end] = heads[r, bucket]
            heads[r, bucket] = end
        read[r] = max(read[r], lengths[r])


@inline_kernel
def _longest_match(text: I32Array, end: int, previous: I32Array) -> tuple[int, int]:
    """Return the place after the longest earlier match of text[:end]'s tail, the most recent of equals, and its length.

    A place is compared in full only where it would be longer than the best so far.
    """
    best, best_place = GRAM - 1, 0
    place = previous[end]
    for _ in range(WALK):
        if place == 0 or best == COMPARE:
            break
        if place > best and text[place - 1 - best] == text[end - 1 - best]:
            matched = 0
            while matched < COMPARE and matched < place and text[place - 1 - matched] == text[end - 1 - matched]:
                matched += 1
            if matched > best:
                best, best_place = matched, place
        place = previous[place]
    return best_place, best


@kernel
def offer_rows(
    tokens: I32Array, rows: I64Array, lengths: I32Array, previous: I32Array, drafts: Drafts, parts: DraftParts
) -> None:
    """Draft from a row's own text where it matches more tokens than what the row has.

    Where the match reaches the end of the text, the draft goes on in itself, as a text that repeats would.
    """
    width = drafts.tokens.shape[1]
    for i in range(rows.shape[0]):
        r = rows[i]
        end = lengths[r]
        if end <= GRAM:
            continue
        place, matched = _longest_match(tokens[r], end, previous[r])
        if place == 0 or matched <= drafts.matched[i]:
            continue
        for j in range(width):
            at = place + j
            drafts.tokens[i, j] = tokens[r, at] if at < end else drafts.tokens[i, at - end]
        drafts.lengths[i], drafts.sources[i], drafts.matched[i] = width, _OWN, matched
        drafts.keys[i], drafts.tried[i], drafts.agreed[i] = np.uint64(0), np.uint32(0), np.uint32(0)
        parts.counts[i], parts.keys[i, 0], parts.ends[i, 0] = 1, np.uint64(0), width
