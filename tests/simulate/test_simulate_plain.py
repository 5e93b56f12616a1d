"""The simulation against the plain one in `plain.py`: the same hits, moves, reads and records, whatever the policy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain import Plain
from traces import drawn_traces, seeded_trace

from flashnest.policy import Policy, compile_policy
from flashnest.record import Tier
from flashnest.simulate import Simulation, TierOptions, Trace, simulate
from flashnest.simulate.room import rooms_of

POLICIES = {
    "dram": "place otherwise in dram",
    "spill": "place tokens >= 16 in vram else dram else nvme\nplace otherwise in nvme else dram",
    "vram": "place otherwise in vram",
    "reject": "place tokens <= 4 in reject\nplace otherwise in dram else nvme",
    "admit": "place tokens <= 8 on nvme after 2 hits in 10s\nplace otherwise in dram after 3 hits in 1min",
    "promote": (
        "place tokens >= 32 in dram\nplace otherwise on nvme else dram\n"
        "promote hits in 60s >= 2 from nvme to dram at most 3 rec/s cooldown 5s"
    ),
    "marks": (
        "place otherwise in dram else nvme\nkeep hits >= 4 in dram\n"
        "demote not kind = chunk from dram to nvme when fill > 80% until fill < 50% by idle desc\n"
        "evict from nvme when fill > 70% until fill < 40% using lru\n"
        "promote hits >= 2 or refs >= 3 from nvme to dram at most 100 B/s"
    ),
    "using": (
        "place otherwise in dram\nkeep refs >= 2 in dram\n"
        "evict tokens <= 16 from dram when fill > 60% until fill < 30% using s3fifo"
    ),
    "always": (
        "place otherwise in vram else dram\n"
        "demote hits in 30s <= 9 from vram to dram min residency 10s\nevict age > 5s and hits <= 1 from dram\n"
        "evict from dram when fill > 60% until fill < 30% by idle desc\n"
        "promote hits in 30s >= 1 from dram to vram cooldown 3s"
    ),
    "to and fro": (
        "place otherwise in dram else nvme\npromote hits >= 0 from nvme to dram\ndemote hits >= 0 from dram to nvme"
    ),
    "trials": (
        "place tokens <= 8 on nvme warn\nplace otherwise in dram else nvme\n"
        "evict idle > 5s from dram warn\npromote hits >= 1 from nvme to dram warn\n"
        "demote from dram to nvme when fill > 50% until fill < 20% by hits asc warn"
    ),
    "tenants": (
        'place namespace = "batch" in nvme\nplace otherwise in dram else nvme\n'
        'demote idle > 2s and not (tokens >= 32 or namespace = "default" and hits >= 1) from dram to nvme\n'
        "evict bytes <= 100B and idle > 2s from nvme when fill > 10% until fill < 5% by age desc"
    ),
}
ROOMS = {Tier.VRAM: 1216, Tier.DRAM: 3000, Tier.NVME: (256 << 10) + 4096}
"""12, 22 and 26 records."""


def open_tiers(policy: Policy) -> dict[Tier, int]:
    return {tier: size for tier, size in ROOMS.items() if tier in policy.tiers}


def rooms(capacities: Mapping[Tier, int], eviction: str) -> dict[Tier, int]:
    found = rooms_of(capacities, record_bytes=72, eviction=eviction, engine="lmdb")
    return {tier: room.records for tier, room in found.items()}


def run_both(name: str, trace: Trace, options: TierOptions) -> tuple[Simulation, Plain]:
    policy = compile_policy(POLICIES[name])
    capacities = open_tiers(policy)
    found = simulate(policy, trace, capacities=capacities, options=options)
    eviction = options.eviction or "s3fifo"
    plain = Plain(
        policy,
        trace,
        rooms(capacities, eviction),
        eviction=eviction,
        blocking=options.blocking,
        flush_records=options.flush_records,
        flush_s=options.flush_interval_s,
    )
    return found, plain.run()


def long_trace(name: str) -> Trace:
    records = 40 if name == "to and fro" else 150  # it needs room to move
    return seeded_trace(7, records=records, steps=160, gap_ms=3000, busy=24, skew=0.9)


def simulate_alone(name: str) -> Simulation:
    policy = compile_policy(POLICIES[name])
    return simulate(
        policy, long_trace(name), capacities=open_tiers(policy), options=TierOptions("s3fifo", flush_records=16)
    )


def assert_alike(found: Simulation, plain: Plain) -> None:
    assert (found.questions, found.misses) == (plain.questions, plain.misses)
    assert found.hits == dict(plain.hits)
    assert found.hits_by_rule == {number: plain.hits_by_rule[number] for number in found.hits_by_rule}
    moved = {state.rule.number: state for state in plain.states if state.rule.acts}
    assert found.moved_by_rule == {number: state.moved for number, state in moved.items()}
    assert found.refused_by_rule == {number: state.refused for number, state in moved.items()}
    assert found.ping_pongs == sum(state.breaker.ping_pongs for state in moved.values())
    assert found.suspensions == {n: s.breaker.suspensions for n, s in moved.items() if s.breaker.suspensions}
    assert found.end_records == {tier: len(place) for tier, place in plain.places.items()}
    assert (found.rejected, found.not_admitted, found.pushed_out) == (
        plain.rejected,
        plain.not_admitted,
        plain.pushed_out,
    )
    assert (found.cold_reads, found.false_reads, found.nvme_changes) == (
        sum(plain.reads),
        plain.false_reads,
        plain.changes,
    )
    assert found.stored_records == sum(record.stored for record in plain.records)
    wonders = sum(record.stored and not record.asked for record in plain.records)
    assert found.one_hit_wonders == pytest.approx(wonders / max(1, found.stored_records))
    moves = {rule.number for rule in plain.policy.moves.rules}
    trials = {number: count for number, count in found.would_have.items() if number in moves}
    assert trials == {number: plain.would_have[number] for number in trials}


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(trace=drawn_traces(), eviction=st.sampled_from(["s3fifo", "sieve", "lru"]), blocking=st.booleans())
def test_the_kernels_do_what_plain_python_does(name: str, trace: Trace, eviction: str, blocking: bool) -> None:
    options = TierOptions(eviction=eviction, blocking=blocking, flush_records=8, flush_interval_s=3.0)
    assert_alike(*run_both(name, trace, options))


@pytest.mark.parametrize("name", POLICIES)
def test_a_longer_trace_too(name: str) -> None:
    found, plain = run_both(name, long_trace(name), TierOptions(flush_records=16))
    assert_alike(found, plain)
    assert found.questions > 1000


def test_the_long_traces_use_every_brake() -> None:
    """Else agreement would say nothing of moves, refusals, suspensions and trials."""
    runs = {name: simulate_alone(name) for name in POLICIES}
    moving = {name: found for name, found in runs.items() if found.moved_by_rule}
    for name in ("promote", "marks", "using", "always", "to and fro", "tenants"):
        assert all(moving[name].moved_by_rule.values()), (name, moving[name].moved_by_rule)
    assert any(sum(found.refused_by_rule.values()) for found in moving.values())
    assert runs["to and fro"].suspensions
    assert runs["to and fro"].ping_pongs
    assert all(runs["trials"].would_have.values())
    assert runs["admit"].not_admitted
    assert runs["reject"].rejected
    assert runs["dram"].pushed_out
    assert np.isfinite(runs["dram"].hits_per_stored_byte)
