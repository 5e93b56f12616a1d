"""Simulated engines: the governor against every fixed draft length, on machines and texts of many kinds.

Goodput is expected tokens over true seconds of what was chosen; only the feedback is drawn at random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from flashnest.record import F64Array, I32Array
from flashnest.runtime.drafter import Drafts, Source
from flashnest.runtime.forward_cost import ForwardCost, ForwardShape
from flashnest.runtime.governor import Governor

WIDTH = 16
CONTEXT = 600
WARM_UP, STEPS = 150, 400
Seconds = Callable[[ForwardShape], float]


def _cpu_s(shape: ForwardShape) -> float:
    """SmolLM2 in bfloat16 on 2 cores: 19 / 21 / 37 / 109 ms for 1 / 8 / 32 / 128 packed tokens, and its attention."""
    linear = float(np.interp(shape.tokens, [1, 8, 32, 128, 1024], [0.015, 0.016, 0.026, 0.08, 0.6]))
    return linear + 1.5e-4 * shape.scored + 4e-7 * shape.attended_tokens


def _gpu_s(shape: ForwardShape) -> float:
    """Weights streamed once, KV once a sequence; arithmetic shows from some 200 tokens on."""
    return max(8e-3 + 1.5e-7 * shape.context_tokens, 4e-5 * shape.tokens) + 1e-4


def _steep_s(shape: ForwardShape) -> float:
    """No token is ever cheap: a machine that is compute-bound from the first."""
    return 2e-3 + 5e-3 * shape.tokens


MACHINES: dict[str, Seconds] = {"cpu": _cpu_s, "gpu": _gpu_s, "steep": _steep_s}


@dataclass(frozen=True)
class Load:
    """Rows that decode for ever; a row's every draft has `WIDTH` tokens, each accepted with the row's chance."""

    chances: F64Array
    seconds: Seconds

    @property
    def rows(self) -> int:
        return len(self.chances)

    def shape(self, lengths: I32Array) -> ForwardShape:
        tokens = self.rows + int(lengths.sum())
        return ForwardShape(tokens, tokens, self.rows * CONTEXT, tokens * CONTEXT)

    def tokens(self, lengths: I32Array) -> float:
        """Expected tokens that a step commits."""
        places = np.arange(1, WIDTH + 1)
        gains = self.chances[:, None] ** places
        return self.rows + float(gains[places <= lengths[:, None]].sum())

    def goodput(self, lengths: I32Array) -> float:
        return self.tokens(lengths) / self.seconds(self.shape(lengths))

    def fixed(self, length: int) -> float:
        return self.goodput(np.full(self.rows, length, np.int32))

    def drafts(self) -> Drafts:
        """Good rows draft from the table with long matches, poor ones from their own text with short ones."""
        drafts = Drafts.allocate(self.rows, WIDTH)
        drafts.lengths[:] = WIDTH
        good = self.chances >= 0.5
        drafts.sources[:] = np.where(good, Source.DRAM, Source.OWN)
        drafts.matched[:] = np.where(good, 16, 4)
        return drafts

    def governed(self, governor: Governor, seed: int) -> float:
        """Run the governor and return its goodput after the warm-up."""
        rng = np.random.default_rng(seed)
        drafts, caps, base = self.drafts(), np.full(self.rows, 100, np.int32), self.shape(np.zeros(1, np.int32))
        tokens = seconds = 0.0
        for step in range(WARM_UP + STEPS):
            lengths = governor.choose(drafts, caps, base)
            if step >= WARM_UP:
                tokens += self.tokens(lengths)
                seconds += self.seconds(self.shape(lengths))
            governor.record_forward(
                self.shape(lengths), self.seconds(self.shape(lengths)) * float(rng.lognormal(0, 0.05))
            )
            at = np.flatnonzero(lengths)
            if len(at):
                wrong = rng.random((len(at), WIDTH)) >= self.chances[at, None]
                agreed = np.minimum(np.where(wrong.any(axis=1), wrong.argmax(axis=1), WIDTH), lengths[at])
                tried = np.minimum(agreed + 1, lengths[at])
                kinds = drafts.sources[at].astype(np.int32), drafts.matched[at]
                governor.record_drafts(*kinds, tried.astype(np.int32), agreed.astype(np.int32))
        return tokens / seconds


def _profile(seconds: Seconds) -> ForwardCost:
    shapes = [
        ForwardShape(rows * (1 + drafted), rows * (1 + drafted), rows * context, rows * (1 + drafted) * context)
        for rows in (1, 4, 16, 64, 128)
        for drafted in (0, 1, 4, 12)
        for context in (100, 800)
    ]
    return ForwardCost([(shape, seconds(shape)) for shape in shapes])


@pytest.mark.parametrize("rows", [1, 8, 32, 128])
@pytest.mark.parametrize(("machine", "of_best"), [("cpu", 0.97), ("steep", 0.97), ("gpu", 0.9)])
def test_no_fixed_length_is_better_and_none_least_of_all(machine: str, of_best: float, rows: int) -> None:
    """The GPU's time is the larger of two, which a sum follows only in the end: 0.9 of the best in the first steps."""
    seconds = MACHINES[machine]
    for seed, chance in enumerate((0.0, 0.3, 0.5, 0.7, 0.9, 1.0)):
        load = Load(np.full(rows, chance), seconds)
        reached = load.governed(Governor(max_draft_tokens=WIDTH, cost=_profile(seconds)), seed)
        assert reached >= 0.98 * load.fixed(0), chance
        assert reached >= of_best * max(load.fixed(length) for length in range(WIDTH + 1)), chance


