"""The drafter against a plain model of it, dictionaries and lists, through requests that come, speak and go in rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flashnest.record import I32Array, I64Array, Tier, namespace_salt, row_words
from flashnest.runtime.drafter import Drafter
from flashnest.runtime.successors import WALK
from flashnest.storage.router import Router
from flashnest.storage.table import DramTable

LENGTHS, CHAIN, WIDTH, ROWS, MOST_TOKENS = (3, 5), 8, 20, 3, 60
SALTS = [namespace_salt(name) for name in "ab"]


class OneTier:
    """Everything goes to DRAM."""

    chains, admissions = ((Tier.DRAM,),), (None,)

    def chain_codes(self, tokens: I32Array, kind: I32Array, namespace: I32Array, nbytes: I32Array) -> I64Array:
        return np.zeros(len(tokens), np.uint8)  # type: ignore[return-value]


@dataclass
class Model:
    """What the drafter ought to know and to say."""

    records: dict[tuple[int, tuple[int, ...]], list[int]] = field(default_factory=dict)
    successors: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict)
    texts: list[list[int]] = field(default_factory=lambda: [[] for _ in range(ROWS)])
    tenants: list[int] = field(default_factory=lambda: [0] * ROWS)
    learned: list[int] = field(default_factory=lambda: [0] * ROWS)
    read: list[int] = field(default_factory=lambda: [0] * ROWS)

    def learn(self, row: int, final: bool) -> None:
        text, tenant = self.texts[row], self.tenants[row]
        stop = len(text) if final else len(text) - CHAIN + 1
        for place in range(max(self.learned[row], LENGTHS[0]), stop):
            for length in LENGTHS:
                if length <= place:
                    self.records[tenant, tuple(text[place - length : place])] = text[place : place + CHAIN]
        self.learned[row] = max(self.learned[row], stop)
        if final:
            self.take_in(row)

    def take_in(self, row: int) -> None:
        text = self.texts[row]
        for place in range(max(self.read[row], 2), len(text)):
            for length in (1, 2):
                self.successors[self.tenants[row], tuple(text[place - length : place])] = text[place]
        self.read[row] = len(text)

    def longest(self, tenant: int, text: list[int]) -> tuple[int, list[int]]:
        for length in reversed(LENGTHS):
            if length <= len(text) and (chain := self.records.get((tenant, tuple(text[-length:])))):
                return length, chain
        return 0, []

    def own(self, text: list[int]) -> tuple[int, list[int]]:
        best, place = 1, 0
        for end in range(2, len(text)):
            matched = 0
            while matched < min(end, 32) and text[end - 1 - matched] == text[-1 - matched]:
                matched += 1
            if matched >= max(best, 2):
                best, place = matched, end
        said = text[place:] if place else []
        while said and len(said) < WIDTH:
            said = said + said
        return (best if place else 0), said[:WIDTH]

    def draft(self, row: int) -> tuple[int, list[int]]:
        """Return tokens matched and the draft."""
        text, tenant = self.texts[row], self.tenants[row]
        matched, draft = self.longest(tenant, text)
        if (own := self.own(text))[0] > matched:
            matched, draft = own
        for _ in range(-(-WIDTH // CHAIN) - 1):
            if draft and len(draft) < WIDTH:
                more = self.longest(tenant, text + draft)[1]
                draft = (draft + more)[:WIDTH]
                if not more:
                    break
        walked = text + draft
        for _ in range(min(WALK, WIDTH - len(draft))):
            if len(walked) < 2:
                break
            for length in (2, 1):
                token = self.successors.get((tenant, tuple(walked[-length:])))
                if token is not None:
                    break
            if token is None:
                break
            matched = matched or length
            walked.append(token)
        return matched, walked[len(text) :]


class Rows:
    """The drafter and the model side by side."""

    def __init__(self) -> None:
        words = row_words(CHAIN)
        table = DramTable(1 << 20, words=words, clock_s=lambda: 1, populate=False)
        router = Router(table, None, OneTier())  # type: ignore[arg-type]
        self.drafter = Drafter(router, rows=ROWS, ngram_lengths=LENGTHS, chain_words=CHAIN, max_draft_tokens=WIDTH)
        self.model = Model()
        self.tokens, self.lengths = np.zeros((ROWS, MOST_TOKENS), np.int32), np.zeros(ROWS, np.int32)
        self.learned, self.salts = np.zeros(ROWS, np.int32), np.full(ROWS, SALTS[0], np.uint64)
        self.ids, self.namespaces = np.arange(ROWS, dtype=np.int64), np.zeros(ROWS, np.int64)

    def begin(self, row: int, tenant: int) -> None:
        self.drafter.begin(row)
        self.lengths[row] = self.learned[row] = 0
        self.salts[row] = SALTS[tenant]
        self.model.texts[row], self.model.tenants[row] = [], tenant
        self.model.learned[row] = self.model.read[row] = 0

    def say(self, row: int, said: list[int]) -> None:
        said = said[: MOST_TOKENS - len(self.model.texts[row])]
        at = int(self.lengths[row])
        self.tokens[row, at : at + len(said)] = said
        self.lengths[row] += len(said)
        self.model.texts[row] += said

    def learn(self, row: int, *, final: bool) -> None:
        rows, finals = np.array([row], np.int64), np.array([final])
        self.drafter.learn(self.tokens, rows, self.learned, self.lengths, self.salts, self.namespaces, finals)
        self.model.learn(row, final)
        assert self.learned[row] == self.model.learned[row]

    def check_drafts(self, rows: list[int]) -> None:
        drafts = self.drafter.propose(self.tokens, np.array(rows, np.int64), self.lengths, self.salts, self.ids)
        for row in rows:
            self.model.take_in(row)
        for i, row in enumerate(rows):
            said = drafts.tokens[i, : drafts.lengths[i]].tolist()
            assert (int(drafts.matched[i]), said) == self.model.draft(row)


events = st.lists(
    st.tuples(
        st.integers(0, ROWS - 1),
        st.sampled_from(["begin", "say", "say", "end", "propose", "learn"]),
        st.lists(st.integers(0, 3), min_size=1, max_size=12),
        st.integers(0, 1),
    ),
    max_size=30,
)


@given(events)
@settings(deadline=None, max_examples=150)
def test_the_drafter_says_what_a_plain_model_says(history: list[tuple[int, str, list[int], int]]) -> None:
    """Requests of two tenants begin, speak, are learnt and end in three rows, in any order."""
    rows = Rows()
    for row, event, said, tenant in history:
        if event == "begin":
            rows.begin(row, tenant)
        elif event == "say":
            rows.say(row, said)
        elif event == "learn":
            rows.learn(row, final=False)
        elif event == "end":
            rows.learn(row, final=True)
            rows.begin(row, tenant)
        else:
            rows.check_drafts([row] if tenant else [2, 0, 1])
    rows.check_drafts([1, 2, 0])
