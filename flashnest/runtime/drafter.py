"""Draft chains: the longest n-gram known to the table or to the request's own text. Knows no engine and no model.

Everything is arrays with one row a running request, so that a host engine can drive the same code (design.md 7). A
draft longer than a record's chain is put together from several records: the tail of context and draft is looked up
again. The drafter never decides how many tokens are worth verifying: that is the governor's.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np

from flashnest.record import (
    MAX_NGRAM_LENGTHS,
    MAX_NGRAM_TOKENS,
    BoolArray,
    I32Array,
    I64Array,
    Tier,
    U8Array,
    U32Array,
    U64Array,
    row_words,
)
from flashnest.runtime.draft_kernels import append_answers, gather_tails, open_ends, share_feedback, take_answers
from flashnest.runtime.drafts import SOURCE_OF_TIER, DraftParts, Drafts, Source
from flashnest.runtime.late import LateDrafts
from flashnest.runtime.ngrams import learn_rows
from flashnest.runtime.own_text import OwnText
from flashnest.runtime.successors import Successors
from flashnest.runtime.tickets import ngram_tickets
from flashnest.storage.store import Found, State

__all__ = ["SOURCE_OF_TIER", "DraftTable", "Drafter", "Drafts", "Source"]

LEARN_RECORDS: Final = 4096
"""Records handed to the table in one call: under 1 ms of inserts."""

_SOURCE_CODES: Final = np.array([SOURCE_OF_TIER[tier] for tier in Tier], np.uint8)


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

    def extend_tails_many(
        self,
        tokens: I32Array,
        ends: I32Array,
        salts: U64Array,
        lengths: I32Array,
        keys: U64Array,
        found: Found,
        index: I64Array,
    ) -> None:
        """Do the same for tails that end in drafted tokens: what is not in memory is not there."""

    def insert_many(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """Insert records where the policy places them."""

    def feedback_many(self, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
        """Add verification results to records."""


class Drafter:
    """Proposes from the table and the sequences' own text, and learns from what the model said.

    Not thread-safe: the engine's thread owns it. `ngram_lengths` ascend; the longest match wins, the table before the
    own text at equal length because its record carries acceptance counts.

    Its arrays, of R rows: tokens int32 (R, capacity), lengths int32 (R,): a row's text; salts uint64 (R,); request_ids
    int64 (R,). `rows` int64 (n,) names those that a call is about, each once.
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
        words = row_words(chain_words)
        self._hops = -(-max_draft_tokens // chain_words) - 1
        self._questions = Questions(rows, len(ngram_lengths), words)
        self._more = Questions(rows, len(ngram_lengths), words, self._questions.found)
        self._at = np.zeros(rows, np.int64)
        self._own, self._successors = OwnText(rows), Successors()
        self._learn_keys = np.zeros(LEARN_RECORDS, np.uint64)
        self._learn_rows = np.zeros((LEARN_RECORDS, words), np.uint32)
        self._tiers, self._matched = np.zeros(rows, np.uint8), np.zeros(rows, np.int32)
        self._waiting = np.zeros(rows, np.bool_)
        self.late = LateDrafts(rows, words, self._lengths)
        self.drafts = Drafts.allocate(rows, max_draft_tokens)
        self.parts = DraftParts.allocate(rows, self._hops + 2)
        self._verdicts = (
            np.zeros(rows * (self._hops + 2), np.uint64),
            *np.zeros((2, rows * (self._hops + 2)), np.uint32),
        )
        self._compile()

    def _compile(self) -> None:
        """Load or compile every kernel now, so that no step waits for one."""
        none, flags = np.zeros(0, np.int64), np.zeros(0, np.bool_)
        tokens, one, salts = np.zeros((1, 1), np.int32), np.zeros(1, np.int32), np.zeros(1, np.uint64)
        self.propose(tokens, none, one, salts, np.zeros(1, np.int64))
        self._extend(0)
        self.learn(tokens, none, one, one, salts, np.zeros(1, np.int64), flags)
        self.feedback(salts[:0], np.zeros(0, np.uint32), np.zeros(0, np.uint32))
        self.late.compile(none)

    @property
    def ngram_lengths(self) -> I32Array:
        """The lengths looked up, ascending, int32 (k,)."""
        return self._lengths

    @property
    def fixed_bytes(self) -> int:
        """Bytes that do not grow with what is learnt, but for the rows' own texts."""
        return self._successors.nbytes

    def answers(self, rows: int) -> tuple[U8Array, I32Array]:
        """Return what the table answered of the last `propose`: tier codes (rows,), tokens matched at once (rows,).

        Where it had nothing the code is the number of tiers, and 0 tokens. A late answer that was used is NVMe's.
        """
        return self._tiers[:rows], self._matched[:rows]

    def waiting(self, rows: int) -> BoolArray:
        """Return for which rows of the last `propose` a cold tier was asked while nothing was at hand, bool (rows,)."""
        return self._waiting[:rows]

    def begin(self, row: int) -> None:
        """Forget what was in a row: another request has it from now on."""
        self._own.begin(row)
        self.late.begin(row)

    def propose(
        self, tokens: I32Array, rows: I64Array, lengths: I32Array, salts: U64Array, request_ids: I64Array
    ) -> Drafts:
        """Propose for n rows; draft i of `self.drafts`, which is returned, belongs to rows[i].

        One table call for all rows, and one more each time that drafts go on in another record. Cold answers come back
        under `tickets.ngram_ticket(request id, length)`: hand them to `self.late`.
        """
        n, ask = len(rows), self._questions
        self._read(tokens, rows, lengths, salts)
        gather_tails(tokens, rows, lengths, salts, ask.tails, ask.ends, ask.salts)
        tickets, keys = ngram_tickets(request_ids[rows], lengths[rows]), ask.keys[:n]
        self._table.longest_tails_many(
            ask.tails[:n], ask.ends[:n], ask.salts[:n], self._lengths, tickets, keys, ask.found, ask.index
        )
        np.equal(ask.found.state[:n], State.PENDING, out=self._waiting[:n])
        found, tiers, matched = ask.found, self._tiers, self._matched
        drafts, parts = self.drafts, self.parts
        take_answers(
            ask.index, found.tier, found.rows, keys, self._lengths, _SOURCE_CODES, drafts, parts, tiers, matched
        )
        self.late.offer(tokens, rows, lengths, drafts, parts, tiers, matched)
        self._own.offer(tokens, rows, lengths, drafts, parts)
        for hop in range(self._hops):
            if not self._extend(n, hop + 1):
                break
        self._successors.extend(tokens, rows, lengths, salts, drafts, parts)
        return drafts

    def _read(self, tokens: I32Array, rows: I64Array, lengths: I32Array, salts: U64Array) -> None:
        """Take in what rows have gained since they were last here."""
        self._successors.learn(tokens, rows, self._own.read_to(rows), lengths, salts)
        self._own.read(tokens, rows, lengths)

    def _extend(self, rows: int, hop: int = 1) -> int:
        """Look up the tails of the drafts that have room; returns how many have grown."""
        ask, more = self._questions, self._more
        drafts, parts, at = self.drafts, self.parts, self._at
        m = open_ends(ask.tails, ask.ends[:rows], ask.salts, drafts, parts, more.tails, more.ends, more.salts, at, hop)
        if not m and rows:
            return 0
        keys = more.keys[:m]
        self._table.extend_tails_many(
            more.tails[:m], more.ends[:m], more.salts[:m], self._lengths, keys, more.found, more.index
        )
        return append_answers(more.index, more.found.rows, keys, at, drafts, parts)

    def learn(
        self,
        tokens: I32Array,
        rows: I64Array,
        learned: I32Array,
        lengths: I32Array,
        salts: U64Array,
        namespaces: I64Array,
        finals: BoolArray,
    ) -> None:
        """Hand the n-grams of n rows whose continuation is now known to the table, in calls of `LEARN_RECORDS`.

        learned int32 (R,): where each row's learning stands, moved on; namespaces int64 (R,): ids. Positions are learnt
        while a full chain follows them, or any chain at all where finals bool (n,) says that the row ends.
        """
        while count := learn_rows(
            tokens,
            rows,
            learned,
            lengths,
            salts,
            namespaces,
            finals,
            self._lengths,
            self._learn_keys,
            self._learn_rows,
        ):
            self._table.insert_many(self._learn_keys[:count], self._learn_rows[:count])
        if finals.any():
            self._read(tokens, rows[finals], lengths, salts)

    def feedback(self, keys: U64Array, tried: U32Array, agreed: U32Array) -> None:
        """Tell the table what became of the last proposal: keys uint64 (n,) are its `drafts.keys`.

        tried, agreed uint32 (n,): tokens that the model judged, and those it agreed with. Each record that a draft was
        put together from hears of its own tokens; own text and rows without a draft are skipped.
        """
        to_keys, to_tried, to_agreed = self._verdicts
        count = share_feedback(keys, tried, agreed, self.parts, to_keys, to_tried, to_agreed)
        if count:
            self._table.feedback_many(to_keys[:count], to_tried[:count], to_agreed[:count])


class Questions:
    """Buffers for one table call: tails int32 (rows, 32), ends, salts, keys (rows, k), and the answers."""

    def __init__(self, rows: int, lengths: int, words: int, found: Found | None = None) -> None:
        self.tails = np.zeros((rows, MAX_NGRAM_TOKENS), np.int32)
        self.ends, self.salts = np.zeros(rows, np.int32), np.zeros(rows, np.uint64)
        self.keys, self.index = np.zeros((rows, lengths), np.uint64), np.zeros(rows, np.int64)
        self.found = Found.allocate(rows, words) if found is None else found
