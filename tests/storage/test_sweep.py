"""The sweep: rules of every action over three tiers, their brakes, their budgets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from moving_tiers import IN_DRAM, IN_DRAM_OR_NVME, IN_NVME, IN_VRAM, Everywhere, Rig, Rule, rig
from records import WORDS, rows_of, same_chains, spread

from flashnest.hashing import hash_tails
from flashnest.policy import compile_policy
from flashnest.record import HITS, INSERTED, LAST_ACCESS, REFS, Admission, FactArrays, Tier
from flashnest.storage.store import State, StoreStats

MakeRig = Callable[..., Rig]
VRAM, DRAM, NVME = Tier.VRAM, Tier.DRAM, Tier.NVME


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeRig]:
    made: list[Rig] = []

    def make_one(*rules: Rule, **options: object) -> Rig:
        made.append(rig(tmp_path / f"db{len(made)}", *rules, **options))
        return made[-1]

    yield make_one
    for one in made:
        one.router.close()


def was_hit(facts: FactArrays):
    return facts.hits >= 1


def test_found_cold_records_are_promoted(make: MakeRig) -> None:
    r = make(Rule("promote", NVME, DRAM, was_hit))
    keys = spread(0, 40)
    r.router.insert_many(keys, rows_of(keys, tokens=IN_NVME))
    r.router.flush()
    r.find(keys[:25])
    assert r.count(keys, DRAM) == 0
    r.sweep()
    owners = r.owners(keys)
    assert owners[DRAM].tolist() == [True] * 25 + [False] * 15
    assert (owners[NVME] == ~owners[DRAM]).all()
    found = r.ask(keys[:25])
    assert (found.tier[:25] == DRAM).all()
    assert same_chains(found.rows[:25], keys[:25])
    (stats,) = r.router.stats().moves
    assert (stats.moved, stats.refused, stats.nbytes) == (25, 0, 25 * 72)


def test_records_in_the_write_buffer_are_promoted_and_never_written(make: MakeRig) -> None:
    r = make(Rule("promote", NVME, DRAM))
    keys = spread(0, 10)
    r.router.insert_many(keys, rows_of(keys, tokens=IN_NVME))
    r.ask(keys)
    r.sweep()
    r.router.flush()
    assert r.count(keys, DRAM) == 10
    assert r.count(keys, NVME) == 0
    assert r.router.stats().cold.bytes_written == 0


def test_answers_older_than_a_change_promote_nothing(make: MakeRig) -> None:
    """Removed, overwritten and learnt-as-known records between the question and the sweep."""
    r = make(Rule("promote", NVME, DRAM))
    keys = spread(0, 30)
    r.router.insert_many(keys, rows_of(keys, tokens=IN_NVME))
    r.router.flush()
    r.ask(keys)
    r.router.submit()
    r.router.wait(0.0)  # read, not yet drained
    r.router.remove_many(keys[:10])
    r.router.feedback_many(keys[10:20], np.full(10, 64, np.uint32), np.zeros(10, np.uint32))
    r.router.insert_many(keys[10:20], rows_of(keys[10:20], tokens=IN_NVME, chain=5))  # wrong ones are replaced
    r.router.insert_many(keys[20:], rows_of(keys[20:], tokens=IN_NVME))  # known ones are left alone
    r.router.flush()
    assert r.router.drain().hit.all()
    r.sweep()
    owners = r.owners(keys)
    assert not owners[DRAM][:20].any()
    assert not owners[NVME][:10].any()
    assert owners[NVME][10:20].all()
    assert owners[DRAM][20:].all()


def test_promotion_into_a_full_tier_is_refused_and_counted(make: MakeRig) -> None:
    r = make(Rule("promote", NVME, DRAM), units=1)
    full = spread(100, r.dram.max_records)
    assert r.router.insert_many(full, rows_of(full, tokens=IN_DRAM)).all()
    keys = spread(0, 8)
    r.router.insert_many(keys, rows_of(keys, tokens=IN_NVME))
    r.router.flush()
    r.find(keys)
    r.sweep()
    assert r.count(keys, NVME) == 8
    assert r.count(full, DRAM) == len(full)
    assert r.router.stats().moves[0].refused == 8


def test_dram_records_are_promoted_to_vram_by_a_slow_pass(make: MakeRig) -> None:
    r = make(Rule("promote", DRAM, VRAM, was_hit))
    keys = spread(0, 60)
    r.router.insert_many(keys, rows_of(keys, tokens=IN_DRAM))
    r.sweep()
    r.ask(keys[:20])
    r.sweep()
    assert r.count(keys, VRAM) == 0, "the pass was over, the next one is not due"
    r.pass_s(31)
    r.sweep()
    assert r.owners(keys)[VRAM].tolist() == [True] * 20 + [False] * 40
    found = r.ask(keys)
    assert found.tier[:60].tolist() == [VRAM] * 20 + [DRAM] * 40
    assert same_chains(found.rows[:60], keys)


@pytest.mark.parametrize("using", [None, "s3fifo"])
def test_watermarks_have_hysteresis(make: MakeRig, using: str | None) -> None:
    r = make(Rule("demote", DRAM, NVME, when_fill=0.9, until_fill=0.5, using=using), units=40)
    room = r.dram.max_records
    keys = spread(0, room)
    r.router.insert_many(keys[: int(0.9 * room)], rows_of(keys[: int(0.9 * room)], tokens=IN_DRAM))
    r.sweep()
    assert len(r.dram) == int(0.9 * room), "at the mark, not above it"
    r.router.insert_many(keys, rows_of(keys, tokens=IN_DRAM))
    r.sweep(3)
    assert len(r.dram) < 0.5 * room
    assert len(r.dram) > 0.45 * room
    held = len(r.dram)
    more = spread(5000, int(0.2 * room))
    r.router.insert_many(more, rows_of(more, tokens=IN_DRAM))
    r.sweep()
    assert len(r.dram) == held + len(more), "between the marks it does not start"
    owners = r.owners(keys)
    assert (owners[DRAM].astype(int) + owners[NVME] == 1).all()


def test_order_takes_the_longest_idle_first(make: MakeRig) -> None:
    r = make(Rule("demote", DRAM, NVME, when_fill=0.8, until_fill=0.6, order=("idle", True)), units=200)
    keys = spread(0, int(0.9 * r.dram.max_records))
    rows = rows_of(keys, tokens=IN_DRAM)
    rows[:, INSERTED] = 1
    idle_s = np.random.default_rng(5).permutation(len(keys)) % 900
    rows[:, LAST_ACCESS] = 1000 - idle_s
    r.router.insert_many(keys, rows)
    r.sweep(8)
    gone = ~r.dram.contains_many(keys)
    assert len(r.dram) <= 0.6 * r.dram.max_records
    oldest = idle_s >= np.sort(idle_s)[-int(gone.sum())]
    assert np.count_nonzero(gone & oldest) > 0.75 * gone.sum(), "of random ones it would be a third"


def test_demotion_keeps_the_row_and_stops_while_the_writer_is_behind(make: MakeRig) -> None:
    r = make(Rule("demote", DRAM, NVME, when_fill=0.5, until_fill=0.1), units=40, buffer_bytes=8_000)
    keys = spread(0, int(0.9 * r.dram.max_records))
    r.router.insert_many(keys, rows_of(keys, tokens=IN_DRAM))
    r.router.sweep(1.0)
    left = len(r.dram)
    assert left > 0.5 * r.dram.max_records, "the buffer is full and nobody writes"
    assert r.router.stats().moves[0].refused > 0
    r.sweep(40)
    assert len(r.dram) < 0.1 * r.dram.max_records
    r.router.flush()
    owners = r.owners(keys)
    assert (owners[DRAM].astype(int) + owners[NVME] == 1).all()
    cold = keys[owners[NVME]][:64]
    r.ask(cold)
    r.router.submit()
    r.router.wait(0.0)
    answers = r.router.drain()
    assert answers.hit.all()
    assert same_chains(answers.rows, answers.keys)


def test_demoted_records_carry_their_facts_up_and_down(make: MakeRig) -> None:
    r = make(
        Rule("demote", DRAM, NVME, lambda facts: facts.idle_s >= 100),
        Rule("promote", NVME, DRAM, lambda facts: facts.hits >= 4),
    )
    keys = spread(0, 10)
    r.router.insert_many(keys, rows_of(keys, tokens=IN_DRAM))
    for _ in range(3):
        r.ask(keys)
    r.pass_s(100)
    r.sweep()
    r.router.flush()
    assert r.count(keys, NVME) == 10
    r.find(keys)
    r.sweep()
    assert r.count(keys, DRAM) == 10
    found = r.ask(keys)
    assert (found.rows[:10, HITS] == 5).all()
    assert (found.rows[:10, INSERTED] == 1000).all()


def test_keep_shields_from_rules_and_from_insertion(make: MakeRig) -> None:
    pinned = Rule("keep", DRAM, condition=lambda facts: facts.refs >= 9)
    r = make(pinned, Rule("evict", DRAM, when_fill=0.5, until_fill=0.2), units=10)
    room = r.dram.max_records
    keys, more = spread(0, room), spread(9000, 3 * room)
    rows = rows_of(keys, tokens=IN_DRAM)
    rows[: room // 2, REFS] = 9
    r.router.insert_many(keys, rows)
    assert r.router.insert_many(more, rows_of(more, tokens=IN_DRAM)).any()
    assert r.dram.contains_many(keys[: room // 2]).all()
    assert r.router.stats().pushed_out >= room // 2
    r.sweep(3)
    assert r.dram.contains_many(keys[: room // 2]).all()
    assert len(r.dram) == room // 2


def test_insertion_is_refused_where_everything_is_kept(make: MakeRig) -> None:
    r = make(Rule("keep", DRAM), units=2)
    keys, more = spread(0, r.dram.max_records), spread(9000, 5)
    assert r.router.insert_many(keys, rows_of(keys, tokens=IN_DRAM)).all()
    assert not r.router.insert_many(more, rows_of(more, tokens=IN_DRAM)).any()
    assert r.router.insert_many(keys[:3], rows_of(keys[:3], tokens=IN_DRAM)).all(), "what is there is overwritten"
    assert r.dram.contains_many(keys).all()
    assert r.router.stats().rejected == 5


def test_evict_drops_cold_records_never_hit_first(make: MakeRig) -> None:
    r = make(Rule("evict", NVME, when_fill=0.5, until_fill=0.4, using="s3fifo"))
    keys = spread(0, 200)
    r.router.insert_many(keys, rows_of(keys, tokens=IN_NVME))
    r.router.flush()
    fill_of(r, 400)
    r.find(keys[:100])
    r.sweep()
    assert r.count(keys, NVME) == 200, "at the mark, not above it"
    fill_of(r, 320)
    r.pass_s(1)
    for _ in range(6):
        r.sweep()
    r.router.flush()
    owners = r.owners(keys)[NVME]
    assert owners[:100].all(), "found ones stay"
    assert np.count_nonzero(owners) < 0.4 * 320
    assert r.router.stats().moves[0].moved == 200 - np.count_nonzero(owners)


def fill_of(r: Rig, room: int) -> None:
    """Have the cold tier say that it has room for so many records."""
    stats = r.cold.stats

    def with_fill() -> StoreStats:
        real = stats()
        return replace(real, fill=real.records / room)

    r.cold.stats = with_fill  # type: ignore[method-assign]


def test_evict_by_condition_walks_over_nvme_once_an_hour(make: MakeRig) -> None:
    r = make(Rule("evict", NVME, condition=lambda facts: facts.idle_s > 3000))
    keys = spread(0, 50)
    r.router.insert_many(keys, rows_of(keys, tokens=IN_NVME))
    r.router.flush()
    r.sweep(3)
    assert r.count(keys, NVME) == 50
    r.pass_s(2000)
    r.find(keys[:20])
    r.pass_s(1700)
    r.sweep(3)
    r.router.flush()
    assert r.owners(keys)[NVME].tolist() == [True] * 20 + [False] * 30


def test_rate_limits_moves_by_records_and_by_bytes(make: MakeRig) -> None:
    for limit in ({"most_records_per_s": 10}, {"most_bytes_per_s": 720}):
        r = make(Rule("demote", DRAM, NVME, when_fill=0.1, until_fill=0.01, **limit), units=20)
        keys = spread(0, 150)
        r.router.insert_many(keys, rows_of(keys, tokens=IN_DRAM))
        moved = []
        for _ in range(4):
            r.sweep(3)
            moved.append(r.router.stats().moves[0].moved)
            r.pass_s(1)
        assert moved == [10, 20, 30, 40]


def test_cooldown_and_residency_leave_records_alone(make: MakeRig) -> None:
    up = Rule("promote", NVME, DRAM, cooldown_s=30)
    down = Rule("demote", DRAM, NVME, lambda facts: facts.idle_s >= 5, min_residency_s=60)
    r = make(up, down)
    keys = spread(0, 10)
    r.router.insert_many(keys, rows_of(keys, tokens=IN_DRAM))
    r.pass_s(59)
    r.sweep()
    assert r.count(keys, DRAM) == 10, "they came within the last minute"
    r.pass_s(31)
    r.sweep()
    assert r.count(keys, NVME) == 10
    r.router.flush()
    r.find(keys)
    r.sweep()
    assert r.count(keys, NVME) == 10, "they moved within the last 30 s"
    r.pass_s(30)
    r.find(keys)
    r.sweep()
    assert r.count(keys, DRAM) == 10


def test_ping_pong_suspends_a_rule_and_says_so_once(make: MakeRig, caplog: pytest.LogCaptureFixture) -> None:
    up = Rule("promote", NVME, DRAM, text="promote from nvme to dram")
    down = Rule("demote", DRAM, NVME, text="demote from dram to nvme")
    r = make(up, down)
    keys = spread(0, 100)
    r.router.insert_many(keys, rows_of(keys, tokens=IN_DRAM))
    with caplog.at_level(logging.WARNING, "flashnest.storage"):
        for _ in range(12):
            r.pass_s(31)
            r.sweep()
            r.router.flush()
            r.find(keys)
    stats = r.router.stats().moves
    assert stats[0].suspensions >= 1
    assert stats[0].ping_pongs >= 64
    assert stats[0].suspended_s >= 60
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == stats[0].suspensions + stats[1].suspensions
    assert "promote from nvme to dram" in lines[0]
    assert stats[0].moved < 12 * 100


def test_hits_within_a_window_count_whatever_tier_answered(make: MakeRig) -> None:
    popular = Rule("promote", NVME, DRAM, lambda facts: facts.window_hits[0] >= 3)
    r = make(popular, windows_s=(60,))
    keys = spread(0, 20)
    r.router.insert_many(keys, rows_of(keys, tokens=IN_NVME))
    r.router.flush()
    for _ in range(2):
        r.find(keys)
        r.sweep()
    assert r.count(keys, DRAM) == 0
    r.pass_s(100)
    r.find(keys)
    r.sweep()
    assert r.count(keys, DRAM) == 0, "the first two are forgotten"
    r.find(keys[:5])
    r.find(keys[:5])
    r.sweep()
    assert r.owners(keys)[DRAM].tolist() == [True] * 5 + [False] * 15


def test_learning_again_leaves_moved_records_where_they_are(make: MakeRig) -> None:
    r = make(Rule("demote", DRAM, NVME, lambda facts: facts.idle_s >= 60), Rule("promote", NVME, DRAM, was_hit))
    low, high = spread(0, 10), spread(100, 10)
    r.router.insert_many(low, rows_of(low, tokens=IN_DRAM_OR_NVME))
    r.router.insert_many(high, rows_of(high, tokens=IN_NVME))
    r.router.flush()
    r.find(high)
    r.sweep()
    r.pass_s(60)
    r.ask(high)
    r.sweep()
    r.router.flush()
    written = r.router.stats().cold.bytes_written
    assert r.router.insert_many(low, rows_of(low, tokens=IN_DRAM_OR_NVME)).all()
    assert r.router.insert_many(high, rows_of(high, tokens=IN_NVME)).all()
    r.router.flush()
    assert r.count(low, NVME) == 10
    assert r.count(high, DRAM) == 10
    assert r.router.stats().cold.bytes_written == written


def test_admission_asks_new_records_only(make: MakeRig) -> None:
    twice = Admission(2, 600)
    r = make(placement=Everywhere(admissions=(twice, twice, None, None, None)))
    keys = spread(0, 20)
    for tokens in (IN_DRAM, IN_NVME):
        mine = keys + np.uint64(tokens)
        assert not r.router.insert_many(mine, rows_of(mine, tokens=tokens)).any()
        assert r.router.insert_many(mine, rows_of(mine, tokens=tokens)).all()
        assert r.router.insert_many(mine, rows_of(mine, tokens=tokens)).all()
    assert r.router.stats().not_admitted == 40
    assert r.router.stats().rejected == 0


def test_chain_of_vram_alone_and_longest_match_over_three_tiers(make: MakeRig) -> None:
    r = make(vram_units=1)
    room = r.vram.max_records
    keys = spread(0, room + 5)
    stored = r.router.insert_many(keys, rows_of(keys, tokens=IN_VRAM))
    assert len(r.vram) == room
    assert np.count_nonzero(stored) == np.count_nonzero(r.vram.contains_many(keys))
    mine = keys[r.vram.contains_many(keys)]
    dram, cold = spread(1000, 4), spread(2000, 4)
    r.router.insert_many(dram, rows_of(dram, tokens=IN_DRAM))
    r.router.insert_many(cold, rows_of(cold, tokens=IN_NVME))
    r.router.flush()
    asked = np.array(
        [[mine[0], dram[0], cold[0]], [dram[1], mine[1], 0], [cold[2], mine[2], 77], [mine[3], 78, 79]], np.uint64
    )
    index = np.zeros(4, np.int64)
    r.router.longest_many(asked, np.arange(4, dtype=np.int64) * 8, r.found, index)
    assert index.tolist() == [1, 1, 1, 0]
    assert r.found.tier[:4].tolist() == [DRAM, VRAM, VRAM, VRAM]
    assert (r.found.state[:4] == State.HIT).all()
    assert same_chains(r.found.rows[:4], np.array([dram[0], mine[1], mine[2], mine[3]], np.uint64))
    r.router.submit()
    r.router.wait(0.0)
    assert r.router.drain().tickets.tolist() == [2]


def test_moves_to_and_from_the_vram_table_of_tensors(make: MakeRig) -> None:
    vram = pytest.importorskip("flashnest.storage.vram").VramTable(
        1 << 20, words=WORDS, clock_s=lambda: 1000, device="cpu", evict=False
    )
    r = make(
        Rule("promote", DRAM, VRAM, lambda facts: (facts.hits >= 1) & (facts.hits < 3)),
        Rule("promote", NVME, VRAM, was_hit),
        Rule("demote", VRAM, DRAM, lambda facts: facts.hits >= 3),
        vram=vram,
    )
    low, high = spread(0, 20), spread(100, 20)
    r.router.insert_many(low, rows_of(low, tokens=IN_DRAM))
    r.router.insert_many(high, rows_of(high, tokens=IN_NVME))
    r.router.flush()
    r.ask(low)
    r.find(high[:10])
    r.sweep()
    assert r.count(low, VRAM) == 20
    assert r.owners(high)[VRAM].tolist() == [True] * 10 + [False] * 10
    index = np.zeros(20, np.int64)
    asked = np.stack([high, low], axis=1)
    r.router.longest_many(asked, np.arange(20, dtype=np.int64) * 8, r.found, index)
    assert index.tolist() == [1] * 20
    assert (r.found.tier[:20] == VRAM).all()
    assert same_chains(r.found.rows[:20], low)
    r.ask(low)
    for _ in range(2):  # the pass under way has seen the table's start already
        r.pass_s(31)
        r.sweep()
    assert r.count(low, DRAM) == 20
    assert r.count(low, VRAM) == 0
    assert same_chains(r.ask(low).rows[:20], low)


def test_tails_are_hashed_and_looked_up_in_one_call(make: MakeRig) -> None:
    r = make()
    tokens, ends = np.arange(80, dtype=np.int32).reshape(2, 40), np.array([40, 3], np.int32)
    salts, lengths = np.array([7, 9], np.uint64), np.array([2, 4, 8], np.int32)
    keys, hashed = np.zeros((2, 3), np.uint64), np.zeros((2, 3), np.uint64)
    hash_tails(tokens, ends, salts, lengths, hashed)
    for key, tier in ((hashed[0, 0], IN_DRAM), (hashed[0, 2], IN_NVME), (hashed[1, 0], IN_VRAM)):
        r.router.insert_many(np.array([key]), rows_of(np.array([key]), tokens=tier))
    r.router.flush()
    index, tickets = np.zeros(2, np.int64), np.array([0, 8], np.int64)
    r.router.longest_tails_many(tokens, ends, salts, lengths, tickets, keys, r.found, index)
    assert (keys == hashed).all()
    assert index.tolist() == [0, 0]
    assert r.found.tier[:2].tolist() == [DRAM, VRAM]
    r.router.submit()
    r.router.wait(0.0)
    answers = r.router.drain()
    assert answers.tickets.tolist() == [2]
    assert answers.hit.all()
    r.router.remove_many(hashed[1, :1])
    r.router.longest_tails_many(tokens, ends, salts, lengths, tickets, keys, r.found, index)
    assert index.tolist() == [0, -1]


def test_rules_of_a_compiled_policy_move_records(make: MakeRig) -> None:
    policy = compile_policy(
        """
        place tokens >= 32 in dram
        place otherwise    in nvme
        class popular = hits in 60s >= 2
        promote popular from nvme to dram at most 10 rec/s cooldown 30s
        demote not popular from dram to nvme when fill > 90% until fill < 50% by idle desc
        """
    )
    r = make(placement=policy.placement, plan=policy.moves)
    short = spread(0, 30)
    r.router.insert_many(short, rows_of(short, tokens=8))
    r.router.flush()
    for _ in range(2):
        r.find(short)
    r.sweep()
    assert r.count(short, DRAM) == 10
    long = spread(1000, int(0.95 * r.dram.max_records) - 10)
    r.router.insert_many(long, rows_of(long, tokens=32))
    r.sweep(3)
    assert len(r.dram) < 0.5 * r.dram.max_records
    assert r.count(short, DRAM) == 10, "popular ones stay"
    assert [rule.number for rule in r.router.stats().moves] == [3, 4]


def test_sweep_stops_at_its_budget_and_goes_on_next_time(make: MakeRig) -> None:
    r = make(Rule("demote", DRAM, NVME, when_fill=0.5, until_fill=0.1), units=200)
    keys = spread(0, int(0.9 * r.dram.max_records))
    r.router.insert_many(keys, rows_of(keys, tokens=IN_DRAM))
    ticks = iter(range(0, 1 << 40, 60_000))
    r.router._sweep._clock_ns = lambda: next(ticks)
    held = [len(r.dram)]
    for _ in range(4):
        r.router.sweep(200e-6)
        held.append(len(r.dram))
    steps = -np.diff(held)
    assert (steps > 0).all()
    assert steps.max() < 700
    r.router.sweep(0.0)
    assert len(r.dram) == held[-1]
