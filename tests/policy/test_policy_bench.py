"""`policy bench`: what it prints, its JSON; the records that it draws lie on the policy's constants."""

from __future__ import annotations

import json
from importlib import import_module

import numpy as np
import pytest
import typer.testing
from pages import played, steps

from flashnest.cli.policy import app
from flashnest.policy import compile_policy
from flashnest.policy.random_facts import random_facts
from flashnest.record import Kind, namespace_id

bench_module = import_module("flashnest.cli.policy.bench")
"""The package's name `bench` is the command."""

TEXT = """\
place namespace = "acme" and bytes > 4KiB in nvme
place tokens >= 32 and kind = chunk in dram
place otherwise in dram else nvme
promote hits in 60s >= 3 from nvme to dram at most 2000 rec/s cooldown 30s
evict idle > 14d or hits in 10min = 7 from nvme
"""


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(bench_module, "_BUDGET_NS", 1)


def run(*args: str) -> typer.testing.Result:
    return typer.testing.CliRunner().invoke(app, ["bench", *args])


def test_bench_says_what_compiling_placing_and_moving_cost():
    result = run("dram_only", "hotcold")

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["compile", "place", "place", "place"]
    assert [line.split()[0] for line in lines[6:]] == ["compile", *["place"] * 3, *["moves"] * 3]
    assert lines[4].endswith(" ns a record, batches of 10,000")
    assert all(float(line.split()[1].replace(",", "")) > 0 for line in (*lines[1:5], *lines[6:]))


def test_bench_as_json_is_one_document():
    result = run("--json", "dram_only", "hotcold")

    first, second = json.loads(result.stdout)["files"]
    assert (first["rules"], first["moves"], first["moves_ns"]) == (1, 0, [])
    assert [row["batch"] for row in second["place_ns"]] == list(bench_module.BATCHES)
    assert first["compile_ms"] > 0


def test_bench_of_a_wrong_file_ends_with_2_and_measures_the_rest(tmp_path):
    path = tmp_path / "wrong.tier"
    path.write_text("place")

    result = run(str(path), "dram_only")

    assert result.exit_code == 2
    assert "T001" in result.stdout
    assert "10,000" in result.stdout


def test_median_of_a_slow_call_is_taken_from_three():
    calls: list[int] = []

    assert bench_module.median_ns(lambda: calls.append(1)) > 0
    assert len(calls) >= 5


def test_random_facts_lie_on_beside_and_far_from_the_constants():
    policy = compile_policy(TEXT)

    facts = random_facts(policy, 4000, np.random.default_rng(0))

    assert {31, 32} <= set(facts.tokens.tolist()) <= set(range(1, 256))
    assert set(facts.kind.tolist()) == {Kind.NGRAM, Kind.CHUNK}
    assert {4096, 4097} <= set(facts.nbytes.tolist())
    assert 0.1 < np.mean(facts.namespace == namespace_id("acme")) < 0.4
    assert np.mean(np.isin(facts.idle_s, (14 * 86400, 14 * 86400 + 1))) > 0.1
    assert policy.moves.windows_s == (60, 600)
    assert {2, 3} <= set(facts.window_hits[0].tolist())
    assert {6, 7, 8} <= set(facts.window_hits[1].tolist())
    assert (facts.idle_s <= facts.age_s).all()
    assert all((hits <= facts.hits).all() for hits in facts.window_hits)
    assert len(set(facts.nbytes.tolist())) > 1000


def test_random_facts_are_the_same_for_the_same_seed():
    policy = compile_policy(TEXT)

    first, again = (random_facts(policy, 50, np.random.default_rng(3)) for _ in range(2))

    assert first.nbytes.tolist() == again.nbytes.tolist()
    assert first.window_hits[0].tolist() == again.window_hits[0].tolist()


def test_the_page_prints_what_it_says_but_for_the_times():
    def shape(text: str) -> list[list[str]]:
        return [[word for word in line.split() if not word[0].isdigit()][1:] for line in text.splitlines()]

    ((command, said),) = steps("bench.md")

    assert shape(played(command, said)) == shape(said)
