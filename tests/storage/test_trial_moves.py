"""Moves at level `warn`: what they would have moved is counted, each record once, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from moving_tiers import IN_DRAM, IN_NVME, Rig, Rule, rig
from records import rows_of, spread

from flashnest.policy import compile_policy
from flashnest.record import FactArrays, Tier

MakeRig = Callable[..., Rig]
DRAM, NVME = Tier.DRAM, Tier.NVME


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeRig]:
    made: list[Rig] = []

    def make_one(*rules: Rule, **options: object) -> Rig:
        made.append(rig(tmp_path / f"db{len(made)}", *rules, **options))
        return made[-1]

    yield make_one
    for one in made:
        one.router.close()


def trial(*args: object, **options: object) -> Rule:
    return Rule(*args, acts=False, **options)  # type: ignore[arg-type]


def was_hit(facts: FactArrays):
    return facts.hits >= 1


def would_have(r: Rig) -> list[int]:
    return [rule.would_have for rule in r.router.stats().moves]


def test_a_promotion_on_trial_counts_each_found_record_once(make: MakeRig) -> None:
    r = make(trial("promote", NVME, DRAM, was_hit))
    keys = spread(0, 40)
    r.router.insert_many(keys, rows_of(keys, tokens=IN_NVME))
    r.router.flush()
    for _ in range(3):
        r.find(keys[:25])
        r.sweep()
    assert r.count(keys, DRAM) == 0
    assert r.count(keys, NVME) == 40
    (stats,) = r.router.stats().moves
    assert (stats.is_trial, stats.would_have, stats.moved, stats.refused) == (True, 25, 0, 0)


def test_a_demotion_on_trial_waits_for_its_watermark(make: MakeRig) -> None:
    r = make(trial("demote", DRAM, NVME, when_fill=0.5, until_fill=0.2))
    room = r.dram.max_records
    keys = spread(0, room)
    r.router.insert_many(keys[: room // 3], rows_of(keys[: room // 3], tokens=IN_DRAM))
    r.sweep()
    assert would_have(r) == [0]
    r.router.insert_many(keys[: 2 * room // 3], rows_of(keys[: 2 * room // 3], tokens=IN_DRAM))
    for _ in range(3):
        r.pass_s(31)
        r.sweep()
    assert would_have(r) == [2 * room // 3]
    assert r.count(keys, DRAM) == 2 * room // 3


def test_an_eviction_on_trial_looks_at_cold_records(make: MakeRig) -> None:
    r = make(trial("evict", NVME, None, lambda facts: facts.idle_s > 100))
    keys = spread(0, 30)
    r.router.insert_many(keys, rows_of(keys, tokens=IN_NVME))
    r.router.flush()
    r.pass_s(3700)
    r.sweep(4)
    assert would_have(r) == [30]
    assert r.count(keys, NVME) == 30


def test_a_trial_takes_nothing_from_the_rules_behind_it(make: MakeRig) -> None:
    rules = (trial("promote", NVME, DRAM), Rule("promote", NVME, DRAM, was_hit, number=2))
    r = make(*rules)
    keys = spread(0, 10)
    r.router.insert_many(keys, rows_of(keys, tokens=IN_NVME))
    r.router.flush()
    r.find(keys)
    r.sweep()
    assert r.count(keys, DRAM) == 10
    assert [(s.moved, s.would_have) for s in r.router.stats().moves] == [(0, 10), (10, 0)]


def test_a_keep_on_trial_keeps_nothing(make: MakeRig) -> None:
    for acts in (True, False):
        r = make(Rule("keep", NVME, acts=acts), Rule("promote", NVME, DRAM))
        keys = spread(0, 10)
        r.router.insert_many(keys, rows_of(keys, tokens=IN_NVME))
        r.router.flush()
        r.find(keys)
        r.sweep()
        assert r.count(keys, DRAM) == (0 if acts else 10)


def test_learning_a_cold_record_again_is_as_without_the_trial(make: MakeRig) -> None:
    """A rule that moves between NVMe and DRAM lets records stay where they are; a trial must not."""
    where = []
    for rules in ((), (trial("promote", NVME, DRAM),), (Rule("promote", NVME, DRAM),)):
        r = make(*rules)
        keys = spread(0, 5)
        r.router.insert_many(keys, rows_of(keys, tokens=IN_NVME))
        r.router.flush()
        r.router.insert_many(keys, rows_of(keys, tokens=IN_DRAM))
        where.append(r.count(keys, DRAM))
    assert where == [5, 5, 0]


def test_a_policy_s_trial_is_one(make: MakeRig) -> None:
    text = "place tokens <= 8 in nvme\nplace otherwise in dram\npromote hits >= 1 from nvme to dram at most 2 rec/s{}"
    moved = []
    for level in ("", " warn"):
        r = make(plan=compile_policy(text.format(level)).moves)
        keys = spread(0, 6)
        r.router.insert_many(keys, rows_of(keys, tokens=IN_NVME))
        r.router.flush()
        r.find(keys)
        r.sweep()
        (stats,) = r.router.stats().moves
        moved.append((stats.moved, stats.would_have))
    assert moved == [(2, 0), (0, 6)]
