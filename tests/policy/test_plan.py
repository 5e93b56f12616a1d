"""Plans: what rules would move now, against asking the policy record by record; watermarks, room, pace, old and new."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flashnest.cli.policy.platforms import platform_facts
from flashnest.policy.compile import Policy, compile_policy
from flashnest.policy.expectations import TierRoom
from flashnest.policy.facts import RecordFacts
from flashnest.policy.plan import Plan, Present, make_plan
from flashnest.policy.plan_output import plan_json, plan_lines
from flashnest.record import FactArrays, Kind, Tier, namespace_id

PLATFORM = replace(platform_facts("rtx4090"), nvme_iops=1000, nvme_sequential_bytes_per_s=1e6)
PLACE = "place otherwise in vram else dram else nvme\n"


def table(n: int, seed: int = 1, *, tiers: tuple[Tier, ...] = tuple(Tier)) -> Present:
    rng = np.random.default_rng(seed)
    hits = rng.integers(0, 6, n).astype(np.uint32)
    idle = rng.integers(0, 200, n).astype(np.uint32)
    facts = FactArrays(
        tokens=rng.choice([4, 8, 16, 32], n).astype(np.uint8),
        kind=rng.integers(0, 2, n).astype(np.uint8),
        namespace=rng.choice([namespace_id("default"), namespace_id("acme")], n).astype(np.uint32),
        nbytes=np.full(n, 72, np.uint32),
        hits=hits,
        idle_s=idle,
        age_s=(idle + 50).astype(np.uint32),
        refs=rng.integers(0, 9, n).astype(np.uint32),
        accept_percent=rng.integers(0, 101, n).astype(np.uint8),
        window_hits=(np.where(idle > 60, 0, hits).astype(np.uint32),),
    )
    return Present(facts, (60,), rng.choice([int(tier) for tier in tiers], n).astype(np.uint8), "made for a test")


def one_of(present: Present, i: int) -> RecordFacts:
    facts = present.facts
    return RecordFacts(
        tokens=int(facts.tokens[i]),
        kind=Kind(int(facts.kind[i])),
        namespace="acme" if facts.namespace[i] == namespace_id("acme") else "default",
        hits=int(facts.hits[i]),
        window_hits=((60, int(facts.window_hits[0][i])),),
        idle_s=int(facts.idle_s[i]),
        age_s=int(facts.age_s[i]),
        refs=int(facts.refs[i]),
        accept_percent=int(facts.accept_percent[i]),
    )


def rooms(**sizes: int) -> dict[Tier, TierRoom]:
    return {Tier[name.upper()]: TierRoom(100 * size, size, 100.0, "") for name, size in sizes.items()}


def planned(text: str, present: Present, old: str | None = None, **sizes: int) -> Plan:
    before = None if old is None else compile_policy(old)
    room = rooms(**(sizes or {"vram": 10**6, "dram": 10**6, "nvme": 10**6}))
    return make_plan(present, compile_policy(text), room, PLATFORM, write_bytes_a_record=100.0, old=before)


def test_rules_take_what_the_policy_says_record_by_record() -> None:
    text = PLACE + "\n".join(
        (
            "keep refs >= 8 in nvme",
            'promote hits in 60s >= 3 and namespace = "acme" from nvme to dram',
            "promote hits in 60s >= 4 from nvme to vram",
            "demote idle > 100s and not tokens >= 32 from dram to nvme",
            "evict accept < 20% from nvme",
            "evict hits = 0 from dram warn",
        )
    )
    policy, present = compile_policy(text), table(3000)
    asked = [policy.move(one_of(present, i), Tier(int(present.tier[i]))) for i in range(len(present))]
    plan = planned(text, present)
    assert [move.rule.number for move in plan.moves] == [3, 4, 5, 6]
    for move in plan.moves:
        assert (
            move.matching == move.records == sum(rule is not None and rule.number == move.rule.number for rule in asked)
        )
        assert move.nbytes == 72 * move.records
    ins = {tier: sum(m.records for m in plan.moves if m.rule.target is tier) for tier in Tier}
    outs = {tier: sum(m.records for m in plan.moves if m.rule.source is tier) for tier in Tier}
    for fill in plan.fills:
        assert fill.after == fill.before + ins[fill.tier] - outs[fill.tier]
    assert plan.records == sum(outs.values())


@pytest.mark.parametrize(("when", "until", "records"), [(90, 80, 0), (89, 79, 101 + 10), (50, 40, 501)])
def test_watermarks_say_when_a_move_is_due_and_how_far_it_goes(when: int, until: int, records: int) -> None:
    present = table(900, tiers=(Tier.DRAM,))
    text = PLACE + f"demote from dram to nvme when fill > {when}% until fill < {until}% by idle desc"
    (move,) = planned(text, present, dram=1000, nvme=5000).moves
    assert move.records == records
    if records:  # just below `until`
        assert (900 - records) / 1000 < until / 100 <= (901 - records) / 1000


def test_a_rule_that_is_not_due_leaves_its_records_to_the_next() -> None:
    present = table(900, tiers=(Tier.DRAM,))
    text = PLACE + "demote from dram to nvme when fill > 95% until fill < 90%\nevict hits = 0 from dram"
    demote, evict = planned(text, present, dram=1000, nvme=1000).moves
    assert (demote.matching, demote.due, evict.due) == (0, False, True)
    assert evict.records == int(np.count_nonzero(present.facts.hits == 0))


def test_a_rule_sees_the_fill_that_the_rules_before_it_leave() -> None:
    present = table(900, tiers=(Tier.DRAM,))
    text = PLACE + "evict hits <= 2 from dram\ndemote from dram to nvme when fill > 60% until fill < 50%"
    evict, demote = planned(text, present, dram=1000, nvme=1000).moves
    assert evict.records > 300
    assert demote.records == 0


def test_what_finds_no_room_is_refused_and_counted() -> None:
    present = table(1000, tiers=(Tier.NVME,))
    text = PLACE + "promote hits >= 1 from nvme to dram"
    (move,) = planned(text, present, dram=100, nvme=1000).moves
    assert (move.records, move.refused) == (100, move.matching - 100)


@pytest.mark.parametrize(
    ("clause", "seconds", "limit"),
    [
        ("at most 50 rec/s", 20.0, "50 rec/s"),
        ("at most 1 MB/s", 1.0, "drive reads"),
        ("at most 7200 B/s", 10.0, "0.0072 MB/s"),
        ("", 1.0, "drive reads"),
    ],
)
def test_the_slowest_of_rates_and_drive_is_the_pace(clause: str, seconds: float, limit: str) -> None:
    (move,) = planned(PLACE + f"promote hits <= 9 from nvme to dram {clause}", table(1000, tiers=(Tier.NVME,))).moves
    assert (move.seconds, move.limit) == (seconds, limit)


def test_moves_beside_the_drive_have_the_sweeps_pace() -> None:
    (move,) = planned(PLACE + "promote hits <= 9 from dram to vram", table(10, tiers=(Tier.DRAM,))).moves
    assert (move.seconds, move.limit) == (None, "the sweep's time")


def test_with_the_old_policy_only_what_changed_is_misplaced_and_old_moves_are_told() -> None:
    present = table(1000, tiers=(Tier.NVME,))
    old = "place tokens >= 32 in dram\nplace otherwise in nvme\npromote hits >= 5 from nvme to dram"
    new = "place tokens >= 16 in dram\nplace otherwise in nvme\npromote hits >= 4 from nvme to dram"
    tokens, hits = present.facts.tokens, present.facts.hits
    alone, since = planned(new, present), planned(new, present, old)
    assert [one.records for one in alone.misplaced] == [int(np.count_nonzero(tokens >= 16))]
    assert [one.records for one in since.misplaced] == [int(np.count_nonzero(tokens == 16))]
    assert since.misplaced[0].moved == int(np.count_nonzero((tokens == 16) & (hits >= 4)))
    assert (alone.moves[0].already, since.moves[0].already) == (None, int(np.count_nonzero(hits == 5)))


def test_records_of_a_tier_that_is_not_open_are_stranded() -> None:
    present = table(100, tiers=(Tier.NVME,))
    plan = planned("place otherwise in dram", present, dram=1000)
    assert plan.stranded == ((Tier.NVME, 100),)
    text = plan_lines(plan, present, compile_policy("place otherwise in dram", source="new"), None, PLATFORM)
    assert "  100 records in nvme, which new does not open: not found any more" in text


def test_an_empty_table_moves_nothing() -> None:
    assert planned(PLACE + "evict hits = 0 from nvme", table(0)).records == 0


def both(plan: Plan, present: Present, policy: Policy) -> tuple[str, dict[str, object]]:
    lines, data = plan_lines(plan, present, policy, None, PLATFORM), plan_json(plan, present, policy, None, PLATFORM)
    return "\n".join(lines), dict(data)


def test_text_and_json_say_the_same() -> None:
    present = table(1000, tiers=(Tier.NVME,))
    policy = compile_policy(PLACE + "promote hits >= 3 from nvme to dram at most 100 rec/s", source="new.tier")
    plan = make_plan(present, policy, rooms(dram=200, nvme=2000), PLATFORM, write_bytes_a_record=10.0)
    matching = int(np.count_nonzero(present.facts.hits >= 3))
    text, data = both(plan, present, policy)
    assert text == (
        "present: made for a test\n"
        "new.tier on rtx4090 would\n\n"
        "  promote 200 records, 14.1 KiB, nvme -> dram, 2.0 s at 100 rec/s\n"
        "    rule 2 (line 2): promote hits >= 3 from nvme to dram at most 100 rec/s\n"
        f"    {matching} match; {matching - 200} find no room in dram\n\n"
        "  tier  records  after  room   fill   after\n"
        "  dram        0    200   200   0.0%  100.0%\n"
        "  nvme    1,000    800  2.0k  50.0%   40.0%\n\n"
        f"200 records move or go; the slowest rule takes 2.0 s; {matching - 200} find no room"
    )
    assert data["moves"] == [
        {
            "rule": 2, "line": 2, "text": "promote hits >= 3 from nvme to dram at most 100 rec/s", "action": "promote",
            "source": "nvme", "target": "dram", "due": True, "matching": matching, "records": 200, "bytes": 14400,
            "refused": matching - 200, "already": None, "seconds": 2.0, "limit": "100 rec/s",
        }
    ]  # fmt: skip
    assert data["tiers"] == [
        {"tier": "dram", "before": 0, "after": 200, "room": 200, "capacity": 20000},
        {"tier": "nvme", "before": 1000, "after": 800, "room": 2000, "capacity": 200000},
    ]
