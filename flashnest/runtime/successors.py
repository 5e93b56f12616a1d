"""What followed the last one or two tokens lately: the draft of last resort. Bounded, in memory, never stored.

A slot, from its low bits: the successor (18), how often the one before it came again (4) in how many times that the
context came again (4), and 38 bits of the context's key, of which the slot's number is another 18: another namespace's
tokens, whose salt differs, are not found. The newest successor replaces the one before: keeping the most frequent one,
exactly or by vote, accepted the same number of tokens on the recorded streams (docs/drafting.md). The counts say how
predictable a context is: of pairs, 19 % were right with a share below 0.1, and 90 % from 0.7 on.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest.hashing import mix64
from flashnest.jit import inline_kernel, kernel
from flashnest.record import I32Array, I64Array, U64Array
from flashnest.runtime.drafts import DraftParts, Drafts, Source

SLOT_BITS: Final = 18
"""2^18 slots, 2 MiB: the last 100,000 or so different bigrams."""
WALK: Final = 4
"""Most successors drafted in a row: 8 add 1 % accepted tokens and a third more wasted ones."""
_TOKEN_MASK = np.uint64((1 << 18) - 1)
"""Larger token ids are not kept."""
_AGREED_SHIFT, _TRIED_SHIFT, _COUNT = np.uint64(18), np.uint64(22), np.uint64(15)
_TAG_SHIFT = np.uint64(26)
_SLOT_SHIFT = np.uint64(64 - SLOT_BITS)
_ONE = np.uint64(1)
_PAIR = np.uint64(0x9E3779B97F4A7C15)
_RECENT: Final = int(Source.RECENT)


class Successors:
    """The slots of all namespaces. One thread owns it."""

    def __init__(self) -> None:
        self._slots = np.zeros(1 << SLOT_BITS, np.uint64)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._slots.nbytes

    def learn(self, tokens: I32Array, rows: I64Array, starts: I32Array, lengths: I32Array, salts: U64Array) -> None:
        """Note what follows each token of rows, int64 (n,), from starts, int32 (n,), to their lengths, int32 (R,).

        tokens int32 (R, capacity), salts uint64 (R,).
        """
        learn_successors(tokens, rows, starts, lengths, salts, self._slots)

    def extend(
        self,
        tokens: I32Array,
        rows: I64Array,
        lengths: I32Array,
        salts: U64Array,
        drafts: Drafts,
        parts: DraftParts,
    ) -> None:
        """Add up to `WALK` successors to each row's draft, one after the other; where it is empty, they are it.

        Then its history is how often the context's successor was the one of the time before.
        """
        extend_successors(tokens, rows, lengths, salts, self._slots, drafts, parts)


@inline_kernel
def _tag(key: np.uint64) -> np.uint64:
    return key << _TAG_SHIFT


@inline_kernel
def _known(slot: np.uint64, key: np.uint64) -> bool:
    """Whether a slot is this context's."""
    return bool(slot != np.uint64(0) and slot >> _TAG_SHIFT == _tag(key) >> _TAG_SHIFT)


@inline_kernel
def _note(slots: U64Array, key: np.uint64, token: np.uint64) -> None:
    """Write a context's successor, and whether it is the one that came last time; both counts are halved at 16."""
    slot, tried, agreed = slots[key >> _SLOT_SHIFT], np.uint64(0), np.uint64(0)
    if _known(slot, key):
        tried = ((slot >> _TRIED_SHIFT) & _COUNT) + _ONE
        agreed = ((slot >> _AGREED_SHIFT) & _COUNT) + np.uint64(slot & _TOKEN_MASK == token)
        if tried > _COUNT:
            tried, agreed = tried >> _ONE, agreed >> _ONE
    slots[key >> _SLOT_SHIFT] = _tag(key) | (tried << _TRIED_SHIFT) | (agreed << _AGREED_SHIFT) | token


@inline_kernel
def _single(salt: np.uint64, token: np.int32) -> np.uint64:
    return mix64(salt + _PAIR + np.uint64(np.uint32(token)))


@inline_kernel
def _pair(single: np.uint64, before: np.int32) -> np.uint64:
    return mix64(single + _PAIR + np.uint64(np.uint32(before)))


@kernel
def learn_successors(
    tokens: I32Array, rows: I64Array, starts: I32Array, lengths: I32Array, salts: U64Array, slots: U64Array
) -> None:
    """Write tokens starts[i]..lengths[rows[i]]-1 of each row as successors of the one and the two before them."""
    for i in range(rows.shape[0]):
        r = rows[i]
        for p in range(max(starts[i], 2), lengths[r]):
            token = np.uint64(np.uint32(tokens[r, p]))
            if token > _TOKEN_MASK:
                continue
            single = _single(salts[r], tokens[r, p - 1])
            _note(slots, single, token)
            _note(slots, _pair(single, tokens[r, p - 2]), token)


@kernel
def extend_successors(
    tokens: I32Array,
    rows: I64Array,
    lengths: I32Array,
    salts: U64Array,
    slots: U64Array,
    drafts: Drafts,
    parts: DraftParts,
) -> None:
    """Walk from each row's last two tokens, draft included: the pair's successor, else the last token's."""
    width = drafts.tokens.shape[1]
    for i in range(rows.shape[0]):
        r, count = rows[i], np.int64(drafts.lengths[i])
        end = lengths[r]
        if end + count < 2:
            continue
        last = drafts.tokens[i, count - 1] if count > 0 else tokens[r, end - 1]
        before = drafts.tokens[i, count - 2] if count > 1 else tokens[r, end - 2 + count]
        for _ in range(min(WALK, width - count)):
            single = _single(salts[r], last)
            pair = _pair(single, before)
            order, slot = 2, slots[pair >> _SLOT_SHIFT]
            if not _known(slot, pair):
                order, slot = 1, slots[single >> _SLOT_SHIFT]
                if not _known(slot, single):
                    break
            if count == 0:
                drafts.sources[i], drafts.matched[i] = _RECENT, order
                drafts.tried[i] = np.uint32((slot >> _TRIED_SHIFT) & _COUNT)
                drafts.agreed[i] = np.uint32((slot >> _AGREED_SHIFT) & _COUNT)
            before, last = last, np.int32(slot & _TOKEN_MASK)
            drafts.tokens[i, count] = last
            count += 1
        if count > drafts.lengths[i]:
            part = parts.counts[i]
            parts.keys[i, part], parts.ends[i, part], parts.counts[i] = np.uint64(0), count, part + 1
            drafts.lengths[i] = count
