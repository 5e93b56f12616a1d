"""Cold records that the next learn may replace, because their drafts failed or a read found nothing. Bounded, lossy.

A cold record is skipped when it is learnt again (writing it again would cost a 4 KiB page). That is wrong where its
chain is wrong, and its verification counts cannot be written to disk. So they are kept here: 4096 slots by key, 64 KiB
whatever the tier's size; a newer key takes an older one's slot. Never touches a store.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest.hashing import mix64
from flashnest.jit import kernel
from flashnest.record import BoolArray, U32Array, U64Array

SLOTS: Final = 4096
WRONG_AFTER_TOKENS: Final = 8
"""Drafted tokens after which a cold record with less than 1 in 8 accepted may be replaced."""

_MASK = np.uint64(SLOTS - 1)


@kernel
def _add(slots: U64Array, counts: U32Array, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
    for i in range(keys.shape[0]):
        at = mix64(keys[i]) & _MASK
        if slots[at] != keys[i]:
            slots[at] = keys[i]
            counts[at, 0] = 0
            counts[at, 1] = 0
        counts[at, 0] += drafted[i]
        counts[at, 1] += accepted[i]


@kernel
def _wrong(slots: U64Array, counts: U32Array, keys: U64Array, after: int, wrong: BoolArray) -> None:
    for i in range(keys.shape[0]):
        at = mix64(keys[i]) & _MASK
        wrong[i] = slots[at] == keys[i] and counts[at, 0] >= after and counts[at, 1] * 8 < counts[at, 0]


@kernel
def _forget(slots: U64Array, counts: U32Array, keys: U64Array) -> None:
    for i in range(keys.shape[0]):
        at = mix64(keys[i]) & _MASK
        if slots[at] == keys[i]:
            slots[at] = 0
            counts[at, 0] = 0
            counts[at, 1] = 0


class ReplaceMarks:
    """Counts verification results of cold keys. One thread owns it."""

    def __init__(self) -> None:
        self._slots = np.zeros(SLOTS, np.uint64)
        self._counts = np.zeros((SLOTS, 2), np.uint32)

    def add_many(self, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
        """Add token counts, each (n,)."""
        _add(self._slots, self._counts, keys, drafted, accepted)

    def mark_many(self, keys: U64Array) -> None:
        """Mark keys, (n,), as replaceable whatever they did before."""
        _add(
            self._slots,
            self._counts,
            keys,
            np.full(len(keys), WRONG_AFTER_TOKENS * 1024, np.uint32),
            np.zeros(len(keys), np.uint32),
        )

    def wrong_many(self, keys: U64Array) -> BoolArray:
        """Return which keys the next learn may replace, shape (n,)."""
        wrong = np.empty(len(keys), np.bool_)
        _wrong(self._slots, self._counts, keys, WRONG_AFTER_TOKENS, wrong)
        return wrong

    def forget_many(self, keys: U64Array) -> None:
        """Start keys, (n,), afresh: they were replaced."""
        _forget(self._slots, self._counts, keys)
