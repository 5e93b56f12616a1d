"""Draft chains: the longest n-gram known to the table or to the request's own text. Knows no engine and no model.

`propose` and `learn` take arrays, so that a host engine can drive the same code (design.md 7). The drafter never
decides how many tokens are worth verifying: that is the governor's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

import numpy as np

from flashnest.record import (
    ACCEPTED,
    CHAIN,
    DRAFTED,
    MAX_NGRAM_LENGTHS,
    MAX_NGRAM_TOKENS,
    BoolArray,
    I32Array,
    I64Array,
    Kind,
    Tier,
    U8Array,
    U32Array,
    U64Array,
    row_chain_lengths,
    row_kinds,
    row_words,
)
from flashnest.runtime.learning import LearnQueue
from flashnest.runtime.ngrams import match_own
from flashnest.storage.store import Found, State

LEARN_POSITIONS = 1024
"""Positions queued before their records go to the table in one call, four each by default: under 1 ms of inserts."""


class Source(IntEnum):
    """Where a draft came from."""

    NONE = 0
    OWN = 1
    DRAM = 2
    NVME = 3
    VRAM = 4


SOURCE_OF_TIER: Final = {Tier.VRAM: Source.VRAM, Tier.DRAM: Source.DRAM, Tier.NVME: Source.NVME}


class DraftTable(Protocol):
    """What the drafter asks of a table; `flashnest.storage.router.Router` is one."""

    def longest_tails_many(
        self,
        tokens: I32Array,
        ends: I32Array,
        salts: U64Array,
        lengths: I32Array,
        tickets: I64Array,
        keys: U64Array,
        found: Found,
        index: I64Array,
    ) -> None:
        """Hash each row's tail at every length and find its longest record; index (rows,) is -1 where none is at hand.

        tokens int32 (rows, width), ends int32 (rows,): tokens in each; keys uint64 (rows, k) receives the keys.
        """

    def insert_many(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """Insert records where the policy places them."""

    def feedback_many(self, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
        """Add verification results to records."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """One proposal a row: buffers owned by the drafter and overwritten by the next `propose`.

    tokens int32 (rows, width); lengths int32 (rows,): 0 for no draft; sources uint8 (rows,): `Source` codes;
    matched int32 (rows,): tokens of context that matched; keys uint64 (rows,): the record, 0 for own text;
    tried, agreed uint32 (rows,): the record's verification history.
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

    def offer(self, row: int, source: Source, matched: int, chain: I32Array, key: int, tried: int, agreed: int) -> None:
        """Take `chain` as the row's draft if its match is longer than what the row has."""
        if len(chain) == 0 or matched <= self.matched[row]:
            return
        count = min(len(chain), self.tokens.shape[1])
        self.tokens[row, :count] = chain[:count]
        self.lengths[row] = count
        self.sources[row] = source
        self.matched[row] = matched
        self.keys[row] = key
        self.tried[row] = tried
        self.agreed[row] = agreed


