"""The search for params: which values are worth trying, which settings nothing beats, and how it ends."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashnest.errors import ConfigError, PolicyError
from flashnest.policy import compile_policy
from flashnest.record import Tier
from flashnest.simulate.knobs import combinations, knobs, quantity_text
from flashnest.simulate.pareto import dominates, front
from flashnest.simulate.trace import INSERT, Trace
from flashnest.simulate.tune import tune
from flashnest.units import parse_quantity

TEXT = """
param long = 32 tokens
param often = 3
param span = 60s
param high = 90%
param low = 80%
param name = "acme"
place tokens >= long in dram else nvme
place namespace = name in dram
place otherwise in nvme
class popular = hits in span >= often
promote popular from nvme to dram at most 2000 rec/s cooldown 30s
demote not popular from dram to nvme when fill > high until fill < low by idle desc
"""


def a_trace(lengths=(8, 16, 32), seconds=95):
    """Return a trace that inserts one record of each length."""
    count = len(lengths)
    return Trace.checked(
        name="t",
        source="made",
        record=range(count),
        op=[INSERT] * count,
        step=[0] * count,
        group=[-1] * count,
        step_time_ms=[0, 1000 * seconds],
        tokens=lengths,
        kind=[0] * count,
        namespace=[0] * count,
        nbytes=[72] * count,
    )


def found(text=TEXT, **options):
    return {knob.name: knob for knob in knobs(compile_policy(text), a_trace(**options))}


# --- knobs -----------------------------------------------------------------------------------------------------------


def test_lengths_worth_trying_are_those_of_the_trace_and_one_above():
    assert found()["long"].values == ("8 tokens", "16 tokens", "32 tokens", "33 tokens")
    assert found(lengths=(2, 3, 4))["long"].values == ("2 tokens", "3 tokens", "4 tokens", "5 tokens", "32 tokens")


def test_times_end_at_the_first_beyond_the_trace():
    values = found()["span"].values
    assert values[0] == "1s"
    assert values[-1] == "2min"
    assert found(seconds=1)["span"].values == ("1s", "2s", "1min")


def test_every_knob_holds_the_current_value_and_says_its_use():
    for knob in found().values():
        assert knob.values[knob.start] == knob.current
    assert {name: knob.uses for name, knob in found().items()} == {
        "long": ("tokens",),
        "often": ("hits in TIME",),
        "span": ("time of hits",),
        "high": ("when fill",),
        "low": ("until fill",),
    }


@pytest.mark.parametrize("name", ["long", "often", "span"])
@pytest.mark.parametrize("end", [0, -1])
def test_values_compile_where_params_take_them(name, end):
    value = found()[name].values[end]
    policy = compile_policy(TEXT, params={name: value})
    assert quantity_text(policy.params[name]) == value


def test_a_requirement_is_no_knob():
    text = "param bound = 150us\nplace otherwise in dram\nrequire lookup p99 <= bound"
    assert knobs(compile_policy(text), a_trace()) == ()


def test_counts_to_be_stored_begin_at_two():
    text = "param n = 2\nplace tokens >= 8 in dram after n hits in 60s\nplace otherwise in dram"
    assert found(text)["n"].values[:3] == ("2", "3", "4")


@pytest.mark.parametrize(
    "text", ["32 tokens", "90%", "7", "10min", "90s", "1500ms", "3GiB", "1000B", "20 MB/s", "5 rec/s"]
)
def test_quantities_are_written_to_be_read_again(text):
    quantity = parse_quantity(text)
    assert parse_quantity(quantity_text(quantity)) == quantity


# --- fronts ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=30))
def test_front_is_what_no_other_row_dominates(rows):
    costs = np.array(rows, np.float64)
    kept = costs[front(costs)]
    assert {tuple(row) for row in kept} == {
        tuple(row) for row in costs if not any(dominates(other, row) for other in costs)
    }
    assert len({tuple(row) for row in kept}) == len(kept)


# --- the search ------------------------------------------------------------------------------------------------------


class Bench:
    """Scores settings by a formula: a low `long` answers more at once and takes more bytes."""

    def __init__(self, text=TEXT, stop_after=None):
        self.policy, self.text, self.stop_after, self.calls = compile_policy(text), text, stop_after, []

    def __call__(self, params):
        if self.stop_after is not None and len(self.calls) >= self.stop_after:
            raise KeyboardInterrupt
        compile_policy(self.text, params=dict(params))
        self.calls.append(dict(params))
        long = parse_quantity(params.get("long", "32 tokens")).value
        often = parse_quantity(params.get("often", "3")).value
        fast = int(900 - 5 * long - abs(often - 6))
        return SimpleNamespace(
            questions=1000,
            hits={Tier.DRAM: fast, Tier.NVME: 950 - fast},
            peak_bytes={Tier.DRAM: int(1e6 / long), Tier.NVME: 9},
            lookup_us=SimpleNamespace(p99=100.0 + often),
        )

    def tune(self, **options):
        return tune(self.policy, a_trace(), self, **options)


SMALL = "param long = 32 tokens\nparam often = 3\nplace tokens >= long in dram else nvme\nplace otherwise in nvme\n"
SMALL += "promote hits >= often from nvme to dram at most 9 rec/s cooldown 9s"


def test_small_spaces_are_tried_whole_without_an_optimiser(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    bench = Bench(SMALL)
    result = bench.tune(trials=100)
    assert result.exhaustive
    assert result.tried == result.space == len(bench.calls) == combinations(result.knobs)
    assert bench.calls[0] == {"long": "32 tokens", "often": "3"}
    assert result.start.params == bench.calls[0]


def test_front_of_a_small_space_is_the_true_one():
    result = Bench(SMALL).tune(trials=100)
    for trial in result.front:
        assert not any(dominates(np.array(a.score.costs()), np.array(trial.score.costs())) for a in result.front)
    assert {trial.params["long"] for trial in result.front} == {"8 tokens", "16 tokens", "32 tokens", "33 tokens"}
    assert {trial.params["often"] for trial in result.front} <= {str(n) for n in range(1, 7)}


def test_chosen_has_the_fewest_bytes_near_the_most_at_once():
    result = Bench(SMALL).tune(trials=100)
    assert result.chosen.params["long"] == "8 tokens"
    least = result.chosen.score
    assert all(t.score.fast_bytes >= least.fast_bytes for t in result.front if t.score.fast_share >= 0.99 * 0.86)


def test_large_spaces_are_searched_the_same_way_for_the_same_seed():
    pytest.importorskip("optuna")
    first, second = Bench(), Bench()
    one, two = first.tune(trials=30, seed=3), second.tune(trials=30, seed=3)
    assert first.calls == second.calls
    assert one.front == two.front
    assert one.tried == 30
    assert not one.exhaustive
    assert one.refused > 0  # watermarks the wrong way round
    assert len({tuple(call.items()) for call in first.calls}) == len(first.calls)


def test_search_finds_the_best_length():
    pytest.importorskip("optuna")
    bench = Bench()
    result = bench.tune(trials=60, seed=1)
    assert result.chosen.params["long"] == "8 tokens"


def test_ctrl_c_keeps_what_was_found():
    result = Bench(SMALL, stop_after=5).tune(trials=100)
    assert result.interrupted
    assert not result.exhaustive
    assert result.tried == 5
    assert result.front


def test_ctrl_c_before_the_first_trial_ends_it():
    with pytest.raises(KeyboardInterrupt):
        Bench(SMALL, stop_after=0).tune(trials=100)


def test_progress_counts_simulations():
    told = []
    Bench(SMALL).tune(trials=100, progress=lambda done, total: told.append((done, total)))
    assert told[0] == (1, combinations(knobs(compile_policy(SMALL), a_trace())))
    assert told[-1][0] == told[-1][1]


def test_policy_without_params_is_told_how_to_name_them():
    with pytest.raises(PolicyError) as caught:
        Bench("place otherwise in dram").tune()
    assert caught.value.what == "<policy> has nothing to tune"
    assert "param long = 32 tokens" in caught.value.fix


def test_missing_optuna_is_told_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError) as caught:
        Bench().tune(trials=5)
    assert "pip install 'flashnest[tune]'" in caught.value.fix
