"""The queue between what sequences said and the table: spans of text, turned into records in one kernel call.

A decode step ends with a few new tokens in each of many sequences. Copying their surroundings here costs a microsecond
each; hashing and building them one by one cost fifteen. Knows no table.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest.record import I32Array, U32Array, U64Array
from flashnest.runtime.ngrams import learn_spans

_FIRST_SPANS: Final = 256
_FIRST_TOKENS: Final = 16384


class LearnQueue:
    """Gathers spans. `positions` counts the positions queued. One thread owns it."""

    def __init__(self) -> None:
        self._text = np.zeros(_FIRST_TOKENS, np.int32)
        self._spans = np.zeros((_FIRST_SPANS, 5), np.int64)
        self._salts = np.zeros(_FIRST_SPANS, np.uint64)
        self._tokens = self._count = self.positions = 0

    def add(self, text: I32Array, start: int, stop: int, salt: int, namespace: int) -> None:
        """Copy a span: `text` int32 (n,) holds positions start..stop-1 with what comes before and after them."""
        end = self._tokens + len(text)
        if end > len(self._text):
            self._text = np.concatenate([self._text, np.zeros(max(end, len(self._text)), np.int32)])
        if self._count == len(self._spans):
            self._spans = np.concatenate([self._spans, np.zeros_like(self._spans)])
            self._salts = np.concatenate([self._salts, np.zeros_like(self._salts)])
        self._text[self._tokens : end] = text
        self._spans[self._count] = (self._tokens, start, stop, len(text), namespace)
        self._salts[self._count] = salt
        self._tokens = end
        self._count += 1
        self.positions += stop - start

    def build(self, lengths: I32Array, keys: U64Array, rows: U32Array) -> int:
        """Write the queued spans' records and forget them; returns how many; see `ngrams.learn_spans`.

        keys uint64 (m,), rows uint32 (m, words), with m at least `positions` times the number of lengths.
        """
        spans, salts = self._spans[: self._count], self._salts[: self._count]
        count = learn_spans(self._text, spans, salts, lengths, keys, rows)
        self._tokens = self._count = self.positions = 0
        return count
