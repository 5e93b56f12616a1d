"""What is expected without playing a trace, against the simulation that plays it; and the table that a trace leaves."""

from __future__ import annotations

import numpy as np
import pytest

from flashnest.cli.policy.platforms import platform_facts
from flashnest.policy.compile import compile_policy
from flashnest.policy.facts import DEFAULT_NAMESPACE
from flashnest.record import Kind, Tier, namespace_id
from flashnest.simulate.engine import TierOptions, simulate
from flashnest.simulate.expected import Demand, expected_writes, records_in_shares, records_of_trace, tier_rooms
from flashnest.simulate.expected_lookups import expected_lookups
from flashnest.simulate.present import present_after
from flashnest.simulate.texts import generated_trace
from flashnest.simulate.trace import INSERT, LOOKUP, Trace

PLATFORM = platform_facts("rtx4090")
ROOMY = {Tier.DRAM: 1 << 30, Tier.NVME: 4 << 30}
HOTCOLD = "place tokens >= 32 in dram\nplace tokens <= 8 in nvme\nplace otherwise in dram else nvme"
LENGTHS = (4, 8, 16, 32)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return generated_trace(0.5, requests=32, concurrency=16)


@pytest.mark.parametrize("text", ["place otherwise in nvme", HOTCOLD, "place otherwise in dram"])
@pytest.mark.parametrize("blocking", [False, True])
def test_a_steps_lookups_are_those_of_the_simulation_where_nothing_moves(
    trace: Trace, text: str, blocking: bool
) -> None:
    policy, options = compile_policy(text), TierOptions(blocking=blocking, flush_records=1)
    opened = {tier: room for tier, room in ROOMY.items() if tier in policy.tiers}
    played = simulate(policy, trace, capacities=opened, platform=PLATFORM, belady=False, options=options)
    expected = expected_lookups(policy, Demand(records_of_trace(trace), LENGTHS, None, trace), PLATFORM, options)
    assert expected is not None
    assert played.lookup_us is not None
    assert expected.p99_s * 1e6 == pytest.approx(played.lookup_us.p99, rel=0.05)
    assert expected.p50_s * 1e6 == pytest.approx(played.lookup_us.p50, rel=0.1)
    assert sum(expected.reads_by_rule.values()) == pytest.approx(expected.reads, rel=1e-6)
    assert (expected.reads > 0) == ("nvme" in text)


@pytest.mark.parametrize("engine", ["lmdb", "slots"])
def test_writes_are_about_those_of_the_simulation(trace: Trace, engine: str) -> None:
    policy, options = compile_policy("place otherwise in nvme"), TierOptions(engine=engine)
    played = simulate(policy, trace, capacities=ROOMY, platform=PLATFORM, belady=False, options=options)
    demand = Demand(records_of_trace(trace), LENGTHS, trace.duration_s, trace)
    writes = expected_writes(policy, demand, tier_rooms(ROOMY, policy, options), options)
    assert writes is not None
    assert writes.bytes_per_s == pytest.approx(played.nvme_bytes_per_s, rel=0.4)
    assert writes.twice_per_s is not None
    assert writes.twice_per_s < writes.records_per_s


def test_writes_know_the_limit_of_a_flush(trace: Trace) -> None:
    policy, options = compile_policy("place otherwise in nvme\nflush every 1min at most 2 MB/s"), TierOptions()
    demand = Demand(records_of_trace(trace), LENGTHS, trace.duration_s, trace)
    writes = expected_writes(policy, demand, tier_rooms(ROOMY, policy, options), options)
    assert writes is not None
    assert writes.bytes_per_s == 2e6 < writes.wanted_bytes_per_s


def test_nothing_is_said_of_writes_without_a_time_or_a_drive(trace: Trace) -> None:
    policy, options = compile_policy("place otherwise in dram"), TierOptions()
    dram = tier_rooms({Tier.DRAM: 1 << 20}, policy, options)
    assert expected_writes(policy, Demand(records_of_trace(trace), LENGTHS, 5.0), dram, options) is None
    both = tier_rooms(ROOMY, policy, options)
    assert expected_writes(policy, Demand(records_of_trace(trace), LENGTHS), both, options) is None


