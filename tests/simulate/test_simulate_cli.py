"""`flash-nest simulate` and `policy tune` on small traces: what is printed, written and refused, and how they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer.testing

from flashnest.cli.commands import app, flash_nest
from flashnest.cli.policy.traced import Stage, parse_sizes
from flashnest.policy import load_tiering_file
from flashnest.record import Tier
from flashnest.simulate.trace import INSERT, LOOKUP, Trace
from flashnest.units import UnitError

PARAMS = """\
param long = 16 tokens
place tokens >= long in dram else nvme
place otherwise in nvme
"""


def run(*args: str) -> typer.testing.Result:
    return typer.testing.CliRunner().invoke(app, args)


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """Return a text that repeats itself: 12 passages of the same 40 sentences."""
    path = tmp_path_factory.mktemp("trace") / "words.txt"
    path.write_text(
        " ".join(f"Sentence number {i % 40} says something of its own, namely {i % 40}." for i in range(480))
    )
    return path


def small(name="small", step_ms=(0, 20, 40)) -> Trace:
    return Trace.checked(
        name=name,
        source="made",
        record=[0, 0, 0],
        op=[INSERT, LOOKUP, LOOKUP],
        step=[0, 1, 2],
        group=[-1, 0, 1],
        step_time_ms=step_ms,
        tokens=[8],
        kind=[0],
        namespace=[0],
        nbytes=[72],
    )


# --- simulate --------------------------------------------------------------------------------------------------------


def test_policies_stand_side_by_side(text):
    result = run("simulate", str(text), "-p", "dram_only", "-p", "nvme_only")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("words: ")
    assert "no platform, so no predicted times" in result.stdout
    heads = next(line.split() for line in result.stdout.splitlines() if "dram_only" in line)
    assert heads == ["dram_only", "nvme_only"]
    assert "Lookups of a step" not in result.stdout


def test_json_has_the_trace_and_every_simulation(text, tmp_path):
    page, saved = tmp_path / "page.html", tmp_path / "saved.json"
    files = ("--html", str(page), "--json", str(saved))
    result = run(
        "policy", "simulate", str(text), "-p", "dram_only", "--platform", "rtx4090", "--format", "json", *files
    )
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["trace"]["questions"] == document["simulations"][0]["questions"] > 0
    assert document["simulations"][0]["lookup_us"]["p99"] > 0
    assert json.loads(saved.read_text()) == document
    assert page.read_text(encoding="utf-8").count("plotly-graph-div") > 3


def test_sizes_hold_for_every_policy(text):
    result = run("simulate", str(text), "-p", "dram_only", "--dram", "128KiB", "--format", "json", "--no-belady")
    simulation = json.loads(result.stdout)["simulations"][0]
    assert simulation["capacities"] == {"dram": 128 << 10}
    assert simulation["peak_bytes"]["dram"] <= 128 << 10
    assert simulation["belady_hit_share"] is None


def test_enforced_requirement_that_does_not_hold_ends_with_1(text, tmp_path):
    policy = tmp_path / "strict.tier"
    policy.write_text("place otherwise in nvme\nrequire dram hits >= 90%\n")
    result = run("simulate", str(text), "-p", str(policy))
    assert result.exit_code == 1
    assert "BROKEN:  require dram hits >= 90%" in result.stdout


def test_warnings_count_with_strict(text):
    assert run("simulate", str(text), "-p", "nvme_only").exit_code == 0
    assert run("simulate", str(text), "-p", "nvme_only", "--strict").exit_code == 1


def test_ctrl_c_shows_the_policies_that_are_done(text, monkeypatch):
    plain, calls = Stage.simulate, []

    def once(self, file, policy, **options):
        calls.append(file.path.stem)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return plain(self, file, policy, **options)

    monkeypatch.setattr(Stage, "simulate", once)
    result = run("simulate", str(text), "-p", "dram_only", "-p", "nvme_only", "-p", "hotcold", "--format", "json")
    assert result.exit_code == 130
    assert "interrupted: 1 of 3 policies are done" in result.stderr
    document = json.loads(result.stdout)
    assert document["interrupted"] is True
    assert len(document["simulations"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no_such_trace",), "error: unknown trace"),
        (("no/such.jsonl",), "error: cannot read the trace no/such.jsonl"),
        (("repeat_50", "--lengths", "8;16"), "error: --lengths 8;16 is not a list of numbers"),
        (("repeat_50", "-p", "hot_cold"), "error: unknown tiering option"),
        (("repeat_50", "--dram", "14Gb"), "error: unknown unit 'Gb'"),
        (("repeat_50", "--html", "/proc/nowhere/page.html"), "error: cannot write /proc/nowhere/page.html"),
    ],
)
def test_wrong_input_is_one_clear_error(arguments, message, capsys):
    assert flash_nest(["simulate", *arguments]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_tiers_without_a_size_have_room_for_every_record(tmp_path):
    file = load_tiering_file(_yaml(tmp_path, "${platform.table.dram}"))
    stage = Stage(small(), None, {})
    assert stage.capacities(file)[Tier.DRAM] > 6 * 72
    assert Stage(small(), None, parse_sizes(dram="1MiB", nvme=None)).capacities(file)[Tier.DRAM] == 1 << 20
    assert Stage(small(), None, {}).capacities(load_tiering_file(_yaml(tmp_path, "14GiB")))[Tier.DRAM] == 14 << 30


def _yaml(folder: Path, capacity: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(
        f'tiers:\n  dram: {{capacity: "{capacity}", eviction: lru}}\n'
        "  nvme: {capacity: 1GiB, engine: slots, cold_reads: blocking, flush_records: 7, flush_interval: 250ms}\n"
        "rules: place otherwise in dram else nvme\n"
    )
    return path


def test_what_the_file_says_of_its_tiers_is_simulated(tmp_path):
    options = Stage(small(), None, {}).options(load_tiering_file(_yaml(tmp_path, "1GiB")))
    assert (options.eviction, options.engine, options.blocking) == ("lru", "slots", True)
    assert (options.flush_records, options.flush_interval_s) == (7, 0.25)
    assert options.base_step_s == 0.02


def test_steps_of_arrivals_are_no_decode_steps():
    assert Stage(small(step_ms=(0, 3000, 6000)), None, {}).step_s is None
    assert Stage(small(step_ms=(0, 0, 0)), None, {}).step_s is None


def test_sizes_are_read_with_their_unit():
    assert parse_sizes(dram="14GiB", nvme=None) == {Tier.DRAM: 14 << 30}
    with pytest.raises(UnitError):
        parse_sizes(dram="14 dogs")


# --- tune ------------------------------------------------------------------------------------------------------------


def test_tune_prints_the_front_and_writes_the_chosen_policy(text, tmp_path):
    policy, out = tmp_path / "mine.tier", tmp_path / "tuned.tier"
    policy.write_text(PARAMS)
    result = run("policy", "tune", str(policy), str(text), "--trials", "9", "--out", str(out), "--pick", "1")
    assert result.exit_code == 0, result.output
    assert "of 1 param, all of them tried" in result.stdout
    assert "\n1 <" in result.stdout
    written = out.read_text()
    assert written.startswith("# Tuned: ")
    assert "#   trace  words: " in written
    assert load_tiering_file(out).compile().params["long"] != load_tiering_file(policy).compile().params["long"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budget", "dram"), "error: --budget dram is not a tier and its size"),
        (("--budget", "ram=1GiB"), "error: --budget ram=1GiB is not a tier and its size"),
        (("--pick", "99"), "error: --pick 99: the front has"),
        (("--out", "tuned.yaml"), "error: tuned.yaml is of another kind than"),
    ],
)
def test_wrong_tuning_is_one_clear_error(text, tmp_path, arguments, message, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.tier").write_text(PARAMS)
    assert flash_nest(["policy", "tune", "mine.tier", str(text), "--trials", "9", *arguments]) == 2
    assert capsys.readouterr().err.startswith(message)
