"""Acceptance is learnt by kind of draft and place in it; counts fade, histories are laid over."""

from __future__ import annotations

import numpy as np
import pytest

from flashnest.record import F64Array
from flashnest.runtime.acceptance import PRIOR, PRIOR_TOKENS, Acceptance, match_buckets, place_buckets
from flashnest.runtime.drafter import Drafts, Source


def _record(acceptance: Acceptance, matched: list[int], tried: list[int], agreed: list[int]) -> None:
    sources = np.full(len(matched), Source.DRAM, np.int32)
    acceptance.record(sources, *(np.array(a, np.int32) for a in (matched, tried, agreed)))


def _expected(acceptance: Acceptance, matched: int, *, tried: int = 0, agreed: int = 0) -> F64Array:
    drafts = Drafts.allocate(1, 8)
    drafts.sources[0], drafts.matched[0] = Source.DRAM, matched
    drafts.tried[0], drafts.agreed[0] = tried, agreed
    return acceptance.expected(drafts, 1)[0]


def test_a_new_kind_has_its_start_guess_at_every_place() -> None:
    for matched, guess in zip((1, 2, 3, 5, 10, 20, 32), PRIOR, strict=True):
        assert _expected(Acceptance(), matched) == pytest.approx(np.full(6, guess))


def test_kinds_do_not_mix() -> None:
    acceptance = Acceptance()
    for _ in range(500):
        _record(acceptance, [4, 20], [4, 1], [3, 0])
    assert _expected(acceptance, 4)[0] == pytest.approx(1.0, abs=0.03)
    assert _expected(acceptance, 20)[0] == pytest.approx(0.0, abs=0.03)
    assert _expected(acceptance, 8)[0] == PRIOR[4]


def test_places_are_told_apart() -> None:
    acceptance = Acceptance()
    for _ in range(500):
        _record(acceptance, [8], [3], [2])
    chances = _expected(acceptance, 8)
    assert chances[:2] == pytest.approx([1.0, 1.0], abs=0.03)
    assert chances[2] == pytest.approx(0.0, abs=0.03)


def test_places_never_tried_lean_on_the_average_of_their_kind() -> None:
    acceptance = Acceptance()
    for _ in range(500):
        _record(acceptance, [8, 8], [1, 1], [1, 0])
    assert _expected(acceptance, 8)[5] == pytest.approx(0.5, abs=0.03)


def test_what_is_no_longer_true_fades() -> None:
    acceptance = Acceptance()
    for _ in range(2000):
        _record(acceptance, [8], [1], [0])
    for _ in range(300):
        _record(acceptance, [8], [1], [1])
    assert _expected(acceptance, 8)[0] > 0.7


def test_many_rows_in_one_step_count_each() -> None:
    one, many = Acceptance(), Acceptance()
    for _ in range(64):
        _record(one, [8], [2], [1])
    _record(many, [8] * 64, [2] * 64, [1] * 64)
    assert _expected(many, 8) == pytest.approx(_expected(one, 8), abs=0.02)


def test_a_records_history_is_laid_over_its_kind() -> None:
    chances = _expected(Acceptance(), 8, tried=60, agreed=60)
    assert chances[0] == pytest.approx((60 + PRIOR_TOKENS * PRIOR[4]) / (60 + PRIOR_TOKENS))


def test_staleness_counts_steps_since_a_kind_was_verified() -> None:
    acceptance = Acceptance()
    for matched in (8, 20, 20):
        _record(acceptance, [matched], [1], [1])
    sources = np.full(2, Source.DRAM, np.uint8)
    assert acceptance.staleness(sources, np.array([8, 20], np.int32)).tolist() == [2, 0]


def test_buckets_of_matches_and_places() -> None:
    matched = np.array([1, 2, 3, 4, 7, 8, 15, 16, 31, 32], np.int32)
    assert match_buckets(matched).tolist() == [0, 1, 2, 3, 3, 4, 4, 5, 5, 6]
    assert place_buckets(17).tolist() == [0, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 5]