class Drafter:
    """Proposes from the table and the sequences' own text, and learns from what the model said.

    Not thread-safe: the engine's thread owns it. `ngram_lengths` ascend; the longest match wins, the table before the
    own text at equal length because its record carries acceptance counts.
    """

    def __init__(
        self, table: DraftTable, *, rows: int, ngram_lengths: tuple[int, ...], chain_words: int, max_draft_tokens: int
    ) -> None:
        if not ngram_lengths or list(ngram_lengths) != sorted(set(ngram_lengths)):
            raise ValueError("ngram_lengths must ascend")
        if len(ngram_lengths) > MAX_NGRAM_LENGTHS:
            raise ValueError(f"at most {MAX_NGRAM_LENGTHS} n-gram lengths, their tickets have no room for more")
        if ngram_lengths[-1] > MAX_NGRAM_TOKENS:
            raise ValueError(f"an n-gram has at most {MAX_NGRAM_TOKENS} tokens")
        self._table = table
        self._lengths = np.array(ngram_lengths, np.int32)
        self._chain_words = chain_words
        words = row_words(chain_words)
        self._found = Found.allocate(rows, words)
        self._index = np.zeros(rows, np.int64)
        self._keys = np.zeros((rows, len(ngram_lengths)), np.uint64)
        self._tails = np.zeros((rows, MAX_NGRAM_TOKENS), np.int32)
        self._ends = np.zeros(rows, np.int32)
        self._own = np.zeros(2, np.int64)
        self._queue = LearnQueue()
        records = 2 * LEARN_POSITIONS * len(ngram_lengths)
        self._learn_keys = np.zeros(records, np.uint64)
        self._learn_rows = np.zeros((records, words), np.uint32)
        self.drafts = Drafts.allocate(rows, max_draft_tokens)
        self._queue.build(self._lengths, self._learn_keys, self._learn_rows)  # loads the kernels: no step waits for it
        match_own(self._tails[0], 0, 1, 1, self._own)

    @property
    def ngram_lengths(self) -> I32Array:
        """The lengths looked up, ascending, int32 (k,)."""
        return self._lengths

    def answers(self, rows: int) -> tuple[U8Array, I32Array]:
        """Return what the table answered at once of the last `propose`: tier codes (rows,) and matched tokens (rows,).

        Where it had nothing the code is the number of tiers, and 0 tokens.
        """
        index = self._index[:rows]
        tiers = np.where(index >= 0, self._found.tier[:rows], len(Tier)).astype(np.uint8)
        matched: I32Array = np.where(index >= 0, self._lengths[index], 0)
        return tiers, matched

    def waiting(self, rows: int) -> BoolArray:
        """Return for which rows of the last `propose` a cold tier was asked while nothing was at hand, bool (rows,)."""
        waiting: BoolArray = self._found.state[:rows] == State.PENDING
        return waiting

    def propose(self, sequences: list[I32Array], lengths: I32Array, salts: U64Array, tickets: I64Array) -> Drafts:
        """Propose for each sequence: `sequences[r][:lengths[r]]` is its text. One table call for all rows.

        tickets int64 (rows,): the ticket of a row's shortest length; length i is asked under ticket + i, and cold
        answers come back under it. Returns `self.drafts`.
        """
        rows = len(sequences)
        self.drafts.clear(rows)
        if rows == 0:
            return self.drafts
        for r, tokens in enumerate(sequences):
            end = int(lengths[r])
            size = min(end, MAX_NGRAM_TOKENS)
            self._tails[r, :size] = tokens[end - size : end]
            self._ends[r] = size
        keys = self._keys[:rows]
        self._table.longest_tails_many(
            self._tails[:rows], self._ends[:rows], salts, self._lengths, tickets, keys, self._found, self._index
        )
        self._take_table(rows, keys)
        self._take_own(sequences, lengths)
        return self.drafts

    def _take_table(self, rows: int, keys: U64Array) -> None:
        index = self._index[:rows]
        for r in np.flatnonzero(index >= 0):
            row = self._found.rows[r]
            source = SOURCE_OF_TIER[Tier(int(self._found.tier[r]))]
            self.offer_row(int(r), row, int(keys[r, index[r]]), int(self._lengths[index[r]]), source, 0)

    def offer_row(self, r: int, row: U32Array, key: int, matched: int, source: Source, skip: int) -> None:
        """Offer a record's chain, less its first `skip` tokens, as row r's draft. Chunk records are no drafts."""
        if row_kinds(row[None])[0] != Kind.NGRAM:
            return
        count = int(row_chain_lengths(row[None])[0])
        chain = row[CHAIN + skip : CHAIN + count].astype(np.int32)
        self.drafts.offer(r, source, matched, chain, key, int(row[DRAFTED]), int(row[ACCEPTED]))

    def _take_own(self, sequences: list[I32Array], lengths: I32Array) -> None:
        shortest = int(self._lengths[0])
        width = self.drafts.tokens.shape[1]
        for r, tokens in enumerate(sequences):
            end = int(lengths[r])
            if end <= shortest:
                continue
            match_own(tokens, end, shortest, MAX_NGRAM_TOKENS, self._own)
            if self._own[0]:
                at = int(self._own[0])
                chain = tokens[at : min(at + width, end)]
                self.drafts.offer(r, Source.OWN, int(self._own[1]), chain, 0, 0, 0)

    def learn(self, tokens: I32Array, start: int, length: int, salt: int, namespace: int, *, final: bool) -> int:
        """Queue the n-grams of one sequence whose continuation is now known; returns where the next call starts.

        Positions start.. are learnt while a full chain follows them, or any chain at all where `final`. Nothing reaches
        the table before `flush_learned`, or a full queue.
        """
        stop = length if final else length - self._chain_words + 1
        for at in range(max(start, int(self._lengths[0])), stop, LEARN_POSITIONS):
            end = min(at + LEARN_POSITIONS, stop)
            first, last = max(0, at - MAX_NGRAM_TOKENS), min(length, end - 1 + self._chain_words)
            self._queue.add(tokens[first:last], at - first, end - first, salt, namespace)
            if self._queue.positions >= LEARN_POSITIONS:
                self.flush_learned()
        return max(start, stop)

    def flush_learned(self) -> None:
        """Turn what is queued into records and hand them to the table in one call."""
        if self._queue.positions:
            count = self._queue.build(self._lengths, self._learn_keys, self._learn_rows)
            self._table.insert_many(self._learn_keys[:count], self._learn_rows[:count])

    def feedback(self, keys: U64Array, tried: U32Array, agreed: U32Array) -> None:
        """Tell the table what became of its drafts; rows without a record (own text) or a draft are skipped."""
        known = (keys != 0) & (tried > 0)
        if known.any():
            self._table.feedback_many(keys[known], tried[known], agreed[known])