def test_a_demote_writes_what_dram_has_no_room_for(trace: Trace) -> None:
    rule = "demote from dram to nvme when fill > 50% until fill < 40%"
    options, records = TierOptions(), records_in_shares(1e6, {8: 1.0}, 0, "")
    for clause, rate in (("", 950.0), (" at most 100 rec/s", 100.0)):
        policy = compile_policy(f"place otherwise in dram\n{rule}{clause}")
        rooms = tier_rooms({Tier.DRAM: 6 << 20, Tier.NVME: 1 << 30}, policy, options)
        writes = expected_writes(policy, Demand(records, LENGTHS, 1000.0), rooms, options)
        assert writes is not None
        assert writes.demoted_per_s == writes.records_per_s == pytest.approx(rate, rel=0.02)


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("place otherwise in nvme", 2.5),  # a hit of 4, 8, 16 or 32 tokens, and all that is shorter
        ("place otherwise in dram", 0.0),
        ("place tokens >= 32 in dram, otherwise in nvme", 1.5),  # 1 + 2 + 3 + 0 of four
        ("place tokens <= 4 in dram, otherwise in nvme", 1.5),  # 0 + 1 + 2 + 3
        ("place tokens <= 4 in reject, otherwise in nvme", 2.0),  # 1 + 2 + 3 of three
    ],
)
def test_of_shares_every_stream_finds_a_record_and_reads_what_is_longer_than_memory_has(
    text: str, reads: float
) -> None:
    shares = {**dict.fromkeys(LENGTHS, 1.0), 0: 1 / 32}
    records = records_in_shares(1e6, shares, namespace_id(DEFAULT_NAMESPACE), "")
    found = expected_lookups(compile_policy(text), Demand(records, LENGTHS), PLATFORM, TierOptions())
    assert found is not None
    assert found.reads == pytest.approx(128 * reads)
    waiting = expected_lookups(compile_policy(text), Demand(records, LENGTHS), PLATFORM, TierOptions(blocking=True))
    assert waiting is not None
    assert waiting.reads <= 128
    assert found.keys == 128 * 4
    assert records.counts.sum() == pytest.approx(1e6)
    assert records.kind.tolist() == [Kind.CHUNK, *[Kind.NGRAM] * 4]


def test_records_of_a_trace_are_counted_by_sort_and_grow_by_its_second_half() -> None:
    made = Trace.checked(
        name="t",
        source="made",
        record=[0, 1, 0, 2, 3],
        op=[INSERT] * 5,
        step=[0, 0, 1, 1, 1],
        group=[-1] * 5,
        step_time_ms=[0, 100],
        tokens=[8, 8, 32, 32],
        kind=[0, 0, 0, 0],
        namespace=[5, 5, 5, 5],
        nbytes=[72] * 4,
    )
    whole = records_of_trace(made)
    assert sorted(zip(whole.tokens.tolist(), whole.learnt.tolist(), whole.counts.tolist(), strict=True)) == [  # type: ignore[union-attr]
        (8, 1, 1.0),
        (8, 2, 1.0),
        (32, 1, 2.0),
    ]
    grown = records_of_trace(made, 3.0)
    assert sorted(grown.counts.tolist()) == [1.0, 1.0, 2.0 * (1 + 2 * 2)]
    assert "10 records" not in grown.source
    assert "12 records counted in t, reckoned 3 times as long from the 4 counted" in grown.source


def test_a_trace_leaves_records_in_order_until_a_tier_is_full_with_their_hits() -> None:
    made = Trace.checked(
        name="t",
        source="made",
        record=[0, 1, 0, 1, 2, 0, 3],
        op=[INSERT, INSERT, LOOKUP, LOOKUP, INSERT, LOOKUP, INSERT],
        step=[0, 0, 1, 1, 1, 2, 2],
        group=[-1, -1, 0, 0, -1, 1, -1],
        step_time_ms=[0, 50_000, 120_000],
        tokens=[32, 8, 8, 8],
        kind=[0, 0, 0, 0],
        namespace=[5] * 4,
        nbytes=[72] * 4,
    )
    policy = compile_policy("place tokens >= 32 in nvme, otherwise in dram else nvme")
    rooms = tier_rooms({Tier.DRAM: 1 << 20, Tier.NVME: 1 << 30}, policy, TierOptions())
    rooms[Tier.DRAM] = type(rooms[Tier.DRAM])(200, 2, 100.0, "")
    table = present_after(made, policy, rooms, (60, 600))
    assert table.tier.tolist() == [Tier.NVME, Tier.DRAM, Tier.DRAM, Tier.NVME]
    assert table.facts.hits.tolist() == [2, 0, 0, 0]
    assert [window.tolist() for window in table.facts.window_hits] == [[1, 0, 0, 0], [2, 0, 0, 0]]
    assert table.facts.idle_s.tolist() == [0, 120, 70, 0]
    assert table.facts.age_s.tolist() == [120, 120, 70, 0]
    assert np.array_equal(table.facts.refs, [1, 1, 1, 1])
