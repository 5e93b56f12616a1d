"""What `policy test --coverage` counts as exercised, what it reports as missing, and what it does not ask for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer.testing

from flashnest.cli.policy import app
from flashnest.policy.exercised import Exercised, exercised
from flashnest.policy.testing import run_tests
from flashnest.policy.tiering_file import read_tiering

RULES = "rules: |\n  place tokens >= 16 in dram\n  place otherwise in nvme\n"
MOVES = "  evict idle >= 5min from nvme when fill > 95% until fill < 90%\n"


def seen(text: str) -> Exercised:
    file = read_tiering(text.encode(), Path("mine.yaml"))
    return exercised(file.compile(), run_tests(file))


def test_both_sides_of_a_threshold_make_it_whole():
    found = seen(RULES + "tests:\n- {record: {tokens: 16}, expect: dram}\n- {record: {tokens: 15}, expect: nvme}\n")

    assert (found.percent, found.missing) == (100.0, ())
    assert found.items == 2 + 2 + 2  # two rules; an atom true and false; a threshold's two sides


def test_a_value_further_off_is_not_the_boundary():
    found = seen(RULES + "tests:\n- {record: {tokens: 17}, expect: dram}\n- {record: {tokens: 15}, expect: nvme}\n")

    assert [one.text("mine.yaml") for one in found.missing] == [
        "mine.yaml:2: warning[T501]: `tokens >= 16` of rule 1 has no test at tokens = 16, the first inside"
    ]
    assert (found.seen, found.items) == (5, 6)


def test_untested_rule_atom_and_sides_are_named():
    found = seen(RULES + "tests:\n- {record: {tokens: 16}, expect: dram}\n")

    assert [(one.code, one.line) for one in found.missing] == [("T501", 2), ("T504", 2), ("T503", 3)]
    assert "false in no test that reaches the rule" in found.missing[1].message


def test_an_atom_counts_only_in_tests_that_reach_its_rule():
    rules = "rules: |\n  place tokens >= 16 in dram\n  place kind = chunk in nvme\n  place otherwise in reject\n"
    tests = "tests:\n- {record: {tokens: 16, kind: chunk}, expect: dram}\n- {record: {tokens: 15}, expect: reject}\n"

    missing = {one.code: one.message for one in seen(rules + tests).missing}

    assert missing["T504"] == "`kind = chunk` of rule 2 is true in no test that reaches the rule"


def test_what_no_record_can_do_is_not_asked_for():
    """No record of fewer than 9 tokens reaches rule 2, so its lower bound has no outside there."""
    rules = "rules: |\n  place tokens <= 8 in nvme\n  place tokens in 9..31 in dram\n  place otherwise in vram\n"
    values = {8: "nvme", 9: "dram", 31: "dram", 32: "vram"}
    tests = "tests:\n" + "".join(f"- {{record: {{tokens: {n}}}, expect: {tier}}}\n" for n, tier in values.items())

    assert seen(rules + tests).percent == 100.0


@pytest.mark.parametrize(
    ("fills", "missing"),
    [((95, 96), []), ((95, 97), ["96%, the first inside"]), ((93, 96), ["95%, the last outside"])],
)
def test_watermarks_are_tested_within_a_point(fills, missing):
    tests = "tests:\n- {record: {tokens: 16}, expect: dram}\n- {record: {tokens: 15}, expect: nvme}\n"
    record = "- {record: {tokens: 9, idle: 5min}, in: nvme, "
    tests += f"{record}fill: {fills[0]}%, expect: stay}}\n{record}fill: {fills[1]}%, expect: evict}}\n"
    tests += "- {record: {tokens: 9, idle: 299s}, in: nvme, fill: 99%, expect: stay}\n"

    found = seen(RULES + MOVES + tests)

    assert [one.message.split("fill = ")[1] for one in found.missing if "fill" in one.message] == missing


def test_admission_has_to_be_expected_by_a_test():
    rules = RULES.replace("in nvme\n", "in nvme after 2 hits in 10min\n")
    tests = "tests:\n- {record: {tokens: 16}, expect: dram}\n- {record: {tokens: 15}, expect: nvme%s}\n"

    assert [one.code for one in seen(rules + tests % "").missing] == ["T501"]
    assert seen(rules + tests % ", after: 2 hits in 10min").percent == 100.0


def test_a_wrong_admission_fails_the_test_and_says_which_it_is():
    rules = RULES.replace("in nvme\n", "in nvme after 2 hits in 10min\n")
    text = rules + "tests:\n- {record: {tokens: 15}, expect: nvme, after: 3 hits in 10min}\n"

    (result,) = run_tests(read_tiering(text.encode(), Path("mine.yaml")))

    assert "expected: nvme after 3 hits in 10min" in result.failure
    assert "got:      nvme after 2 hits in 10min by rule 2" in result.failure


def test_two_tests_of_one_name_are_warned_of():
    tests = "tests:\n- {name: a, record: {tokens: 16}, expect: dram}\n- {name: a, record: {tokens: 15}, expect: nvme}\n"

    found = seen(RULES + tests)

    assert [(one.code, one.line) for one in found.missing] == [("T502", 6)]
    assert found.percent == 100.0


def test_a_trial_counts_when_a_test_asks_for_it():
    rules = "rules: |\n  place tokens >= 16 in nvme warn\n  place otherwise in dram\n"
    named = "tests:\n- {record: {tokens: 16}, expect: nvme, by: 1}\n- {record: {tokens: 15}, expect: dram}\n"

    assert seen(rules + named).percent == 100.0


@pytest.mark.parametrize(("least", "code"), [("83", 0), ("84", 1)])
def test_min_ends_with_1_below_it_and_json_says_the_same(tmp_path, least, code):
    path = tmp_path / "mine.yaml"
    path.write_text(RULES + "tests:\n- {record: {tokens: 17}, expect: dram}\n- {record: {tokens: 15}, expect: nvme}\n")

    text = typer.testing.CliRunner().invoke(app, ["test", str(path), "--min", least])
    plain = typer.testing.CliRunner().invoke(app, ["test", str(path), "--min", least, "--format", "json"])
    (file,) = json.loads(plain.stdout)["files"]

    assert (text.exit_code, plain.exit_code) == (code, code)
    assert "83.3 % (5 of 6)" in text.stdout
    assert file["ok"] is (code == 0)
    assert (file["coverage"]["percent"], file["coverage"]["missing"][0]["code"]) == (83.33, "T501")


def test_json_of_a_file_that_does_not_check_is_json_and_ends_with_2(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("rules: place tokens >= 9 in dram\n")

    result = typer.testing.CliRunner().invoke(app, ["test", str(path), "--format", "json"])

    assert result.exit_code == 2
    assert "T101" in json.loads(result.stdout)["files"][0]["error"]
