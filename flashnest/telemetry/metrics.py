"""What a run measured: requests, steps, drafts and table lookups, summed up in the terms of `vllm bench serve`.

    TTFT   first token committed - arrival
    TPOT   (E2EL - TTFT) / (output tokens - 1), one value a request; needs two tokens
    ITL    gaps between a request's commits: tokens of one draft arrive together, so accepted drafts lengthen ITL and
           shorten TPOT, as chunks do in vLLM
    E2EL   last token committed - arrival

Warm-up is what happened before `start`: requests that arrived before it are counted apart, whenever they end; steps and
lookups recorded before it are forgotten. Cancelled requests give no latencies, but their tokens were committed and
count for throughput. All times are seconds of one clock that the caller reads; nothing here reads a clock. Not
thread-safe.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Final

import numpy as np

CANCELLED: Final = "cancelled"
"""The finish reason of a request that was cut short."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles of one measure, linearly interpolated as numpy does."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, samples: Sequence[float] | array[float]) -> Distribution | None:
        """Return the figures of `samples`; None where there is none."""
        if not len(samples):
            return None
        values = np.asarray(samples, np.float64)
        p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
        return cls(float(values.mean()), p50, p90, p99)


@dataclass(frozen=True, slots=True)
class Step:
    """One engine step. `running` counts the sequences in the pass, `decoding` those that were given new tokens.

    drafts: sequences whose draft was verified; drafted, accepted: their tokens; committed: output tokens kept;
    sweep_s: the step's time for moving records between tiers.
    """

    duration_s: float
    forward_s: float
    running: int
    decoding: int
    forward_tokens: int
    committed: int
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    sweep_s: float = 0.0


@dataclass(slots=True)
class DraftCounts:
    """Drafts of one source: how many were verified, their tokens, and how many of those were accepted."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class LookupFigures:
    """Table lookups. Times are ns a key: a batch's time over its keys. Mean over keys, percentiles over batches."""

    queries: int
    hits: int
    keys: int
    mean_ns: float | None
    p50_ns: float | None
    p99_ns: float | None

    @property
    def hit_ratio(self) -> float | None:
        """The share of the queries that found a record; None without queries."""
        return self.hits / self.queries if self.queries else None


@dataclass(slots=True)
class _Latencies:
    """Samples in seconds, one array a measure: 8 bytes a sample, no Python object each."""

    ttft_s: array[float]
    tpot_s: array[float]
    itl_s: array[float]
    e2el_s: array[float]


