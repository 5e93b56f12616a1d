"""The drafter for callers that keep each sequence's tokens in an array of its own: copies them into rows.

To go when the engine keeps its requests in rows (`rows.py`).
"""

from __future__ import annotations

import numpy as np

from flashnest.record import CHAIN, BoolArray, I32Array, I64Array, U8Array, U32Array, U64Array, row_chain_lengths
from flashnest.runtime.drafter import Drafter, Drafts, DraftTable, Source


class ListDrafter:
    """`Drafter` behind lists. A sequence is known by its array, which must stay the same one; the oldest make room."""

    def __init__(
        self, table: DraftTable, *, rows: int, ngram_lengths: tuple[int, ...], chain_words: int, max_draft_tokens: int
    ) -> None:
        self._rows_drafter = Drafter(
            table, rows=rows, ngram_lengths=ngram_lengths, chain_words=chain_words, max_draft_tokens=max_draft_tokens
        )
        self._chain_words = chain_words
        self._row_of: dict[int, tuple[int, I32Array]] = {}
        self._tokens = np.zeros((rows, 64), np.int32)
        self._lengths, self._learned = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
        self._salts, self._ids, self._namespaces = np.zeros(rows, np.uint64), *np.zeros((2, rows), np.int64)
        self._queued: dict[int, bool] = {}
        self.drafts, self.ngram_lengths = self._rows_drafter.drafts, self._rows_drafter.ngram_lengths

    def _row(self, tokens: I32Array, length: int) -> int:
        """Return the row of a sequence, with its text up to date."""
        if (known := self._row_of.pop(id(tokens), None)) is None:
            known = self._free_row(), tokens
        row = known[0]
        self._row_of[id(tokens)] = known
        if len(tokens) > self._tokens.shape[1]:
            grown = np.zeros((len(self._tokens), len(tokens)), np.int32)
            grown[:, : self._tokens.shape[1]] = self._tokens
            self._tokens = grown
        at = int(self._lengths[row])
        self._tokens[row, at:length] = tokens[at:length]
        self._lengths[row] = length
        return row

    def _free_row(self) -> int:
        row = len(self._row_of)
        if row == len(self._tokens):
            self.flush_learned()
            row = self._row_of.pop(next(iter(self._row_of)))[0]
        self._rows_drafter.begin(row)
        self._lengths[row] = 0
        return row

    def propose(self, sequences: list[I32Array], lengths: I32Array, salts: U64Array, tickets: I64Array) -> Drafts:
        """Propose for each sequence: `sequences[r][:lengths[r]]` is its text; tickets as `ngram_ticket` makes them."""
        rows = np.array([self._row(t, n) for t, n in zip(sequences, lengths.tolist(), strict=True)], np.int64)
        self._salts[rows], self._ids[rows] = salts, tickets >> 24
        return self._rows_drafter.propose(self._tokens, rows, self._lengths, self._salts, self._ids)

    def answers(self, rows: int) -> tuple[U8Array, I32Array]:
        """See `Drafter.answers`."""
        return self._rows_drafter.answers(rows)

    def waiting(self, rows: int) -> BoolArray:
        """See `Drafter.waiting`."""
        return self._rows_drafter.waiting(rows)

    def offer_row(self, r: int, row: U32Array, key: int, matched: int, source: Source, skip: int) -> None:
        """Make a late record's chain, less its first `skip` tokens, row r's draft where it matches more tokens."""
        drafts, parts = self.drafts, self._rows_drafter.parts
        chain = row[CHAIN + skip : CHAIN + int(row_chain_lengths(row[None])[0])].astype(np.int32)
        count = min(len(chain), drafts.tokens.shape[1])
        if count == 0 or matched <= drafts.matched[r]:
            return
        drafts.tokens[r, :count] = chain[:count]
        drafts.lengths[r], drafts.sources[r], drafts.matched[r], drafts.keys[r] = count, source, matched, key
        drafts.tried[r], drafts.agreed[r] = row[5], row[6]
        parts.counts[r], parts.keys[r, 0], parts.ends[r, 0] = 1, key, count

    def learn(self, tokens: I32Array, start: int, length: int, salt: int, namespace: int, *, final: bool) -> int:
        """Queue one sequence's n-grams from `start` on; returns where the next call starts."""
        row = self._row(tokens, length)
        self._learned[row], self._salts[row], self._namespaces[row] = start, salt, namespace
        self._queued[row] = final
        stop = length if final else length - self._chain_words + 1
        return max(start, stop)

    def flush_learned(self) -> None:
        """Hand what is queued to the table in one call."""
        rows, finals = np.array(list(self._queued), np.int64), np.array(list(self._queued.values()), np.bool_)
        self._queued.clear()
        self._rows_drafter.learn(
            self._tokens, rows, self._learned, self._lengths, self._salts, self._namespaces, finals
        )

    def feedback(self, keys: U64Array, tried: U32Array, agreed: U32Array) -> None:
        """See `Drafter.feedback`."""
        self._rows_drafter.feedback(keys, tried, agreed)
