"""The drafter against a real DRAM table: longest match wins, what was learnt is proposed, tenants stay apart."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from flashnest.record import (
    ACCEPTED,
    DRAFTED,
    META,
    BoolArray,
    I32Array,
    I64Array,
    Kind,
    Tier,
    U32Array,
    U64Array,
    namespace_salt,
    pack_meta,
    row_words,
)
from flashnest.record import CHAIN as CHAIN_AT
from flashnest.runtime.drafter import LEARN_RECORDS, Drafter
from flashnest.runtime.drafts import Source
from flashnest.runtime.tickets import ngram_ticket
from flashnest.storage.cold_reads import ColdAnswers
from flashnest.storage.store import Found
from flashnest.storage.table import DramTable

LENGTHS = (4, 8, 16, 32)
CHAIN = 8
SALT = namespace_salt("default")


@dataclass
class TableOnly:
    """A router of one DRAM table: what the drafter asks of a table, without tiers."""

    table: DramTable
    fed: list[tuple[list[int], list[int], list[int]]] = field(default_factory=list)

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
        self.table.longest_tails_many(tokens, ends, salts, lengths, keys, found, index)

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
        self.table.longest_tails_many(tokens, ends, salts, lengths, keys, found, index)

    def insert_many(self, keys: U64Array, rows: U32Array) -> BoolArray:
        return self.table.insert_many(keys, rows)

    def feedback_many(self, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
        self.fed.append((keys.tolist(), drafted.tolist(), accepted.tolist()))
        self.table.feedback_many(keys, drafted, accepted)


@pytest.fixture
def table() -> TableOnly:
    return TableOnly(DramTable(4 << 20, words=row_words(CHAIN), clock_s=lambda: 1))


class Rows:
    """A drafter with texts in rows, as an engine keeps them."""

    def __init__(
        self,
        table: TableOnly,
        *,
        rows: int = 4,
        lengths: tuple[int, ...] = LENGTHS,
        width: int = CHAIN,
        capacity: int = 512,
    ) -> None:
        self.drafter = Drafter(table, rows=rows, ngram_lengths=lengths, chain_words=CHAIN, max_draft_tokens=width)
        self.drafts = self.drafter.drafts
        self.tokens, self.lengths = np.zeros((rows, capacity), np.int32), np.zeros(rows, np.int32)
        self.learned, self.salts = np.zeros(rows, np.int32), np.full(rows, SALT, np.uint64)
        self.namespaces, self.ids = np.full(rows, 7, np.int64), np.arange(rows, dtype=np.int64)

    def put(self, row: int, text: I32Array, salt: int = SALT) -> None:
        """Give a row to a new request."""
        self.drafter.begin(row)
        self.tokens[row], self.learned[row], self.salts[row] = 0, 0, salt
        self.say(row, text, at=0)

    def say(self, row: int, text: I32Array, at: int | None = None) -> None:
        """Add tokens to a row."""
        at = int(self.lengths[row]) if at is None else at
        self.tokens[row, at : at + len(text)] = text
        self.lengths[row] = at + len(text)

    def propose(self, *texts: I32Array, salt: int = SALT) -> None:
        """Propose for new requests with these texts."""
        for row, text in enumerate(texts):
            self.put(row, text, salt)
        self.go_on(*range(len(texts)))

    def go_on(self, *rows: int) -> None:
        """Propose for rows as they are."""
        self.drafter.propose(self.tokens, np.array(rows, np.int64), self.lengths, self.salts, self.ids)

    def learn(self, row: int, *, final: bool) -> int:
        """Learn a row; returns where its learning stands."""
        one = np.array([row], np.int64)
        finals = np.array([final])
        self.drafter.learn(self.tokens, one, self.learned, self.lengths, self.salts, self.namespaces, finals)
        return int(self.learned[row])

    def draft(self, row: int = 0) -> list[int]:
        """Return the last proposal of a row."""
        return [int(t) for t in self.drafts.tokens[row, : self.drafts.lengths[row]]]


def make_drafter(table: TableOnly, rows: int = 4, lengths: tuple[int, ...] = LENGTHS) -> Rows:
    return Rows(table, rows=rows, lengths=lengths)


def propose(rows: Rows, *texts: I32Array, salt: int = SALT) -> None:
    rows.propose(*texts, salt=salt)


def learn(rows: Rows, text: I32Array, salt: int = SALT, *, final: bool = True) -> int:
    """Learn a text by another drafter of the same table, which shares nothing else with this one."""
    teacher = Rows(rows.drafter._table)  # type: ignore[arg-type]
    teacher.put(0, text, salt)
    return teacher.learn(0, final=final)


def distinct_text(count: int, seed: int = 0) -> I32Array:
    return np.random.default_rng(seed).permutation(100_000)[:count].astype(np.int32)


@pytest.mark.parametrize("known", [4, 5, 8, 15, 16, 32, 40])
def test_longest_length_that_is_known_wins(table: TableOnly, known: int) -> None:
    drafter = make_drafter(table)
    text = distinct_text(100)
    learn(drafter, text)
    stranger = np.concatenate([distinct_text(40, seed=1) + 200_000, text[60 - known : 60]]).astype(np.int32)
    propose(drafter, stranger)
    assert drafter.drafts.matched[0] == max(n for n in LENGTHS if n <= known)
    assert drafter.drafts.sources[0] == Source.DRAM
    assert drafter.drafts.tokens[0, : drafter.drafts.lengths[0]].tolist() == text[60:68].tolist()


@pytest.mark.parametrize("tier", list(Tier))
def test_a_draft_names_the_tier_that_answered(tier: Tier) -> None:
    drafter = make_drafter(TableOnly(DramTable(1 << 20, words=row_words(CHAIN), clock_s=lambda: 1, tier=tier)))
    text = distinct_text(100)
    learn(drafter, text)
    propose(drafter, text[20:60])
    assert Source(int(drafter.drafts.sources[0])).name == tier.name


def test_three_tokens_are_no_match(table: TableOnly) -> None:
    drafter = make_drafter(table)
    text = distinct_text(100)
    learn(drafter, text)
    propose(drafter, np.concatenate([[999_999, 999_998], text[57:60]]).astype(np.int32))
    assert drafter.drafts.lengths[0] == 0
    assert drafter.drafts.sources[0] == Source.NONE


def test_chain_is_cut_at_the_end_of_a_finished_text(table: TableOnly) -> None:
    drafter = make_drafter(table)
    text = distinct_text(50)
    learn(drafter, text)
    propose(drafter, text[:47].copy())
    assert drafter.drafts.tokens[0, : drafter.drafts.lengths[0]].tolist() == text[47:].tolist()


def test_an_unfinished_text_is_learnt_only_where_a_whole_chain_follows(table: TableOnly) -> None:
    drafter = make_drafter(table)
    text = distinct_text(50)
    assert learn(drafter, text, final=False) == 50 - CHAIN + 1
    propose(drafter, text[:43].copy(), text[:42].copy())
    assert drafter.drafts.lengths[:2].tolist() == [0, CHAIN]


def test_learning_in_parts_equals_learning_at_once(table: TableOnly) -> None:
    text = distinct_text(300)
    other = TableOnly(DramTable(4 << 20, words=16, clock_s=lambda: 1))
    parts, whole = Rows(table), Rows(other)
    at = 0
    for end in (10, 40, 41, 200, 300):
        parts.say(0, text[at:end])
        parts.learn(0, final=end == 300)
        at = end
    learn(whole, text)
    ours = {k: r.tolist() for keys, rows in table.table.scan() for k, r in zip(keys.tolist(), rows, strict=True)}
    theirs = {k: r.tolist() for keys, rows in other.table.scan() for k, r in zip(keys.tolist(), rows, strict=True)}
    assert ours == theirs
    assert len(ours) == sum(300 - n for n in LENGTHS)


def test_a_text_of_more_records_than_one_call_takes_is_learnt_whole(table: TableOnly) -> None:
    count = LEARN_RECORDS // len(LENGTHS) + 100
    rows = Rows(table, capacity=count)
    rows.say(0, distinct_text(count))
    assert rows.learn(0, final=True) == count
    assert len(table.table) == sum(count - n for n in LENGTHS)


def test_another_tenant_finds_nothing(table: TableOnly) -> None:
    drafter = make_drafter(table)
    text = distinct_text(100)
    learn(drafter, text)
    propose(drafter, text[:60].copy(), salt=namespace_salt("other"))
    assert drafter.drafts.lengths[0] == 0


def test_own_text_wins_with_a_longer_match_and_the_table_with_an_equal_one(table: TableOnly) -> None:
    drafter = make_drafter(table)
    text = distinct_text(100)
    learn(drafter, text)
    own = np.concatenate([text[40:60], [7, 8, 9], text[40:60]]).astype(np.int32)
    propose(drafter, own)
    assert drafter.drafts.sources[0] == Source.OWN
    assert drafter.drafts.matched[0] == 20
    assert drafter.drafts.tokens[0, :3].tolist() == [7, 8, 9]
    equal = np.concatenate([text[44:60], [7, 8, 9], [1, 2, 3], text[44:60]]).astype(np.int32)
    propose(drafter, equal)
    assert drafter.drafts.sources[0] == Source.DRAM
    assert drafter.drafts.tokens[0, 0] == text[60]


def test_feedback_skips_own_text_and_rows_without_a_draft(table: TableOnly) -> None:
    rows = make_drafter(table)
    rows.drafter.feedback(
        np.array([0, 5, 6], np.uint64), np.array([3, 0, 2], np.uint32), np.array([3, 0, 1], np.uint32)
    )
    assert table.fed == [([6], [2], [1])]


@pytest.mark.parametrize("width", [8, 11, 16, 20, 24])
def test_a_draft_longer_than_a_chain_goes_on_in_the_next_record(table: TableOnly, width: int) -> None:
    rows = Rows(table, width=width)
    text = distinct_text(100)
    learn(rows, text)
    rows.propose(text[:60].copy())
    assert rows.draft() == text[60 : 60 + width].tolist()
    assert rows.drafts.matched[0] == 32


def test_a_long_draft_stops_where_the_table_knows_no_more(table: TableOnly) -> None:
    rows = Rows(table, width=24)
    text = distinct_text(73)
    learn(rows, text)
    rows.propose(text[:60].copy())
    assert rows.draft() == text[60:].tolist()


def test_each_record_of_a_long_draft_hears_of_its_own_tokens(table: TableOnly) -> None:
    rows = Rows(table, width=20)
    text = distinct_text(100)
    learn(rows, text)
    rows.propose(text[:60].copy(), text[:50].copy())
    assert rows.drafts.lengths[:2].tolist() == [20, 20]
    rows.drafter.feedback(rows.drafts.keys[:2], np.array([20, 10], np.uint32), np.array([20, 9], np.uint32))
    keys, tried, agreed = table.fed[0]
    assert len(set(keys)) == 5
    assert (tried, agreed) == ([8, 8, 4, 8, 2], [8, 8, 4, 8, 1])
    facts = {k: r[[DRAFTED, ACCEPTED]].tolist() for ks, rs in table.table.scan() for k, r in zip(ks.tolist(), rs)}  # noqa: B905
    assert [facts[key] for key in keys] == [[8, 8], [8, 8], [4, 4], [8, 8], [2, 1]]


def test_rows_are_proposed_for_in_any_order_and_number(table: TableOnly) -> None:
    rows = Rows(table, rows=8)
    text = distinct_text(200)
    learn(rows, text)
    for row in range(8):
        rows.put(row, text[: 40 + 10 * row].copy())
    rows.go_on(6, 1, 3)
    for i, row in enumerate((6, 1, 3)):
        assert rows.draft(i) == text[40 + 10 * row : 48 + 10 * row].tolist()


def test_tickets_name_request_and_length(table: TableOnly) -> None:
    rows = Rows(table)
    rows.ids[:] = 100 + np.arange(4)
    rows.put(2, distinct_text(50))
    asked: list[I64Array] = []
    ask = table.longest_tails_many

    def note(tokens, ends, salts, lengths, tickets, *rest):  # type: ignore[no-untyped-def]
        asked.append(tickets)
        ask(tokens, ends, salts, lengths, tickets, *rest)

    table.longest_tails_many = note  # type: ignore[method-assign]
    rows.go_on(2)
    assert asked[0].tolist() == [ngram_ticket(102, 50)]


def late_answer(text: I32Array, start: int, request_id: int, asked_at: int) -> ColdAnswers:
    """Return a cold answer: after 16 tokens text[start:] follows, asked by a request that had `asked_at` tokens."""
    record = np.zeros((1, row_words(CHAIN)), np.uint32)
    record[0, META] = pack_meta(Kind.NGRAM, 16, CHAIN)
    record[0, CHAIN_AT:] = text[start : start + CHAIN]
    return ColdAnswers(
        np.array([ngram_ticket(request_id, asked_at) + 2]), np.array([77], np.uint64), np.ones(1, np.bool_), record
    )


def test_a_late_record_is_offered_once_advanced_by_what_was_said(table: TableOnly) -> None:
    rows, text = Rows(table, width=12), distinct_text(100)
    rows.put(1, text[:40])
    rows.ids[:] = [-1, 9, -1, -1]
    rows.say(1, text[40:43])
    rows.drafter.late.take(late_answer(text, 40, 9, 40), rows.tokens, rows.lengths, rows.ids)
    rows.go_on(1)
    assert rows.draft() == text[43:48].tolist()
    assert (rows.drafts.sources[0], rows.drafts.matched[0], rows.drafts.keys[0]) == (Source.NVME, 19, 77)
    assert rows.drafter.answers(1)[0].tolist() == [Tier.NVME]
    rows.go_on(1)
    assert rows.draft() == []


def test_a_late_record_that_disagrees_is_dropped(table: TableOnly) -> None:
    rows, text = Rows(table), distinct_text(100)
    rows.put(1, text[:40])
    rows.say(1, text[41:43])
    rows.drafter.late.take(late_answer(text, 40, 1, 40), rows.tokens, rows.lengths, rows.ids)
    rows.go_on(1)
    assert rows.drafts.sources[0] != Source.NVME


def test_a_late_record_of_the_request_before_is_not_the_new_ones(table: TableOnly) -> None:
    rows, text = Rows(table), distinct_text(100)
    rows.put(1, text[:40])
    rows.drafter.late.take(late_answer(text, 40, 1, 40), rows.tokens, rows.lengths, rows.ids)
    rows.put(1, text[:40])
    rows.go_on(1)
    assert rows.draft() == []


def test_a_batch_of_many_rows_drafts_each_row_from_its_own_tail(table: TableOnly) -> None:
    drafter = make_drafter(table, rows=64)
    text = distinct_text(400)
    learn(drafter, text)
    propose(drafter, *[text[: 40 + 5 * i].copy() for i in range(64)])
    for i in range(64):
        end = 40 + 5 * i
        assert drafter.drafts.tokens[i, :8].tolist() == text[end : end + 8].tolist()


@pytest.mark.parametrize("lengths", [(), (8, 4), (4, 4), (4, 33)])
def test_lengths_must_ascend_and_fit(table: TableOnly, lengths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        make_drafter(table, lengths=lengths)


def test_a_record_learnt_again_speaks_for_its_draft(table: TableOnly) -> None:
    rows, text = Rows(table), distinct_text(100)
    for times in range(7):
        learn(rows, text)
        rows.propose(text[:60].copy())
        assert (rows.drafts.tried[0], rows.drafts.agreed[0]) == (min(times, 4), min(times, 4))
