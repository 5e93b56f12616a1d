"""The drafter against a real DRAM table: longest match wins, what was learnt is proposed, tenants stay apart."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashnest.record import BoolArray, I32Array, I64Array, Tier, U32Array, U64Array, namespace_salt, row_words
from flashnest.runtime.drafter import Drafter, Source
from flashnest.runtime.ngrams import match_own
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

    def insert_many(self, keys: U64Array, rows: U32Array) -> BoolArray:
        return self.table.insert_many(keys, rows)

    def feedback_many(self, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
        self.fed.append((keys.tolist(), drafted.tolist(), accepted.tolist()))
        self.table.feedback_many(keys, drafted, accepted)


@pytest.fixture
def table() -> TableOnly:
    return TableOnly(DramTable(4 << 20, words=row_words(CHAIN), clock_s=lambda: 1))


def make_drafter(table: TableOnly, rows: int = 4, lengths: tuple[int, ...] = LENGTHS) -> Drafter:
    return Drafter(table, rows=rows, ngram_lengths=lengths, chain_words=CHAIN, max_draft_tokens=CHAIN)


def propose(drafter: Drafter, *texts: I32Array, salt: int = SALT) -> None:
    lengths = np.array([len(t) for t in texts], np.int32)
    drafter.propose(list(texts), lengths, np.full(len(texts), salt, np.uint64), np.zeros(len(texts), np.int64))


def learn(drafter: Drafter, text: I32Array, salt: int = SALT, *, final: bool = True) -> int:
    done = drafter.learn(text, 0, len(text), salt, 7, final=final)
    drafter.flush_learned()
    return done


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
    parts, whole = make_drafter(table), make_drafter(TableOnly(DramTable(4 << 20, words=16, clock_s=lambda: 1)))
    at = 0
    for end in (10, 40, 41, 200, 300):
        at = parts.learn(text, at, end, SALT, 7, final=end == 300)
    parts.flush_learned()
    learn(whole, text)
    ours = {k: r.tolist() for keys, rows in table.table.scan() for k, r in zip(keys.tolist(), rows, strict=True)}
    theirs = {
        k: r.tolist()
        for keys, rows in whole._table.table.scan()  # type: ignore[attr-defined]
        for k, r in zip(keys.tolist(), rows, strict=True)
    }
    assert ours == theirs
    assert len(ours) == sum(300 - n for n in LENGTHS)


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
    drafter = make_drafter(table)
    drafter.feedback(np.array([0, 5, 6], np.uint64), np.array([3, 0, 2], np.uint32), np.array([3, 0, 1], np.uint32))
    assert table.fed == [([6], [2], [1])]


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


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 5))
def test_match_own_equals_brute_force(values: list[int], shortest: int) -> None:
    text = np.array(values, np.int32)
    out = np.zeros(2, np.int64)
    match_own(text, len(text), shortest, 32, out)
    best = (0, 0)
    for end in range(1, len(values)):
        matched = 0
        while matched < min(end, 32) and values[end - 1 - matched] == values[-1 - matched]:
            matched += 1
        if matched >= shortest and matched >= best[1]:
            best = (end, matched)
    assert tuple(out) == best
