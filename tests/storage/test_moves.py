"""The parts of a move by themselves: facts, rates, watermarks, passes, the breaker, answers under way."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from moving_tiers import Rule
from records import keys_of, rows_of, spread

from flashnest import record
from flashnest.record import Kind, Tier
from flashnest.storage.moves import RuleState, first_by, first_unused, read_facts
from flashnest.storage.ping_pong import NEVER_S, Breaker, RecentMoves
from flashnest.storage.rates import TokenBucket
from flashnest.storage.router_flights import FIRST_SLOTS, Flights
from flashnest.storage.sweep_pace import REST_S, Pass, Watermark


def facts_at(now_s: int, **words: list[int]):
    keys = spread(0, len(next(iter(words.values()))))
    rows = rows_of(keys, tokens=12, kind=Kind.CHUNK)
    for name, values in words.items():
        rows[:, getattr(record, name)] = values
    return read_facts(keys, rows, now_s, 104, ())


def test_facts_are_read_from_rows() -> None:
    facts = facts_at(
        1000,
        LAST_ACCESS=[990, 1000, 1005],
        INSERTED=[1, 400, 2000],
        HITS=[0, 7, 9],
        DRAFTED=[0, 8, 3],
        ACCEPTED=[0, 5, 9],
        NAMESPACE=[1, 2, 3],
        REFS=[4, 5, 6],
    )
    assert facts.tokens.tolist() == [12] * 3
    assert facts.kind.tolist() == [Kind.CHUNK] * 3
    assert facts.idle_s.tolist() == [10, 0, 0], "a clock that went back makes nothing young"
    assert facts.age_s.tolist() == [999, 600, 0]
    assert facts.hits.tolist() == [0, 7, 9]
    assert facts.accept_percent.tolist() == [100, 62, 100]
    assert facts.namespace.tolist() == [1, 2, 3]
    assert facts.refs.tolist() == [4, 5, 6]
    assert facts.nbytes.tolist() == [104] * 3


def test_first_by_takes_the_extremes_of_a_fact() -> None:
    facts = facts_at(1000, HITS=[5, 1, 9, 3, 7])
    at = np.arange(5)
    assert sorted(first_by(facts, ("hits", True), at, 2).tolist()) == [2, 4]
    assert sorted(first_by(facts, ("hits", False), at, 2).tolist()) == [1, 3]
    assert first_by(facts, None, at, 2).tolist() == [0, 1]
    assert first_by(facts, ("hits", True), at, 0).tolist() == []
    assert first_by(facts, ("hits", True), at[:2], 5).tolist() == [0, 1]


def test_first_unused_takes_what_was_never_hit_then_by_algorithm() -> None:
    facts = facts_at(1000, HITS=[1, 0, 0, 2], LAST_ACCESS=[1, 900, 800, 500], INSERTED=[900, 700, 800, 1])
    at = np.arange(4)
    assert first_unused(facts, "s3fifo", at, 3).tolist() == [2, 1, 0]
    assert first_unused(facts, "lru", at, 2).tolist() == [0, 3]
    assert first_unused(facts, "fifo", at, 2).tolist() == [3, 1]


def test_a_bucket_grants_its_rate_and_one_second_at_once() -> None:
    bucket = TokenBucket(100)
    assert bucket.available(5.0) == 100
    bucket.take(100)
    assert bucket.available(5.25) == 25
    assert bucket.available(4.0) == 25
    assert bucket.available(9.0) == 100


def test_a_slow_bucket_still_moves_one_record() -> None:
    bucket = TokenBucket(0.1)
    assert bucket.available(0.0) == 1
    bucket.take(1)
    assert bucket.available(9.0) == pytest.approx(0.9)
    assert bucket.available(10.0) == pytest.approx(1.0)


def mark(**options: float) -> tuple[Watermark, RuleState]:
    state = RuleState(Rule("evict", Tier.DRAM, **options), 72)
    return Watermark(state), state


def test_a_watermark_starts_above_and_stops_below() -> None:
    one, _ = mark(when_fill=0.9, until_fill=0.8)
    assert one.need(900, 1000, 0) == 0
    assert one.need(901, 1000, 0) == 102
    assert one.need(850, 1000, 0) == 51
    assert one.need(800, 1000, 0) == 1, "not yet below"
    assert one.need(799, 1000, 0) == 0
    assert one.need(850, 1000, 0) == 0, "it stopped"
    assert 0.11 < one.share < 0.13


def test_a_watermark_alone_keeps_fill_at_the_mark() -> None:
    one, _ = mark(when_fill=0.5)
    assert one.need(500, 1000, 0) == 0
    assert one.need(501, 1000, 0) == 2


def test_a_rule_that_can_move_nothing_rests() -> None:
    one, state = mark(when_fill=0.5, until_fill=0.25)
    assert one.need(900, 1000, 100)
    one.end_pass(900, 1000, 100)
    assert one.need(900, 1000, 100 + REST_S - 1) == 0
    assert one.need(900, 1000, 100 + REST_S)
    state.moved += 300
    one.end_pass(600, 1000, 200)
    assert one.need(600, 1000, 200), "it moved enough to go on"


def test_a_pass_takes_its_time() -> None:
    one = Pass(10, 0)
    assert one.is_due(1000, 0)
    one.advance(100)
    assert not one.is_due(1000, 900_000_000)
    assert one.is_due(1000, 1_000_000_000)
    one.advance(900)
    one.end(1_000_000_000)
    assert not one.is_due(1000, 9_900_000_000)
    assert one.is_due(1000, 10_000_000_000)


def test_recent_moves_know_age_and_way() -> None:
    moves = RecentMoves()
    keys = keys_of(1, 2, 3)
    assert moves.note_many(keys, 100, Tier.NVME, Tier.DRAM, 60) == 0
    assert moves.ages_many(keys_of(1, 4), 130).tolist() == [30, NEVER_S]
    assert moves.note_many(keys[:2], 130, Tier.DRAM, Tier.NVME, 60) == 2
    assert moves.note_many(keys[2:], 161, Tier.DRAM, Tier.NVME, 60) == 0, "too long ago"
    assert moves.note_many(keys[:1], 131, Tier.DRAM, Tier.NVME, 60) == 0, "the same way again"
    assert moves.note_many(keys[:1], 132, Tier.NVME, None, 60) == 0, "a drop undoes nothing"


def test_a_breaker_doubles_its_suspensions_and_forgets_after_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    breaker = Breaker("promote popular")
    with caplog.at_level(logging.WARNING, "flashnest.storage"):
        breaker.note(63, 63, 1000)
        assert not breaker.is_open(1000), "too few to judge"
        breaker.note(1, 0, 1000)
        assert breaker.is_open(1059)
        assert not breaker.is_open(1060)
        breaker.note(64, 17, 1060)
        assert breaker.is_open(1179)
        assert not breaker.is_open(1180)
        breaker.note(64, 16, 1180)
        assert not breaker.is_open(1180), "a quarter is allowed"
        breaker.note(640, 640, 5000)
        assert breaker.is_open(5059)
        assert not breaker.is_open(5060)
    assert breaker.suspensions == 3
    assert breaker.suspended_s == 60 + 120 + 60
    assert breaker.ping_pongs == 63 + 17 + 16 + 640
    assert [record.args[0] for record in caplog.records] == [60, 120, 60]
    assert "promote popular" in caplog.records[0].getMessage()


def test_flights_follow_every_question_to_its_end() -> None:
    flights = Flights()
    keys = keys_of(1, 2, 3)
    flights.add_many(keys)
    flights.add_many(keys[:1])
    flights.spoil_many(keys_of(1, 9))
    assert len(flights) == 4
    assert flights.under_way_many(keys_of(1, 9)).tolist() == [True, False]
    assert flights.take_many(keys_of(1, 2, 9)).tolist() == [False, True, False]
    assert flights.take_many(keys_of(1)).tolist() == [False], "which of the two was older is not known"
    flights.add_many(keys_of(1))
    assert flights.take_many(keys_of(1, 3)).tolist() == [True, True]
    assert len(flights) == 0


def test_flights_grow_and_leave_out_what_is_done_with() -> None:
    flights = Flights()
    first = spread(0, FIRST_SLOTS)
    flights.add_many(first)
    flights.spoil_many(first[:100])
    for start in range(1, 20):
        keys = spread(start * FIRST_SLOTS, FIRST_SLOTS)
        flights.add_many(keys)
        assert flights.take_many(keys).all()
    assert len(flights) == FIRST_SLOTS
    assert len(flights._slots) <= 16 * FIRST_SLOTS
    assert flights.take_many(first).tolist() == [False] * 100 + [True] * (FIRST_SLOTS - 100)
