"""The search for a policy's best params on a trace: the Pareto front of DRAM bytes, hits, hits from DRAM, and P99.

Small spaces are tried whole. Larger ones are searched by optuna's tree-structured Parzen estimator (Ozaki et al. 2022,
"Multiobjective Tree-Structured Parzen Estimator", JAIR 73): a trial costs a simulation, and up to some hundred trials
it needs fewer of them than an evolutionary search. optuna is an extra, imported on use. Prints and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from flashnest.errors import ConfigError, PolicyError
from flashnest.policy.compile import Policy
from flashnest.policy.diagnostics import PolicyCheckError
from flashnest.record import F64Array, Tier
from flashnest.simulate.knobs import Knob, combinations, knobs
from flashnest.simulate.pareto import dominates, front
from flashnest.simulate.trace import Trace

if TYPE_CHECKING:
    from flashnest.simulate.result import Simulation

DEFAULT_TRIALS: Final = 200
DEFAULT_SEED: Final = 7
TOLERANCE: Final = 0.01
"""`Tuning.chosen` gives up this share of the most answers from fast memory for less DRAM."""

_STARTUP_TRIALS: Final = 20
"""Trials at random before the estimator: two for each of up to ten knobs."""
_ASKED_FOR_EACH: Final = 10
"""Settings asked of the optimiser for each to be simulated: those that do not check, or come again, cost nothing."""

_Rungs = tuple[int, ...]
"""One setting: an index into each knob's values."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a setting achieves. `fast_bytes`: most bytes held in DRAM and VRAM; `hit_share`: questions answered;
    `fast_share`: questions answered from DRAM or VRAM, so without a step's delay; `p99_us`: predicted P99 of a
    step's lookups, None without a platform."""

    fast_bytes: int
    hit_share: float
    fast_share: float
    p99_us: float | None

    @classmethod
    def of(cls, simulation: Simulation) -> Score:
        """Return the score of a simulation."""
        fast = [tier for tier in simulation.hits if tier is not Tier.NVME]
        questions = max(simulation.questions, 1)
        return cls(
            fast_bytes=sum(simulation.peak_bytes.get(tier, 0) for tier in (Tier.VRAM, Tier.DRAM)),
            hit_share=sum(simulation.hits.values()) / questions,
            fast_share=sum(simulation.hits[tier] for tier in fast) / questions,
            p99_us=None if simulation.lookup_us is None else simulation.lookup_us.p99,
        )

    def costs(self) -> list[float]:
        """Return what has to be small, to three figures: settings that print alike are alike, not a front of noise."""
        timed = [] if self.p99_us is None else [_three_figures(self.p99_us)]
        return [_three_figures(self.fast_bytes), -round(self.hit_share, 3), -round(self.fast_share, 3), *timed]


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting that compiles, and its score."""

    params: Mapping[str, str]
    score: Score


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a search found. `start` is the policy as it came; `front` holds the trials that none beats, fewest bytes
    first; `tried` were simulated, `refused` do not check, such as `until` above `when`."""

    knobs: tuple[Knob, ...]
    start: Trial
    front: tuple[Trial, ...]
    tried: int
    refused: int
    space: int
    exhaustive: bool
    interrupted: bool = False

    @property
    def chosen(self) -> Trial:
        """The trial with the fewest bytes among those within 1 % of the most answers from DRAM and VRAM."""
        most = max(trial.score.fast_share for trial in self.front)
        near = [trial for trial in self.front if trial.score.fast_share >= (1 - TOLERANCE) * most]
        return min(near, key=lambda trial: (trial.score.fast_bytes, -trial.score.fast_share, -trial.score.hit_share))

    def beats_start(self, trial: Trial) -> bool:
        """Return whether a trial is nowhere worse than the policy as it came, and somewhere better."""
        return dominates(np.array(trial.score.costs()), np.array(self.start.score.costs()))


def _three_figures(value: float) -> float:
    return float(f"{value:.2e}")


class Evaluate(Protocol):
    """Compiles the policy with other params and simulates it. Raises PolicyCheckError where they do not check."""

    def __call__(self, params: Mapping[str, str]) -> Simulation:
        """Return the simulation of the policy with `params` set."""
        ...


@dataclass(slots=True)
class _Search:
    """Settings tried so far. Asking for one again costs nothing."""

    knobs: tuple[Knob, ...]
    evaluate: Evaluate
    scores: dict[_Rungs, Score | None] = field(default_factory=dict)

    def score(self, rungs: _Rungs) -> Score | None:
        """Return the score of a setting, None where the policy does not check with it."""
        if rungs not in self.scores:
            try:
                self.scores[rungs] = Score.of(self.evaluate(self.params(rungs)))
            except PolicyCheckError:
                self.scores[rungs] = None
        return self.scores[rungs]

    def costs(self, rungs: _Rungs) -> list[float]:
        """Return the costs of a setting; of one that does not check the largest there were, to be kept away from."""
        score = self.scores[rungs]
        known = [one.costs() for one in self.scores.values() if one is not None]
        return [max(column) for column in zip(*known, strict=True)] if score is None else score.costs()

    def params(self, rungs: _Rungs) -> dict[str, str]:
        return {knob.name: knob.values[rung] for knob, rung in zip(self.knobs, rungs, strict=True)}

    @property
    def simulated(self) -> int:
        return sum(score is not None for score in self.scores.values())

    def trials(self) -> list[Trial]:
        """Return what checked, in the order tried."""
        return [Trial(self.params(rungs), score) for rungs, score in self.scores.items() if score is not None]


