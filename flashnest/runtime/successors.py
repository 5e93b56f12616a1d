"""What followed the last one or two tokens lately: the draft of last resort. Bounded, in memory, never stored.

A slot holds one successor and 46 bits of its context's key (the slot's number is the rest), so that another namespace's
tokens, whose salt differs, are not found. The newest successor replaces the one before: keeping the most frequent one,
exactly or by vote, accepted the same number of tokens on the recorded streams (docs/drafting.md).
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
_TOKEN_BITS: Final = np.uint64(18)
"""Token ids that fit; larger ones are not kept."""
_TOKEN_MASK = np.uint64((1 << 18) - 1)
_SLOT_SHIFT = np.uint64(64 - SLOT_BITS)
_TAG_SHIFT = np.uint64(SLOT_BITS)
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
        """Add up to `WALK` successors to each row's draft, one after the other; where it is empty, they are it."""
        extend_successors(tokens, rows, lengths, salts, self._slots, drafts, parts)


@inline_kernel
def _tag(key: np.uint64) -> np.uint64:
    return key << _TAG_SHIFT


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
            pair = _pair(single, tokens[r, p - 2])
            slots[single >> _SLOT_SHIFT] = _tag(single) | token
            slots[pair >> _SLOT_SHIFT] = _tag(pair) | token


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
        matched = 0
        for _ in range(min(WALK, width - count)):
            single = _single(salts[r], last)
            pair = _pair(single, before)
            order, slot, tag = 2, slots[pair >> _SLOT_SHIFT], _tag(pair)
            if slot & ~_TOKEN_MASK != tag:
                order, slot, tag = 1, slots[single >> _SLOT_SHIFT], _tag(single)
            if slot & ~_TOKEN_MASK != tag:
                break
            matched = matched if matched > 0 else order
            before, last = last, np.int32(slot & _TOKEN_MASK)
            drafts.tokens[i, count] = last
            count += 1
        if drafts.lengths[i] == 0 and count > 0:
            drafts.sources[i], drafts.matched[i] = _RECENT, matched
        if count > drafts.lengths[i]:
            part = parts.counts[i]
            parts.keys[i, part], parts.ends[i, part], parts.counts[i] = np.uint64(0), count, part + 1
            drafts.lengths[i] = count
