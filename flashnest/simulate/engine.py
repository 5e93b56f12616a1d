"""A policy on a trace: tiers as budgets, router and sweep as kernels over record numbers. No store, no model.

What is as in a run: placement (the compiled policy's own tables, one vectorised call), chains that go on where a tier
is full, admission, eviction, `keep`, rules with watermarks, rates, cooldown, residency and the ping-pong breaker, the
pace and the slices of the sweep, cold answers one step later, write batches. What is simpler: sketches, ghosts and
recent moves are exact; a question has one hit (a real lookup also touches a shorter match in a table); the filter's
false positives cost reads and keep nothing out; `accept` is 100 %, `refs` of chunks 0; no read misses its deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flashnest.errors import ConfigError
from flashnest.policy import Policy
from flashnest.policy.platform_facts import PlatformFacts
from flashnest.record import Tier
from flashnest.simulate.belady import most_answered
from flashnest.simulate.playing import Play
from flashnest.simulate.result import Simulation
from flashnest.simulate.summary import summarise
from flashnest.simulate.tier_options import TierOptions
from flashnest.simulate.trace import Trace

__all__ = ["TierOptions", "simulate"]

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
    tell = progress or (lambda share: None)
    play = Play(policy, trace, capacities, platform, options)
    play.play(tell)
    optimum = most_answered(trace, play.table_records) / max(1, trace.questions) if belady else None
    tell(1.0)
    return summarise(play, optimum)