@pytest.mark.parametrize("rows", [1, 8, 32, 128])
def test_without_a_profile_the_first_steps_teach_the_cost(rows: int) -> None:
    for seed, chance in enumerate((0.0, 0.3, 0.7, 1.0)):
        load = Load(np.full(rows, chance), _cpu_s)
        reached = load.governed(Governor(max_draft_tokens=WIDTH), seed)
        assert reached >= 0.96 * max(load.fixed(length) for length in range(WIDTH + 1)), chance


@pytest.mark.parametrize("machine", ["cpu", "steep"])
def test_good_and_poor_rows_get_lengths_of_their_own(machine: str) -> None:
    """Where half the rows repeat and half do not, each kind has its length: better than any for both."""
    seconds = MACHINES[machine]
    load = Load(np.tile([0.9, 0.2], 16), seconds)
    reached = load.governed(Governor(max_draft_tokens=WIDTH, cost=_profile(seconds)), 1)
    pairs = [np.tile([good, poor], 16).astype(np.int32) for good in range(WIDTH + 1) for poor in range(WIDTH + 1)]
    assert reached >= 0.97 * max(load.goodput(lengths) for lengths in pairs)


@pytest.mark.parametrize("rows", [1, 32])
def test_a_change_of_text_is_seen_both_ways(rows: int) -> None:
    """Drafts were always wrong, then right, then wrong again: each time the lengths follow within the warm-up."""
    governor = Governor(max_draft_tokens=WIDTH, cost=_profile(_cpu_s))
    for seed, chance in enumerate((0.0, 0.95, 0.0)):
        load = Load(np.full(rows, chance), _cpu_s)
        for _ in range(2):
            reached = load.governed(governor, seed)
        assert reached >= 0.95 * max(load.fixed(length) for length in range(WIDTH + 1)), chance


def test_samples_cost_less_than_a_hundredth() -> None:
    for rows in (1, 8, 128):
        load = Load(np.zeros(rows), _steep_s)
        governor = Governor(max_draft_tokens=WIDTH, cost=_profile(_steep_s))
        assert load.governed(governor, 1) >= 0.99 * load.fixed(0)
