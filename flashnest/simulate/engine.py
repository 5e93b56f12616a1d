"""A policy on a trace: tiers as budgets, router and sweep as kernels over record numbers. No store, no model.

What is as in a run: placement (the compiled policy's own tables, one vectorised call), chains that go on where a tier
is full, admission, eviction, `keep`, rules with watermarks, rates, cooldown, residency and the ping-pong breaker, the
pace and the slices of the sweep, cold answers one step later, write batches. What is simpler: sketches, ghosts and
recent moves are exact; a question has one hit (a real lookup also touches a shorter match in a table); the filter's
false positives cost reads and keep nothing out; `accept` is 100 %, `refs` of chunks 0; no read misses its deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from flashnest.errors import ConfigError
from flashnest.policy import Policy
from flashnest.policy.evaluate import matches
from flashnest.policy.platform_facts import PlatformFacts
from flashnest.record import FactArrays, I64Array, Tier
from flashnest.simulate import program as rule_at
from flashnest.simulate import state as at
from flashnest.simulate.belady import most_answered
from flashnest.simulate.desk import make_desk
from flashnest.simulate.findings import Figures, judge, warnings_of
from flashnest.simulate.kernels_steps import run_steps
from flashnest.simulate.latency import lookup_seconds
from flashnest.simulate.program import make_rules, open_rules
from flashnest.simulate.result import Quantiles, Series, Simulation
from flashnest.simulate.room import ENGINES, rooms_of
from flashnest.simulate.state import EVICTIONS, State, make_state
from flashnest.simulate.trace import INSERT, Trace
from flashnest.simulate.wear import life_years, lmdb_bytes, slots_bytes

SERIES_POINTS: Final = 200
_T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True, slots=True)
class TierOptions:
    """What a tiering file says beside the rules and capacities.

    `eviction` of the dram tier, None: what a rule on it is `using`, else s3fifo; `engine` and `blocking` reads of the
    nvme tier, its write batches of `flush_records` or after `flush_interval_s` (a policy's `flush` comes first);
    `base_step_s`: what a step takes beside its lookups, None where it is not known.
    """

    eviction: str | None = None
    engine: str = "lmdb"
    blocking: bool = False
    flush_records: int = 4096
    flush_interval_s: float = 5.0
    base_step_s: float | None = None

    def check(self) -> None:
        """Raise ConfigError for an eviction or engine that does not exist."""
        for what, name, known in (("eviction", self.eviction, EVICTIONS), ("engine", self.engine, ENGINES)):
            if name is not None and name not in known:
                raise ConfigError(f"there is no {what} {name!r}", fix=f"name one of {', '.join(known)}")


_DEFAULTS = TierOptions()


def simulate(
    policy: Policy,
    trace: Trace,
    *,
    capacities: Mapping[Tier, int],
    platform: PlatformFacts | None = None,
    belady: bool = True,
    progress: Callable[[float], None] | None = None,
    options: TierOptions = _DEFAULTS,
) -> Simulation:
    """Play a trace through a policy whose tiers have `capacities` bytes; tiers without one are closed.

    `progress` is called with the share done, 0..1, about 200 times, always between steps: it may raise to stop.
    Deterministic: the same input gives the same result. Raises ConfigError for options that do not exist or where no
    tier is open, StoreFullError where a capacity holds no record.
    """
    options.check()
    if not capacities:
        raise ConfigError("no tier has a capacity", fix="give at least one, such as dram=1GiB")
    return _Run(policy, trace, capacities, platform, options).result(belady, progress or (lambda share: None))


class _Run:
    """One simulation: its state, and what it counts for each step."""

    def __init__(
        self,
        policy: Policy,
        trace: Trace,
        capacities: Mapping[Tier, int],
        platform: PlatformFacts | None,
        options: TierOptions,
    ) -> None:
        self._policy, self._trace, self._platform, self._options = policy, trace, platform, options
        self._capacities = {tier: capacities[tier] for tier in sorted(capacities)}
        self._eviction = options.eviction or _named_eviction(policy)
        self._record_bytes = int(trace.nbytes.max()) if trace.records else 72
        self._rooms = rooms_of(
            self._capacities, record_bytes=self._record_bytes, eviction=self._eviction, engine=options.engine
        )
        self._moves = open_rules(policy, self._rooms)
        mean_bytes = float(trace.nbytes.mean()) if trace.records else 72.0
        self._rules = make_rules(self._moves, policy.moves.windows_s, mean_bytes)
        self._starts = np.searchsorted(trace.step, np.arange(trace.steps + 1)).astype(np.int64)
        self._time_ms = trace.step_time_ms - (trace.step_time_ms[0] if trace.steps else 0)
        self._state = self._make_state()
        self._desk = make_desk(self._state, self._rules)
        self._reads, self._keys, self._answers = (np.zeros(trace.steps, np.int32) for _ in range(3))
        self._hits_by_rule = np.zeros(len(policy.rules), np.int64)
        self._hits_by_tokens = np.zeros((len(Tier), 256), np.int64)

    def _make_state(self) -> State:
        policy, options = self._policy, self._options
        most = int(np.diff(self._starts).max()) if self._trace.steps else 0
        state = make_state(
            policy, self._trace, self._rooms, eviction=self._eviction, engine=options.engine, pending=most
        )
        acting = [rule for rule in self._moves if rule.action != "keep"]
        for rule in self._moves:
            state.tiers[rule.source, at.KEEPS if rule.action == "keep" and rule.acts else at.RULED] = 1
        state.counts[at.STAYS] = any(Tier.NVME in (rule.source, rule.target) and rule.acts for rule in acting)
        state.counts[at.PROMOTES] = any(rule.source is Tier.NVME and rule.action == "promote" for rule in acting)
        state.counts[at.BLOCKING] = options.blocking
        state.counts[at.FLUSH_RECORDS] = options.flush_records
        interval_s = options.flush_interval_s if policy.flush is None else policy.flush.every_s
        state.counts[at.FLUSH_MS] = int(1000 * interval_s)
        return state

    def result(self, belady: bool, progress: Callable[[float], None]) -> Simulation:
        """Run every step and say what was found."""
        self._run_steps(0, 0)  # kernels are compiled or loaded now, not in the figure
        started = time.perf_counter()
        series = self._play(progress)
        seconds = time.perf_counter() - started
        optimum = self._optimum() if belady else None
        progress(1.0)
        return self._summary(series, optimum, len(self._trace) / seconds if seconds else 0.0)

    def _play(self, progress: Callable[[float], None]) -> Series:
        steps = self._trace.steps
        ends = np.unique(np.linspace(0, steps, min(steps, SERIES_POINTS) + 1).astype(np.int64))[1:]
        first, before, shares = 0, (0, 0), []
        held: list[I64Array] = []
        for end in ends.tolist():
            progress(first / max(1, steps))
            self._run_steps(first, end)
            counts = self._state.counts
            now = (int(counts[at.QUESTIONS]), int(counts[at.MISSES]))
            asked = now[0] - before[0]
            shares.append((asked - (now[1] - before[1])) / asked if asked else 0.0)
            held.append(self._state.tiers[:, at.COUNT].copy())
            first, before = end, now
        return Series(
            step=ends - 1,
            hit_share=np.array(shares, np.float64),
            bytes={
                tier: np.array([room.bytes_of(int(records[tier])) for records in held], np.int64)
                for tier, room in self._rooms.items()
            },
        )

    def _run_steps(self, first: int, end: int) -> None:
        trace = self._trace
        run_steps(
            self._desk,
            _read_only(trace.record),
            _read_only(trace.op),
            _read_only(trace.group),
            self._starts,
            self._time_ms,
            first,
            end,
            self._hits_by_rule,
            self._hits_by_tokens,
            self._reads,
            self._keys,
            self._answers,
        )

    def _optimum(self) -> float:
        records = sum(room.records for tier, room in self._rooms.items() if tier is not Tier.NVME)
        return most_answered(self._trace, records) / max(1, int(self._state.counts[at.QUESTIONS]))

    def _summary(self, series: Series, optimum: float | None, accesses_per_s: float) -> Simulation:
        policy, trace, counts, tiers = self._policy, self._trace, self._state.counts, self._state.tiers
        hits = {tier: int(tiers[tier, at.TIER_HITS]) for tier in self._rooms}
        peaks = {tier: room.bytes_of(int(tiers[tier, at.PEAK])) for tier, room in self._rooms.items()}
        marks = self._state.lines[:, at.MARKS]
        stored = int(np.count_nonzero(marks & at.STORED))
        asked = int(np.count_nonzero((marks & at.STORED != 0) & (marks & at.ASKED != 0)))
        figures = self._figures(hits, stored, asked)
        told, broken, untold = judge(policy, figures, duration_s=trace.duration_s)
        return Simulation(
            policy=policy.source,
            trace=trace.name,
            platform=None if self._platform is None else self._platform.name,
            questions=int(counts[at.QUESTIONS]),
            misses=int(counts[at.MISSES]),
            hits=hits,
            hits_by_rule={rule.number: int(self._hits_by_rule[i]) for i, rule in enumerate(policy.rules)},
            rules=_numbered(policy),
            would_have=self._would_have(),
            capacities=self._capacities,
            peak_bytes=peaks,
            end_bytes={tier: room.bytes_of(int(tiers[tier, at.COUNT])) for tier, room in self._rooms.items()},
            end_records={tier: int(tiers[tier, at.COUNT]) for tier in self._rooms},
            series=series,
            cold_reads_per_step=figures.cold_reads,
            cold_reads=int(self._reads.sum()),
            false_reads=int(counts[at.FALSE_READS]),
            step_ms=_scaled(figures.step_s, 1e3),
            lookup_us=_scaled(figures.lookup_s, 1e6),
            nvme_written_bytes=self._written_bytes(),
            nvme_changes=int(counts[at.NVME_INSERTS] + counts[at.NVME_REMOVES]),
            nvme_bytes_per_s=figures.nvme_bytes_per_s,
            drive_life_years=figures.drive_life_years,
            moved_by_rule=dict(figures.moved),
            refused_by_rule=dict(figures.refused),
            suspensions=dict(figures.suspensions),
            ping_pongs=int(self._rules.counts[:, rule_at.PING_PONGS].sum()),
            rejected=int(counts[at.REJECTED]),
            not_admitted=int(counts[at.NOT_ADMITTED]),
            pushed_out=int(counts[at.PUSHED_OUT]),
            stored_records=stored,
            one_hit_wonders=figures.one_hit_wonders,
            hits_per_stored_byte=sum(hits.values()) / max(1, sum(peaks.values())),
            belady_hit_share=optimum,
            accesses=len(trace),
            accesses_per_s=accesses_per_s,
            requirements=told,
            broken=broken,
            warnings=(*self._warnings(figures), *untold),
        )

    def _warnings(self, figures: Figures) -> tuple[str, ...]:
        return warnings_of(
            self._policy,
            self._trace,
            figures,
            moves=self._moves,
            capacities=self._capacities,
            platform=self._platform,
            eviction=self._eviction,
            base_step_s=self._options.base_step_s,
        )

    def _figures(self, hits: Mapping[Tier, int], stored: int, asked: int) -> Figures:
        counts, platform, options = self._state.counts, self._platform, self._options
        lookup = step = None
        if platform is not None:
            seconds = lookup_seconds(self._keys, self._answers, self._reads, platform, blocking=options.blocking)
            lookup, step = Quantiles.of(seconds), Quantiles.of(seconds + (options.base_step_s or 0.0))
        duration_s = self._trace.duration_s
        per_s = self._written_bytes() / duration_s if duration_s else 0.0
        return Figures(
            hits=hits,
            hits_by_tokens=self._hits_by_tokens,
            lookup_s=lookup,
            step_s=step,
            has_base=options.base_step_s is not None,
            nvme_bytes_per_s=per_s,
            drive_life_years=life_years(None if platform is None else platform.nvme_endurance_bytes, per_s),
            cold_reads=Quantiles.of(self._reads),
            rejected=int(counts[at.REJECTED]),
            inserts=int(np.count_nonzero(self._trace.op == INSERT)),
            one_hit_wonders=1.0 - asked / stored if stored else 0.0,
            stored_records=stored,
            moved=self._by_rule(rule_at.MOVED),
            refused=self._by_rule(rule_at.REFUSED),
            suspensions={number: count for number, count in self._by_rule(rule_at.SUSPENSIONS).items() if count},
        )

    def _by_rule(self, column: int) -> dict[int, int]:
        return {
            rule.number: int(self._rules.counts[i, column])
            for i, rule in enumerate(self._moves)
            if rule.action != "keep" and rule.acts
        }

    def _written_bytes(self) -> int:
        """Return what the drive has written, with what still waits in the last batch."""
        if Tier.NVME not in self._rooms:
            return 0
        counts = self._state.counts
        if self._options.engine == "lmdb":
            return lmdb_bytes(counts[at.MILLILEAVES] / 1000 + at.leaves_of(self._state))
        changes = int(counts[at.NVME_INSERTS] + counts[at.NVME_REMOVES])
        return slots_bytes(changes, self._record_bytes, self._capacities[Tier.NVME])

    def _would_have(self) -> dict[int, int]:
        """Return for each trial rule how many records it would have placed or moved."""
        trials = {
            rule.number: int(self._rules.counts[i, rule_at.WOULD_HAVE])
            for i, rule in enumerate(self._moves)
            if not rule.acts
        }
        decided = self._state.lines[:, at.RULE]
        for index, rule in enumerate(self._policy.rules):
            if not rule.acts:
                taken = matches(rule.meaning, _fixed_facts(self._trace), ()) & (decided > index)
                trials[rule.number] = int(np.count_nonzero(taken))
        return dict(sorted(trials.items()))


def _numbered(policy: Policy) -> tuple[tuple[int, str], ...]:
    placed = tuple((rule.number, rule.text) for rule in policy.rules)
    return placed + tuple((rule.number, rule.text) for rule in policy.moves.rules)


def _named_eviction(policy: Policy) -> str:
    """Return the eviction that a rule on dram is using, else the default."""
    named = (rule.using for rule in policy.moves.rules if rule.source is Tier.DRAM and rule.using in EVICTIONS)
    return next((using for using in named if using is not None), "s3fifo")


def _read_only(array: npt.NDArray[_T]) -> npt.NDArray[_T]:
    """Return a view that kernels are compiled for, whatever the array is."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _scaled(quantiles: Quantiles | None, factor: float) -> Quantiles | None:
    if quantiles is None:
        return None
    return Quantiles(quantiles.p50 * factor, quantiles.p99 * factor, quantiles.most * factor)


def _fixed_facts(trace: Trace) -> FactArrays:
    """Return the facts that `place` may ask for; the others are zeros."""
    none = np.zeros(trace.records, np.uint32)
    bytes_ = np.zeros(trace.records, np.uint8)
    return FactArrays(
        tokens=trace.tokens,
        kind=trace.kind,
        namespace=trace.namespace,
        nbytes=trace.nbytes,
        hits=none,
        idle_s=none,
        age_s=none,
        refs=none,
        accept_percent=bytes_,
    )
