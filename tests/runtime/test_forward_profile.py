"""The start-up profile: what is measured, what is kept, and that a damaged file is measured again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from engine_setup import Clock, emulated_model, tiny_model

from flashnest.runtime.emulated import EmulatedModel
from flashnest.runtime.forward import ForwardBatch, Scores
from flashnest.runtime.forward_cost import ForwardCost, ForwardShape
from flashnest.runtime.forward_profile import Trial, measure, profile_of, profile_path, read_profile, trials

TRIALS = [Trial(1, 1, 40, 1), Trial(2, 3, 40, 3), Trial(1, 32, 32, 1)]


class Counted(EmulatedModel):
    """Takes 1 ms a packed token; keeps the shapes that it was asked."""

    def forward(self, batch: ForwardBatch) -> Scores:
        self.shapes = [*getattr(self, "shapes", []), ForwardShape.of(batch)]
        self._clock_s.now_s += 1e-3 * len(batch.token_ids)  # type: ignore[attr-defined]
        return Scores(np.zeros(len(batch.score_rows), np.int64), None)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Counted:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = emulated_model(Clock(), Counted)
    assert isinstance(model, Counted)
    return model


def _kept(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "flashnest" / "profiles").glob("*"))


def test_every_trial_is_run_once_uncounted_and_then_measured(counted: Counted) -> None:
    profile = measure(counted, 8, TRIALS, clock_s=counted._clock_s)
    assert [shape for shape, _ in profile] == [trial.shape for trial in TRIALS] == counted.shapes[:3]
    assert [seconds for _, seconds in profile] == pytest.approx([0.001, 0.006, 0.032])


def test_a_slow_model_gets_fewer_trials(counted: Counted) -> None:
    profile = measure(counted, 8, TRIALS, budget_s=0.001, clock_s=counted._clock_s)
    assert [shape for shape, _ in profile] == [TRIALS[0].shape]
    assert len(counted.shapes) == 3 + 1


def test_a_profile_is_measured_once(counted: Counted, tmp_path: Path) -> None:
    first = profile_of(counted, 8, TRIALS, device="cpu", threads=2)
    forwards = len(counted.shapes)
    assert profile_of(counted, 8, TRIALS, device="cpu", threads=2) == first
    assert len(counted.shapes) == forwards
    profile_of(counted, 8, TRIALS, device="cpu", threads=1)
    assert len(counted.shapes) > forwards
    assert len(_kept(tmp_path)) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace('"threads": 2', '"threads": 3'),
        lambda text: json.dumps(json.loads(text) | {"points": []}),
        lambda text: json.dumps(json.loads(text) | {"points": [[1, 1, 40, 40, float("nan")]]}),
        lambda text: json.dumps(json.loads(text) | {"points": [[1, 1, 40, 40, -1.0]]}),
        lambda text: json.dumps(json.loads(text) | {"points": [[1, 1]]}),
        lambda text: json.dumps(json.loads(text) | {"points": 7}),
    ],
)
def test_a_damaged_file_is_measured_again(counted: Counted, tmp_path: Path, damage: object) -> None:
    profile_of(counted, 8, TRIALS, device="cpu", threads=2)
    (path,) = _kept(tmp_path)
    good = path.read_text()
    assert callable(damage)
    path.write_text(damage(good))
    forwards = len(counted.shapes)
    profile_of(counted, 8, TRIALS, device="cpu", threads=2)
    assert len(counted.shapes) > forwards
    assert read_profile(path, json.loads(good)["facts"]) is not None
    assert path == profile_path(json.loads(good)["facts"])


def test_a_cache_that_cannot_be_written_stops_nothing(
    counted: Counted, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "flashnest").write_text("a file where the folder should be")
    assert profile_of(counted, 8, TRIALS, device="cpu", threads=2)
    assert "not kept" in caplog.text


def test_trials_fit_the_models_context() -> None:
    for context in (100, 512, 40960):
        wanted = trials(context)
        assert wanted
        assert max(trial.context for trial in wanted) <= context
        assert len(set(wanted)) == len(wanted)


def test_a_real_model_is_measured_within_a_pool_smaller_than_the_trials_want() -> None:
    model = tiny_model()
    model.allocate_kv(4)
    wanted = trials(256)
    profile = measure(model, 4, wanted, budget_s=0.2)
    assert {shape for shape, _ in profile} <= {trial.shape for trial in wanted}
    assert ForwardCost(profile).profiled
    model.close()