class RunMetrics:
    """Takes what the engine reports and sums it up. One thread feeds and reads it."""

    def __init__(self) -> None:
        self.started_s: float | None = None
        self.stopped_s: float | None = None
        self.warmup_requests = 0
        self._reset()

    def _reset(self) -> None:
        self._latencies = _Latencies(array("d"), array("d"), array("d"), array("d"))
        self._step_s = array("d")
        self._lookup_ns, self._lookup_step_s = array("d"), array("d")
        self.tier_hits: tuple[int, ...] = ()
        self.finishes: Counter[str] = Counter()
        self.prompt_tokens = 0
        self.reused_tokens = 0
        self.steps = self.forward_tokens = self.committed = self.decoding = 0
        self.forward_s = self._running_s = self.sweep_s = self.sweep_max_s = 0.0
        self.drafts = DraftCounts()
        self.drafts_by_source: dict[str, DraftCounts] = {}
        self.no_draft: Counter[str] = Counter()
        """Sequences that got new tokens without a draft, by reason, such as "no_match" or "not_worth"."""
        self._lookup_s = 0.0
        self._keys = self._queries = self._hits = 0

    def start(self, now_s: float) -> None:
        """Begin to measure: all before this is warm-up."""
        done = self.finishes.total()
        self._reset()
        self.warmup_requests += done
        self.started_s = now_s
        self.stopped_s = None

    def stop(self, now_s: float) -> None:
        """End the measured span. What is recorded afterwards still counts, so stop last."""
        self.stopped_s = now_s

    def duration_s(self, now_s: float | None = None) -> float:
        """Return the measured span, up to `now_s` while it runs; 0 before `start`."""
        end = self.stopped_s if self.stopped_s is not None else now_s
        return 0.0 if self.started_s is None or end is None else end - self.started_s

    def request(
        self,
        *,
        arrived_s: float,
        token_times_s: Sequence[float],
        prompt_tokens: int,
        reused_tokens: int,
        finish: str,
    ) -> None:
        """Take a request that ended. `token_times_s`: when each output token was committed, ascending.

        `arrived_s` is when it was meant to arrive, so that waiting counts. `finish` is the reason it ended.
        """
        if self.started_s is not None and arrived_s < self.started_s:
            self.warmup_requests += 1
            return
        self.finishes[finish] += 1
        self.prompt_tokens += prompt_tokens
        self.reused_tokens += reused_tokens
        if token_times_s and finish != CANCELLED:
            self._latency(arrived_s, token_times_s)

    def _latency(self, arrived_s: float, times_s: Sequence[float]) -> None:
        latencies = self._latencies
        first_s, last_s = times_s[0], times_s[-1]
        latencies.ttft_s.append(first_s - arrived_s)
        latencies.e2el_s.append(last_s - arrived_s)
        if len(times_s) > 1:
            latencies.tpot_s.append((last_s - first_s) / (len(times_s) - 1))
        latencies.itl_s.extend(b - a for a, b in pairwise(times_s) if b > a)

    def step(self, step: Step) -> None:
        """Take one engine step."""
        self.steps += 1
        self._step_s.append(step.duration_s)
        self.forward_s += step.forward_s
        self.sweep_s += step.sweep_s
        self.sweep_max_s = max(self.sweep_max_s, step.sweep_s)
        self.forward_tokens += step.forward_tokens
        self.committed += step.committed
        self.decoding += step.decoding
        self._running_s += step.running * step.duration_s
        _add(self.drafts, step.drafts, step.drafted, step.accepted)

    def draft_source(self, source: str, drafts: int, drafted: int, accepted: int) -> None:
        """Add verified drafts to one source's counts, such as "dram", "nvme" or "own_text"."""
        _add(self.drafts_by_source.setdefault(source, DraftCounts()), drafts, drafted, accepted)

    def lookup(self, *, duration_s: float, keys: int, queries: int, hits: int, tier_hits: tuple[int, ...] = ()) -> None:
        """Take one step's table lookups: `queries` texts asked about with `keys` keys, of which `hits` found one.

        tier_hits: the hits by `Tier`. A step that asked nothing is not counted.
        """
        self.tier_hits = tuple(a + b for a, b in zip_longest(self.tier_hits, tier_hits, fillvalue=0))
        if keys == 0:
            self._queries += queries
            self._hits += hits
            return
        self._lookup_ns.append(duration_s * 1e9 / keys)
        self._lookup_step_s.append(duration_s)
        self._lookup_s += duration_s
        self._keys += keys
        self._queries += queries
        self._hits += hits

    # --- what came out ---

    @property
    def requests_done(self) -> int:
        """Measured requests that ended, cancelled ones included."""
        return self.finishes.total()

    def latencies_ms(self) -> dict[str, Distribution | None]:
        """Return ttft_ms, tpot_ms, itl_ms and e2el_ms of the requests that ran to their end."""
        samples = self._latencies
        named = {
            "ttft_ms": samples.ttft_s,
            "tpot_ms": samples.tpot_s,
            "itl_ms": samples.itl_s,
            "e2el_ms": samples.e2el_s,
        }
        return {name: Distribution.of(array("d", (1e3 * s for s in values))) for name, values in named.items()}

    def steps_ms(self) -> Distribution | None:
        """Return the distribution of step times."""
        return Distribution.of(array("d", (1e3 * s for s in self._step_s)))

    def mean_running(self) -> float | None:
        """Return the sequences in a pass, averaged over time; None before a step."""
        total_s = sum(self._step_s)
        return self._running_s / total_s if total_s else None

    def lookup_steps_s(self) -> Distribution | None:
        """Return the distribution of a step's lookups together, over the steps that asked."""
        return Distribution.of(self._lookup_step_s)

    def lookups(self) -> LookupFigures:
        """Return the figures of the table lookups."""
        if not self._keys:
            return LookupFigures(self._queries, self._hits, 0, None, None, None)
        p50, p99 = np.percentile(np.asarray(self._lookup_ns), (50, 99)).tolist()
        return LookupFigures(self._queries, self._hits, self._keys, self._lookup_s * 1e9 / self._keys, p50, p99)


def _add(counts: DraftCounts, drafts: int, drafted: int, accepted: int) -> None:
    counts.drafts += drafts
    counts.drafted += drafted
    counts.accepted += accepted
