"""The simulation against the real router, DRAM table, LMDB store and sweep on one trace: hits of each tier, moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from traces import seeded_trace

from flashnest.hashing import mix64_many
from flashnest.policy import Policy, compile_policy
from flashnest.record import CHAIN, META, NAMESPACE, I64Array, Tier, U32Array, U64Array, row_words
from flashnest.simulate import LOOKUP, TierOptions, Trace, simulate
from flashnest.storage.cold import ColdOptions, ColdTier
from flashnest.storage.lmdb import LmdbStore
from flashnest.storage.router import Router
from flashnest.storage.step_clock import StepClock
from flashnest.storage.store import Found, State
from flashnest.storage.table import DramTable

MOST = 3
"""Candidates of a question in these traces, at most."""
CAPACITIES = {Tier.DRAM: 60_000, Tier.NVME: 1 << 20}
"""1021 records and 4900."""
FLUSH_RECORDS, FLUSH_S = 256, 5.0
SLICE_NS = 40_000
"""What each look at the clock adds: a sweep of 500 us is then about as long as the simulation's."""

POLICIES = {
    "dram": "place otherwise in dram",
    "hotcold": (
        "place tokens >= 32 in dram\nplace tokens <= 8 in nvme\nplace otherwise in dram else nvme\n"
        "promote hits in 60s >= 3 from nvme to dram at most 2000 rec/s cooldown 30s\n"
        "demote not hits in 60s >= 3 from dram to nvme when fill > 90% until fill < 80% by idle desc\n"
        "evict from nvme when fill > 95% until fill < 90% using s3fifo"
    ),
    "admitted": "place tokens <= 8 on nvme after 2 hits in 10s\nplace otherwise in dram",
    "evicting": "place otherwise in dram\nevict idle > 30s from dram\nkeep hits >= 3 in dram",
}


@dataclass
class Real:
    """A router over real tiers that plays a trace in the trace's own time."""

    policy: Policy
    trace: Trace
    folder: Path
    hits: Counter[Tier] = field(default_factory=Counter)
    misses: int = 0

    def __post_init__(self) -> None:
        self.now_ns = 10**12
        clock_s = StepClock(lambda: self.now_ns // 10**9)
        dram = DramTable(CAPACITIES[Tier.DRAM], words=row_words(), clock_s=clock_s, evict=False, populate=False)
        self.cold = None
        if Tier.NVME in self.policy.tiers:
            store = LmdbStore(self.folder, CAPACITIES[Tier.NVME], words=row_words(), clock_s=clock_s)
            options = ColdOptions(flush_records=FLUSH_RECORDS, flush_interval_s=FLUSH_S, threaded=False)
            self.cold = ColdTier(
                store, words=row_words(), clock_s=clock_s, options=options, clock=lambda: self.now_ns / 1e9
            )
        self.router = Router(
            dram, self.cold, self.policy.placement, moves=self.policy.moves.acting, clock_s=clock_s, clock_ns=self._tick
        )
        self.keys: U64Array = mix64_many(np.arange(1, self.trace.records + 1, dtype=np.uint64))
        self.rows: U32Array = np.zeros((self.trace.records, row_words()), np.uint32)
        self.rows[:, META] = self.trace.kind.astype(np.uint32) | self.trace.tokens.astype(np.uint32) << 8 | 1 << 16
        self.rows[:, NAMESPACE] = self.trace.namespace
        self.rows[:, CHAIN] = np.arange(self.trace.records) + 1
        self.waiting: dict[int, Tier | None] = {}
        self.found = Found.allocate(4096, row_words())
        self.index = np.zeros(4096, np.int64)

    def _tick(self) -> int:
        self.now_ns += SLICE_NS
        return self.now_ns

    def play(self) -> None:
        trace, started = self.trace, self.now_ns
        bounds = np.searchsorted(trace.step, np.arange(trace.steps + 1))
        for step in range(trace.steps):
            self.now_ns = max(self.now_ns, started + int(trace.step_time_ms[step] - trace.step_time_ms[0]) * 10**6)
            self._drain()
            self._ask(np.arange(bounds[step], bounds[step + 1]))
            self.router.submit()
            if self.cold is not None:
                self.cold.pump()
            self.router.sweep(500e-6)
        self._drain()
        self.router.close()

    def _drain(self) -> None:
        answers = self.router.drain()
        late = {int(ticket) // MOST for ticket, hit in zip(answers.tickets, answers.hit, strict=True) if hit}
        for question, at_hand in self.waiting.items():
            tier = Tier.NVME if question in late else at_hand
            if tier is None:
                self.misses += 1
            else:
                self.hits[tier] += 1
        self.waiting = {}

    def _ask(self, at: I64Array) -> None:
        trace = self.trace
        asks = at[trace.op[at] == LOOKUP]
        questions = np.unique(trace.group[asks])
        keys = np.zeros((len(questions), MOST), np.uint64)
        for row, question in enumerate(questions):
            mine = trace.record[asks[trace.group[asks] == question]]
            keys[row, MOST - len(mine) :] = self.keys[mine[::-1]]
        self.router.longest_many(keys, questions * MOST, self.found, self.index)
        for row, question in enumerate(questions.tolist()):
            hit = self.found.state[row] == State.HIT
            self.waiting[question] = Tier(self.found.tier[row]) if hit else None
        learnt = trace.record[at[trace.op[at] != LOOKUP]]
        self.router.insert_many(self.keys[learnt], self.rows[learnt])


@pytest.mark.parametrize("name", POLICIES)
def test_hits_and_moves_are_the_routers_within_a_few_percent(name: str, tmp_path: Path) -> None:
    trace = seeded_trace(11, records=5000, steps=400, gap_ms=600, busy=120, skew=0.8)
    policy = compile_policy(POLICIES[name])
    real = Real(policy, trace, tmp_path)
    real.play()
    found = simulate(
        policy,
        trace,
        capacities={tier: CAPACITIES[tier] for tier in policy.tiers},
        options=TierOptions(eviction="s3fifo", flush_records=FLUSH_RECORDS, flush_interval_s=FLUSH_S),
    )
    assert real.misses + sum(real.hits.values()) == found.questions > 20_000
    share = {tier: real.hits[tier] / found.questions for tier in found.hits}
    for tier, hits in found.hits.items():
        assert hits / found.questions == pytest.approx(share[tier], abs=0.01), tier
    moved = {rule.number: rule.moved for rule in real.router.stats().moves}
    assert found.moved_by_rule == {number: pytest.approx(count, rel=0.25, abs=5) for number, count in moved.items()}
