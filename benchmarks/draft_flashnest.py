"""flashnest's drafter with a router and a DRAM table of its own, as the draft benchmarks drive it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from benchmarks.draft_replay import Tokens
from flashnest.cli.policy.files import tiering_path
from flashnest.policy import load_tiering_file
from flashnest.record import NGRAM_LENGTHS, BoolArray, I64Array, namespace_id, namespace_salt, row_words
from flashnest.runtime.drafter import Drafter
from flashnest.runtime.drafts import Drafts
from flashnest.storage.router import Router
from flashnest.storage.step_clock import StepClock
from flashnest.storage.table import DramTable

CHAIN_WORDS = 8
_TABLE_BYTES = 64 << 20
_CAPACITY = 4096


class Texts:
    """Texts in rows, as an engine keeps them."""

    def __init__(self, rows: int) -> None:
        self.tokens, self.lengths = np.zeros((rows, _CAPACITY), np.int32), np.zeros(rows, np.int32)

    def put(self, row: int, text: Tokens, at: int = 0) -> None:
        """Write tokens at a place of a row and end it there."""
        self.tokens[row, at : at + len(text)] = text
        self.lengths[row] = at + len(text)

    def add(self, rows: Sequence[int], said: Sequence[Tokens]) -> None:
        """Add to rows."""
        for row, tokens in zip(rows, said, strict=True):
            self.put(row, tokens, int(self.lengths[row]))


class Flashnest:
    """The drafter over a router with a DRAM table."""

    def __init__(self, rows: int, width: int) -> None:
        clock = StepClock(lambda: 1 + int(time.monotonic()))
        self.table = DramTable(_TABLE_BYTES, words=row_words(CHAIN_WORDS), clock_s=clock)
        self.table.wait_for_pages()
        policy = load_tiering_file(tiering_path("dram_only")).compile()
        self.drafter = Drafter(
            Router(self.table, None, policy.placement, clock_s=clock),
            rows=rows,
            ngram_lengths=NGRAM_LENGTHS,
            chain_words=CHAIN_WORDS,
            max_draft_tokens=width,
        )
        self.texts, self.learned = Texts(rows), np.zeros(rows, np.int32)
        self.salts = np.full(rows, namespace_salt("default"), np.uint64)
        self.namespaces = np.full(rows, namespace_id("default"), np.int64)
        self.ids = np.arange(rows, dtype=np.int64)

    def start(self, row: int, prompt: Tokens) -> None:
        """See `Replayed`."""
        self.drafter.begin(row)
        self.texts.put(row, prompt)
        self.learned[row] = 0
        self.learn(np.array([row], np.int64), np.zeros(1, np.bool_))

    def ask(self, rows: I64Array) -> Drafts:
        """Propose, as the engine does."""
        texts = self.texts
        return self.drafter.propose(texts.tokens, rows, texts.lengths, self.salts, self.ids)

    def learn(self, rows: I64Array, finals: BoolArray) -> None:
        """Learn, as the engine does."""
        texts = self.texts
        self.drafter.learn(texts.tokens, rows, self.learned, texts.lengths, self.salts, self.namespaces, finals)

    def propose(self, rows: Sequence[int]) -> list[Tokens]:
        """See `Replayed`."""
        drafts = self.ask(np.array(rows, np.int64))
        return [drafts.tokens[i, : drafts.lengths[i]].copy() for i in range(len(rows))]

    def take(self, rows: Sequence[int], said: Sequence[Tokens], ended: Sequence[bool]) -> None:
        """See `Replayed`."""
        self.judge(said)
        self.add(rows, said, ended)

    def add(self, rows: Sequence[int], said: Sequence[Tokens], ended: Sequence[bool]) -> None:
        """Take in and learn what was said."""
        self.texts.add(rows, said)
        self.learn(np.array(rows, np.int64), np.array(ended, np.bool_))

    def judge(self, said: Sequence[Tokens]) -> None:
        """Tell the records what became of the last proposal."""
        drafts, n = self.drafter.drafts, len(said)
        agreed = np.array([len(tokens) - 1 for tokens in said], np.uint32)
        tried = np.minimum(agreed + 1, drafts.lengths[:n]).astype(np.uint32)
        self.drafter.feedback(drafts.keys[:n], tried, agreed)

    def history_bytes(self) -> int:
        """Return the records' share of the table and the successors, which are allocated whole."""
        share = len(self.table) / self.table.max_records
        return int(share * self.table.bytes_used) + self.drafter.fixed_bytes
