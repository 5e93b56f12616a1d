"""The simulation's result: budgets, sums, predictions, requirements, warnings; and what a policy's words do."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from traces import drawn_traces, seeded_trace, trace_of

from flashnest.errors import ConfigError, StoreFullError
from flashnest.policy import compile_policy
from flashnest.policy.platform_facts import PlatformFacts
from flashnest.record import Tier
from flashnest.simulate import INSERT, Simulation, TierOptions, Trace, simulate
from flashnest.simulate.latency import CALL_S, HIT_S, MISS_S, lookup_seconds
from flashnest.simulate.wear import lmdb_bytes, slots_bytes

MIB = 1 << 20
ROOMS = {Tier.VRAM: 1216, Tier.DRAM: 3000, Tier.NVME: (256 << 10) + 4096}
SPILL = (
    "place tokens >= 32 in vram else dram else nvme\nplace tokens >= 16 in dram else nvme\nplace otherwise in nvme\n"
    "promote hits in 60s >= 2 from nvme to dram at most 5 rec/s cooldown 5s\n"
    "demote from dram to nvme when fill > 90% until fill < 60% by idle desc"
)
RIG = PlatformFacts(
    name="rig",
    vram_bytes=None,
    dram_bytes=1 << 30,
    nvme_bytes=1 << 34,
    nvme_read_mean_s=86e-6,
    nvme_read_p99_s=430e-6,
    nvme_iops=1_400_000,
    nvme_endurance_bytes=1200 * 10**12,
    concurrency=8,
)


def one_of_each(asks: list[list[int]], *, records: int, gap_ms: int = 100, tokens: int = 8) -> Trace:
    """Make a trace of one question a step; its candidates are inserted with the first step that names them."""
    seen: set[int] = set()
    steps = []
    for i, asked in enumerate(asks):
        steps.append((gap_ms * i, [asked], [one for one in asked if one not in seen]))
        seen.update(asked)
    return trace_of(steps, tokens=[tokens] * records, kinds=[0] * records, names=["default"] * records)


def play(text: str, trace: Trace, **changes: object) -> Simulation:
    settings_: dict[str, object] = {"capacities": {Tier.DRAM: MIB}} | changes
    return simulate(compile_policy(text), trace, **settings_)  # type: ignore[arg-type]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(trace=drawn_traces())
def test_budgets_hold_and_sums_agree(trace: Trace) -> None:
    found = play(SPILL, trace, capacities=ROOMS, options=TierOptions(flush_records=8))
    for tier, room in ROOMS.items():
        held = found.series.bytes[tier]
        assert (held <= room).all()
        assert found.end_bytes[tier] <= found.peak_bytes[tier] <= room
        assert held.max(initial=0) <= found.peak_bytes[tier]
    assert found.misses + sum(found.hits.values()) == found.questions == trace.questions
    assert sum(found.hits_by_rule.values()) == sum(found.hits.values())
    assert found.stored_records <= len(set(trace.record[trace.op == INSERT].tolist()))
    assert sum(found.end_records.values()) <= found.stored_records
    assert found.accesses == len(trace)
    assert len(found.series.step) == min(trace.steps, 200)


def test_the_same_input_gives_the_same_result() -> None:
    trace = seeded_trace(3, records=200, steps=100, gap_ms=900, busy=40, skew=1.0)
    first, second = (play(SPILL, trace, capacities=ROOMS, platform=RIG) for _ in range(2))
    assert json.dumps(first.to_json()) == json.dumps(second.to_json())


def test_arrays_that_may_be_written_give_the_same_result() -> None:
    trace = seeded_trace(4, records=50, steps=20, gap_ms=900, busy=10, skew=1.0)
    loose = replace(trace, record=trace.record.copy(), op=trace.op.copy(), group=trace.group.copy())
    assert play(SPILL, loose, capacities=ROOMS).to_json() == play(SPILL, trace, capacities=ROOMS).to_json()


def test_the_longest_stored_candidate_is_the_hit() -> None:
    trace = trace_of(
        [(0, [], [1, 2]), (1, [[0, 1, 2]], []), (2, [[2]], [])],
        tokens=[32, 16, 8],
        kinds=[0, 0, 0],
        names=["default"] * 3,
    )
    found = play("place tokens >= 16 in dram\nplace otherwise in dram", trace)
    assert found.hits_by_rule == {1: 1, 2: 1}
    assert (found.hits, found.misses) == ({Tier.DRAM: 2}, 0)
    assert found.one_hit_wonders == 0.0


def test_a_cold_hit_counts_at_once_and_promotes_a_step_later() -> None:
    trace = one_of_each([[0], [1], [0], [0], [0]], records=2, gap_ms=6000)
    rules = "place otherwise in nvme\npromote hits >= 1 from nvme to dram at most 10 rec/s"
    found = play(rules, trace, capacities={Tier.DRAM: MIB, Tier.NVME: MIB})
    assert found.hits == {Tier.DRAM: 1, Tier.NVME: 2}  # asked, asked again while its answer comes, then promoted
    assert found.moved_by_rule == {2: 1}
    assert found.cold_reads == 2


def test_what_waits_to_be_written_is_found_without_a_read() -> None:
    asks = [[0], [0], [0]]
    quick = play("place otherwise in nvme", one_of_each(asks, records=1), capacities={Tier.NVME: MIB})
    slow = play("place otherwise in nvme", one_of_each(asks, records=1, gap_ms=6000), capacities={Tier.NVME: MIB})
    assert (quick.hits[Tier.NVME], quick.cold_reads) == (2, 0)
    assert (slow.hits[Tier.NVME], slow.cold_reads) == (2, 1)  # written 5 s after the first step that has it


def test_flush_says_how_long_records_wait() -> None:
    trace = one_of_each([[0], [0], [0]], records=1, gap_ms=6000)
    found = play("place otherwise in nvme\nflush every 1min", trace, capacities={Tier.NVME: MIB})
    assert found.cold_reads == 0


def test_filter_keeps_almost_all_reads_of_absent_keys_away() -> None:
    trace = trace_of(
        [(0, [[i] for i in range(5000)], [])], tokens=[8] * 5000, kinds=[0] * 5000, names=["default"] * 5000
    )
    found = play("place otherwise in nvme", trace, capacities={Tier.NVME: MIB})
    assert found.cold_reads == found.false_reads
    assert 8 <= found.cold_reads <= 35  # 0.39 % are 20


def test_admission_keeps_out_what_comes_once() -> None:
    trace = trace_of(
        [(0, [], [0, 1]), (1000, [], [0]), (60_000, [], [1]), (60_001, [[0], [1]], [])],
        tokens=[8, 8],
        kinds=[0, 0],
        names=["default"] * 2,
    )
    found = play("place otherwise in dram after 2 hits in 10s", trace)
    assert (found.hits[Tier.DRAM], found.misses, found.not_admitted) == (1, 1, 3)


def test_a_trial_acts_nowhere_and_is_counted() -> None:
    trace = seeded_trace(9, records=60, steps=80, gap_ms=2000, busy=10, skew=1.0)
    plain = play("place otherwise in dram", trace)
    rules = (
        "place tokens <= 8 in reject warn\nplace otherwise in dram\n"
        "evict idle > 3s from dram warn\nevict refs >= 1000 from dram warn"
    )
    trial = play(rules, trace)
    assert trial.hits == plain.hits
    assert trial.would_have[1] == int(np.count_nonzero(trace.tokens <= 8))
    assert trial.would_have[3] > 0
    assert trial.would_have[4] == 0
    assert trial.moved_by_rule == {}


def test_slots_evicts_where_lmdb_refuses() -> None:
    asks = [[i] for i in range(20_000)]
    trace = one_of_each(asks, records=len(asks), gap_ms=1)
    full = {name: play("place otherwise in nvme", trace, capacities={Tier.NVME: MIB}, options=TierOptions(engine=name))
            for name in ("lmdb", "slots")}  # fmt: skip
    assert full["lmdb"].rejected > 0
    assert full["lmdb"].pushed_out == 0
    assert full["slots"].rejected == 0
    assert full["slots"].pushed_out == 20_000 - full["slots"].end_records[Tier.NVME] > 0


def test_progress_goes_up_to_one_and_may_stop_the_run() -> None:
    trace = seeded_trace(3, records=20, steps=500, gap_ms=10, busy=3, skew=1.0)
    shares: list[float] = []
    play("place otherwise in dram", trace, progress=shares.append)
    assert shares == sorted(shares)
    assert (shares[0], shares[-1], len(shares)) == (0.0, 1.0, 201)

    def stop(share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play("place otherwise in dram", trace, progress=stop)


def test_an_empty_trace_is_played() -> None:
    found = play("place otherwise in dram", seeded_trace(1, records=1, steps=1, gap_ms=1, busy=1, skew=0).part(0, 0))
    assert (found.questions, found.hit_share, found.accesses) == (0, 0.0, 0)
    assert len(found.series.step) == 0


def test_what_cannot_be_simulated_is_refused() -> None:
    trace = one_of_each([[0]], records=1)
    with pytest.raises(ConfigError, match="no tier has a capacity"):
        play("place otherwise in dram", trace, capacities={})
    with pytest.raises(ConfigError, match="there is no engine 'rocksdb'"):
        play("place otherwise in dram", trace, options=TierOptions(engine="rocksdb"))
    with pytest.raises(ConfigError, match="there is no eviction 'arc'"):
        play("place otherwise in dram", trace, options=TierOptions(eviction="arc"))
    with pytest.raises(StoreFullError):
        play("place otherwise in dram", trace, capacities={Tier.DRAM: 100})


def test_requirements_are_judged_by_what_was_found() -> None:
    trace = one_of_each([[0]] * 50, records=1, gap_ms=1000)
    rules = (
        "place otherwise in dram else nvme\nrequire dram hits >= 90%\nrequire lookup p99 <= 1us\n"
        "require lookup p50 <= 1ns warn\nrequire nvme writes <= 1 MB/s\nrequire nvme life >= 5y\n"
        "require step p99 <= 2ms"
    )
    found = play(rules, trace, capacities={Tier.DRAM: MIB, Tier.NVME: MIB}, platform=RIG)
    assert dict(found.requirements) == {
        "require dram hits >= 90%": True,
        "require lookup p99 <= 1us": True,
        "require lookup p50 <= 1ns warn": False,
        "require nvme writes <= 1 MB/s": True,
        "require nvme life >= 5y": True,
    }
    assert found.broken == ()
    assert found.passed
    assert "`require lookup p50 <= 1ns warn` does not hold" in found.warnings
    assert "`require step p99 <= 2ms` cannot be told: no base step time is given" in found.warnings
    slow = play(rules, trace, capacities=ROOMS, platform=RIG, options=TierOptions(base_step_s=0.01))
    assert slow.broken == ("require step p99 <= 2ms",)
    assert not slow.passed


def test_without_a_platform_nothing_is_predicted() -> None:
    found = play("place otherwise in dram\nrequire lookup p99 <= 1us", one_of_each([[0]], records=1))
    assert (found.lookup_us, found.step_ms, found.drive_life_years) == (None, None, None)
    assert found.warnings == ("`require lookup p99 <= 1us` cannot be told: no platform is given",)


def test_blocking_reads_wait_for_the_drive_one_after_another() -> None:
    keys, answers, reads = (np.full(200, value, np.int32) for value in (32, 8, 4))
    ready = CALL_S + 8 * HIT_S + 24 * MISS_S
    hidden = lookup_seconds(keys, answers, reads, RIG, blocking=False)
    waited = lookup_seconds(keys, answers, reads, RIG, blocking=True)
    assert hidden.max() < ready + 4 * 5e-6
    assert np.median(waited) == pytest.approx(ready + 4 * 86e-6)
    assert waited.max() == pytest.approx(ready + 3 * 86e-6 + 430e-6)


def test_wear_is_what_the_engines_were_measured_to_write() -> None:
    """The rows `bytes_written` of docs/measurements/2026-12-01-cold-16M.json, 72 bytes a record."""
    leaves = 16e6 * 90 / (4096 * 2 / 3)
    touched = leaves * (1 - math.exp(-4096 / leaves))
    assert lmdb_bytes(touched) / 4096 == pytest.approx(8589, rel=0.01)
    assert slots_bytes(1000, 72, 64 << 30) / 1000 == pytest.approx(73.5 + 3727, rel=0.02)
    assert slots_bytes(1000, 72, 1 << 30) / 1000 == pytest.approx(73.5 + 2847, rel=0.02)


def test_drive_life_follows_from_what_is_written() -> None:
    trace = one_of_each([[i] for i in range(2000)], records=2000, gap_ms=100)
    found = play("place otherwise in nvme", trace, capacities={Tier.NVME: 4 * MIB}, platform=RIG)
    assert found.nvme_changes == 2000
    assert found.nvme_bytes_per_s == pytest.approx(found.nvme_written_bytes / trace.duration_s)
    assert found.drive_life_years == pytest.approx(1200e12 / found.nvme_bytes_per_s / (365 * 86400))
    unwritten = play("place otherwise in dram", trace, platform=RIG)
    assert unwritten.drive_life_years == math.inf
    assert unwritten.to_json()["drive_life_years"] is None


def test_most_hits_on_nvme_are_warned_of_with_their_lengths() -> None:
    trace = one_of_each([[0]] * 20, records=1, tokens=4)
    found = play("place tokens <= 8 in nvme\nplace otherwise in dram", trace, capacities=ROOMS)
    assert found.warnings == (
        "this policy puts most hits (100 %) on NVMe: records of 4 tokens take 100 % of those, one step late",
    )


def test_warnings_name_the_rule_and_the_tier() -> None:
    trace = one_of_each([[i % 50] for i in range(400)], records=50)
    rules = (
        "place otherwise in vram else dram\nkeep accept < 50% in dram\n"
        "evict from dram when fill > 95% until fill < 90% using sieve"
    )
    found = play(rules, trace, options=TierOptions(eviction="lru"))
    assert found.warnings == (
        "the policy names vram, which has no capacity here: its records go where else they may",
        "rule 3 says `using sieve`, the dram tier evicts by lru",
        "rule 2 asks for `accept`, which a trace does not have: it counts as 100 %",
    )


def test_the_policy_simulates_itself() -> None:
    policy = compile_policy("place otherwise in dram")
    trace = one_of_each([[0], [0]], records=1)
    found = policy.simulate(trace, capacities={Tier.DRAM: MIB}, belady=False)
    assert isinstance(found, Simulation)
    assert (found.hits, found.belady_hit_share) == ({Tier.DRAM: 1}, None)
