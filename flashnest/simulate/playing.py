"""Plays a trace through a policy's tiers: sets up the state, runs the kernels over the steps. Judges nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from flashnest.policy import Policy
from flashnest.policy.platform_facts import PlatformFacts
from flashnest.record import KEY_BYTES, I64Array, Tier
from flashnest.simulate import state as at
from flashnest.simulate.desk import make_desk
from flashnest.simulate.kernels_steps import run_steps
from flashnest.simulate.program import make_rules, open_rules
from flashnest.simulate.result import Series
from flashnest.simulate.room import rooms_of
from flashnest.simulate.state import State, make_state
from flashnest.simulate.tier_options import TierOptions, named_eviction
from flashnest.simulate.trace import Trace
from flashnest.storage.table import records_within

SERIES_POINTS: Final = 200
_BUFFER_BYTES: Final = 4 << 20
"""One of the two halves of `storage.cold_options`' buffer."""
_NO_SERIES: Final = Series(np.zeros(0, np.int64), np.zeros(0), {})
_T = TypeVar("_T", bound=np.generic)


class Play:
    """A policy on a trace: what was set up, and what is counted. One thread plays it, once.

    reads, keys, answers int32 (steps,): cold reads, keys looked up, questions answered of each step; hits_by_rule int64
    (place rules,); hits_by_tokens int64 (3, 256): hits by tier and length.
    """

    def __init__(
        self,
        policy: Policy,
        trace: Trace,
        capacities: Mapping[Tier, int],
        platform: PlatformFacts | None,
        options: TierOptions,
    ) -> None:
        self.policy, self.trace, self.platform, self.options = policy, trace, platform, options
        self.capacities = {tier: capacities[tier] for tier in sorted(capacities)}
        self.eviction = options.eviction or named_eviction(policy)
        self.record_bytes = int(trace.nbytes.max()) if trace.records else 72
        self.rooms = rooms_of(
            self.capacities, record_bytes=self.record_bytes, eviction=self.eviction, engine=options.engine
        )
        self.moves = open_rules(policy, self.rooms)
        mean_bytes = float(trace.nbytes.mean()) if trace.records else 72.0
        self.rules = make_rules(self.moves, policy.moves.windows_s, mean_bytes)
        self._starts = np.searchsorted(trace.step, np.arange(trace.steps + 1)).astype(np.int64)
        self._time_ms = trace.step_time_ms - (trace.step_time_ms[0] if trace.steps else 0)
        self.state = self._make_state()
        self._desk = make_desk(self.state, self.rules)
        self.reads, self.keys, self.answers = (np.zeros(trace.steps, np.int32) for _ in range(3))
        self.hits_by_rule = np.zeros(len(policy.rules), np.int64)
        self.hits_by_tokens = np.zeros((len(Tier), 256), np.int64)
        self.series, self.seconds = _NO_SERIES, 0.0

    def _make_state(self) -> State:
        policy, options = self.policy, self.options
        most = int(np.diff(self._starts).max()) if self.trace.steps else 0
        state = make_state(policy, self.trace, self.rooms, eviction=self.eviction, engine=options.engine, pending=most)
        acting = [rule for rule in self.moves if rule.action != "keep"]
        for rule in self.moves:
            state.tiers[rule.source, at.KEEPS if rule.action == "keep" and rule.acts else at.RULED] = 1
        state.counts[at.STAYS] = any(Tier.NVME in (rule.source, rule.target) and rule.acts for rule in acting)
        state.counts[at.PROMOTES] = any(rule.source is Tier.NVME and rule.action == "promote" for rule in acting)
        state.counts[at.BLOCKING] = options.blocking
        flush = policy.flush
        state.counts[at.FLUSH_RECORDS] = options.flush_records if flush is None else self._buffer_records()
        state.counts[at.FLUSH_MS] = int(1000 * (options.flush_interval_s if flush is None else flush.every_s))
        return state

    def _buffer_records(self) -> int:
        """Return what fits in a run's write buffer: with `flush` a batch is written when that is full, or in time."""
        words = max(1, -(-(self.record_bytes - KEY_BYTES) // 4))
        return records_within(_BUFFER_BYTES, words=words, eviction="lru")[0]

    def play(self, progress: Callable[[float], None]) -> None:
        """Play every step; sets `series` and `seconds`."""
        self._run_steps(0, 0)  # kernels are compiled or loaded now, not in the figure
        started = time.perf_counter()
        self.series = self._play(progress)
        self.seconds = time.perf_counter() - started

    @property
    def table_records(self) -> int:
        """Records that VRAM and DRAM hold together."""
        return sum(room.records for tier, room in self.rooms.items() if tier is not Tier.NVME)

    def _play(self, progress: Callable[[float], None]) -> Series:
        steps = self.trace.steps
        ends = np.unique(np.linspace(0, steps, min(steps, SERIES_POINTS) + 1).astype(np.int64))[1:]
        first, before, shares = 0, (0, 0), []
        held: list[I64Array] = []
        for end in ends.tolist():
            progress(first / max(1, steps))
            self._run_steps(first, end)
            counts = self.state.counts
            now = (int(counts[at.QUESTIONS]), int(counts[at.MISSES]))
            asked = now[0] - before[0]
            shares.append((asked - (now[1] - before[1])) / asked if asked else 0.0)
            held.append(self.state.tiers[:, at.COUNT].copy())
            first, before = end, now
        return Series(
            step=ends - 1,
            hit_share=np.array(shares, np.float64),
            bytes={
                tier: np.array([room.bytes_of(int(records[tier])) for records in held], np.int64)
                for tier, room in self.rooms.items()
            },
        )

    def _run_steps(self, first: int, end: int) -> None:
        trace = self.trace
        run_steps(
            self._desk,
            _read_only(trace.record),
            _read_only(trace.op),
            _read_only(trace.group),
            self._starts,
            self._time_ms,
            first,
            end,
            self.hits_by_rule,
            self.hits_by_tokens,
            self.reads,
            self.keys,
            self.answers,
        )


def _read_only(array: npt.NDArray[_T]) -> npt.NDArray[_T]:
    """Return a view that kernels are compiled for, whatever the array is."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