def tune(
    policy: Policy,
    trace: Trace,
    evaluate: Evaluate,
    *,
    trials: int = DEFAULT_TRIALS,
    seed: int = DEFAULT_SEED,
    progress: Callable[[int, int], None] | None = None,
) -> Tuning:
    """Search the params of a policy for the front on a trace, with at most `trials` simulations.

    `progress` is told (simulations done, most there will be) after each setting. A KeyboardInterrupt after the first
    trial ends the search with what was found. The same seed gives the same search. Raises PolicyError where the policy
    has nothing to tune, ConfigError where optuna is needed and missing.
    """
    found = knobs(policy, trace)
    if not found:
        raise _nothing_to_tune(policy)
    space = combinations(found)
    search = _Search(found, evaluate)
    start = tuple(knob.start for knob in found)
    exhaustive = space <= trials
    settings = _all_settings(found, start) if exhaustive else _suggested(search, start, trials, seed)
    interrupted = _run(search, settings, min(space, trials), progress)
    return _tuning(search, start, space, exhaustive=exhaustive and not interrupted, interrupted=interrupted)


def _run(search: _Search, settings: Iterator[_Rungs], total: int, progress: Callable[[int, int], None] | None) -> bool:
    """Try settings until `total` have been simulated; return whether that was cut short."""
    try:
        for rungs in settings:
            search.score(rungs)
            if progress is not None:
                progress(search.simulated, total)
            if search.simulated >= total:
                break
    except KeyboardInterrupt:
        if not search.trials():
            raise
        return True
    return False


def _all_settings(found: tuple[Knob, ...], start: _Rungs) -> Iterator[_Rungs]:
    yield start
    yield from (rungs for rungs in product(*(range(len(knob.values)) for knob in found)) if rungs != start)


def _suggested(search: _Search, start: _Rungs, trials: int, seed: int) -> Iterator[_Rungs]:
    """Yield what the optimiser wants tried, the policy as it came first. The caller scores each before the next."""
    optuna = _optuna()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(n_startup_trials=_STARTUP_TRIALS, seed=seed)
    probe = search.score(start)
    assert probe is not None, "the policy as it came compiles"
    study = optuna.create_study(directions=["minimize"] * len(probe.costs()), sampler=sampler)
    study.enqueue_trial({knob.name: rung for knob, rung in zip(search.knobs, start, strict=True)})
    rng = np.random.default_rng(seed)
    for _ in range(_ASKED_FOR_EACH * trials):
        trial = study.ask()
        rungs = tuple(trial.suggest_int(knob.name, 0, len(knob.values) - 1) for knob in search.knobs)
        if rungs in search.scores:  # the estimator repeats itself on ladders: look elsewhere next
            study.enqueue_trial({knob.name: int(rng.integers(len(knob.values))) for knob in search.knobs})
        yield rungs
        study.tell(trial, search.costs(rungs))


def _tuning(search: _Search, start: _Rungs, space: int, *, exhaustive: bool, interrupted: bool) -> Tuning:
    trials = search.trials()
    costs: F64Array = np.array([trial.score.costs() for trial in trials], np.float64)
    best = [trial for trial, kept in zip(trials, front(costs), strict=True) if kept]
    score = search.scores[start]
    assert score is not None, "the policy as it came compiles"
    return Tuning(
        knobs=search.knobs,
        start=Trial(search.params(start), score),
        front=tuple(sorted(best, key=lambda trial: (trial.score.fast_bytes, -trial.score.fast_share))),
        tried=len(trials),
        refused=len(search.scores) - len(trials),
        space=space,
        exhaustive=exhaustive,
        interrupted=interrupted,
    )


def _nothing_to_tune(policy: Policy) -> PolicyError:
    return PolicyError(
        f"{policy.source} has nothing to tune",
        why="none of its rules uses a `param` that is a number with more than one value worth trying on this trace",
        fix="name a number, like `param long = 32 tokens`, and use it, like `place tokens >= long in dram else nvme`",
    )


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise ConfigError(
            "optuna is not installed",
            why="spaces larger than --trials are searched by it; it is an extra, so that nobody else has to have it",
            fix="pip install 'flashnest[tune]', or raise --trials above the number of settings",
        ) from error
    return optuna
