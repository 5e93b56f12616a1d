"""`benchmarks.engines` without an engine: requests kept in flight, a process that dies, ratios, mistakes."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import engine_fleet
from benchmarks.engine_fleet import Fleet, Kind
from benchmarks.engine_jobs import Answer, EngineSetup, Job, Pass, keep_in_flight
from benchmarks.engine_prompts import write_prompts
from benchmarks.engine_results import Measured, geometric_means, results_of
from benchmarks.engines import arguments
from flashnest.errors import WorkloadError

SETUP = EngineSetup("", None, "float32", "", 4, 1 << 30, 256, False)


class Countdown:
    """An engine whose requests end after as many steps as their prompt has tokens."""

    def __init__(self) -> None:
        self.left: list[int] = []
        self.seen: list[int] = []

    def add(self, prompt: Sequence[int], output_tokens: int) -> None:
        self.left.append(len(prompt))

    def step(self) -> tuple[int, int]:
        self.seen.append(len(self.left))
        said = len(self.left)
        self.left = [steps - 1 for steps in self.left if steps > 1]
        return said - len(self.left), said


@pytest.mark.parametrize(("batches", "in_flight"), [(False, [2, 2, 2, 1]), (True, [2, 1, 1, 2, 1])])
def test_a_request_starts_when_one_ends_or_when_all_have(batches, in_flight):
    engine, prompts = Countdown(), [[0], [0, 0, 0], [0], [0, 0]]
    done = keep_in_flight(engine, Job("", 4, 2, 1, 1, True), prompts, batches=batches)
    assert done.tokens == 7
    assert engine.seen == in_flight


def test_a_process_that_dies_is_left_out_with_its_last_words(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(engine_fleet, "KINDS", {"gone": Kind("no_such_engine", "")})
    with Fleet(["gone"], SETUP, {}, tmp_path) as fleet:
        assert list(fleet.ask(Job("", 1, 1, 1, 1, True))) == []
    assert "gone is left out" in (words := capsys.readouterr().err)
    assert "no_such_engine" in words


def measured(engine: str, level: int, *speeds: float) -> Measured:
    return Measured(engine, "repeat_00", level, 0, Answer([Pass(1.0, round(speed)) for speed in speeds], 1 << 30))


def test_ratios_are_of_medians_and_one_pass_stands_for_two():
    rounds = [measured("flashnest", 1, speed, 4 * speed) for speed in (20, 30, 100)]
    results = results_of([*rounds, measured("hf", 1, 10)])
    ours = [r for r in results if r.parameters["engine"] == "flashnest"]
    assert [(r.value, r.ratio) for r in ours] == [(30, 3.0), (120, 12.0)]
    assert [(m.case, round(m.value, 3)) for m in geometric_means(results)] == [("geometric mean", 6.0), ("lowest", 3.0)]


def test_prompts_that_cannot_be_had_say_why(monkeypatch, tmp_path):
    monkeypatch.setattr("flashnest.runtime.weights.load_tokenizer", lambda _: None)
    args = Namespace(prompts=None, text=None, seed=7, output_tokens=4)
    with pytest.raises(WorkloadError, match="no workload 'repeats'"):
        write_prompts(tmp_path / "p.json", "repeats", "", 4, args)
    (tmp_path / "mine.jsonl").write_text(json.dumps({"text": "no prompt"}) + "\n")
    args.prompts = Path(tmp_path)
    with pytest.raises(WorkloadError, match="cannot read prompts"):
        write_prompts(tmp_path / "p.json", "mine", "", 4, args)


@pytest.mark.parametrize("wrong", [["--engines", "flashnest,sglang"], ["--engines", "vllm"]])
def test_a_wrong_engine_is_refused_before_anything_loads(wrong, capsys):
    with pytest.raises(SystemExit):
        arguments(wrong)
    assert ("no engine named sglang" in (said := capsys.readouterr().err)) or ("--vllm-python" in said)
