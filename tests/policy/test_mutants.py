"""Mutants of a policy: which are made, which survive, and that the test shown for a survivor kills it."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer.testing

from flashnest.cli.policy import app
from flashnest.policy.mutants import MutationReport, mutants, mutate
from flashnest.policy.tiering_file import TieringFile, read_tiering

RULES = "rules: |\n  place tokens >= 16 in dram\n  place otherwise in nvme\n"
BOTH = "tests:\n- {record: {tokens: 16}, expect: [dram]}\n- {record: {tokens: 15}, expect: [nvme]}\n"


def tiering(text: str) -> TieringFile:
    return read_tiering(text.encode(), Path("mine.yaml"))


def ran(text: str) -> MutationReport:
    file = tiering(text)
    return mutate(file, file.compile())


def changes(text: str) -> set[str]:
    return {f"{mutant.rule.number}: {mutant.change}" for mutant in mutants(tiering(text).compile())}


def test_a_rule_is_changed_in_bound_target_and_by_dropping_it():
    assert changes(RULES) == {
        "1: dropped",
        "1: `tokens >= 16` becomes `tokens >= 15`",
        "1: `tokens >= 16` becomes `tokens >= 17`",
        "1: `in dram` becomes `in nvme`",
        "1: `in dram` becomes `in reject`",
        "2: dropped",
        "2: `in nvme` becomes `in dram`",
        "2: `in nvme` becomes `in reject`",
    }


def test_and_or_not_kinds_chains_admissions_and_watermarks_are_changed():
    text = (
        "rules: |\n"
        "  place kind = chunk and not tokens < 16 in dram else nvme after 3 hits in 10min\n"
        "  place otherwise in nvme\n"
        "  evict idle >= 5min from nvme when fill > 95% until fill < 90%\n"
    )
    found = changes(text)

    assert {
        "1: `kind = chunk and not tokens <= 15` becomes `kind = chunk or not tokens <= 15`",
        "1: `not tokens <= 15` becomes `tokens <= 15`",
        "1: `kind = chunk` becomes `not kind = chunk`",
        "1: `in dram else nvme` becomes `in nvme else dram`",
        "1: `in dram else nvme` becomes `in dram`",
        "1: `after 3 hits in 10min` becomes `after 2 hits in 10min`",
        "1: `after 3 hits in 10min` becomes `after 4 hits in 10min`",
        "3: `idle >= 5min` becomes `idle >= 299s`",
        "3: `when fill > 95%` becomes `when fill > 94%`",
        "3: `when fill > 95%` becomes `when fill > 96%`",
    } <= found


def test_tests_at_the_boundary_kill_every_mutant():
    report = ran(RULES + BOTH)

    assert (report.killed, report.survivors) == (8, ())


def test_an_untested_boundary_survives_and_its_test_kills_it():
    report = ran(RULES + BOTH.replace("16", "17"))
    (survivor,) = report.survivors

    assert survivor.change == "`tokens >= 16` becomes `tokens >= 17`"
    assert survivor.test == "{record: {tokens: 16, kind: ngram}, expect: [dram]}"
    assert ran(f"{RULES}{BOTH.replace('16', '17')}- {survivor.test}\n").survivors == ()


@pytest.mark.parametrize(
    "moves",
    [
        "  evict idle >= 5min from nvme when fill > 95% until fill < 90%\n",
        "  promote hits in 60s >= 3 from nvme to dram at most 9 rec/s\n",
        "  keep refs >= 1 in nvme\n  evict from nvme when fill > 95% until fill < 90%\n",
        "  demote idle >= 5min and hits < 3 from dram to nvme when fill > 90% until fill < 80%\n",
    ],
)
def test_tests_shown_for_survivors_of_moves_kill_them_one_after_another(moves):
    text = RULES + moves + BOTH
    for _ in range(12):
        survivors = ran(text).survivors
        if not survivors:
            break
        text += f"- {survivors[0].test}\n"

    assert ran(text).survivors == ()
    assert len(tiering(text).tests) > 2


def test_equivalent_mutants_do_not_count():
    """Rule 1 takes 16 tokens and more, so it makes no difference whether rule 2 ends at 16 or below."""
    text = "rules: |\n  place tokens >= 16 in dram\n  place tokens in 9..16 in vram\n  place otherwise in nvme\n"
    tests = "tests:\n" + "".join(
        f"- {{record: {{tokens: {n}}}, expect: [{tier}]}}\n"
        for n, tier in ((16, "dram"), (15, "vram"), (9, "vram"), (8, "nvme"))
    )
    report = ran(text + tests)

    assert report.survivors == ()
    assert report.equivalent == 2  # 9..15 and 9..17


def test_a_mutant_that_the_check_refuses_needs_no_test():
    report = ran("rules: |\n  place tokens >= 16 in dram\n  place tokens <= 15 in nvme\n" + "tests: []\n")

    assert report.refused >= 4  # both rules dropped, both bounds moved apart: gaps


def test_mutants_of_a_trial_count_only_where_by_kills_them():
    text = "rules: |\n  place tokens >= 16 in nvme warn\n  place otherwise in dram\ntests:\n"
    text += "- {record: {tokens: 16}, expect: [dram]}\n"
    named = ran(f"{text}- {{record: {{tokens: 16}}, expect: [nvme], by: 1}}\n")

    assert (ran(text).survivors, named.survivors) == ((), ())
    assert named.killed > ran(text).killed


def test_by_with_a_rule_s_text_kills_no_mutant_by_itself():
    text = RULES + "tests:\n- {record: {tokens: 40}, expect: [dram], by: place tokens >= 16 in dram}\n"
    text += "- {record: {tokens: 1}, expect: [nvme]}\n"

    assert {one.change for one in ran(text).survivors} == {
        "`tokens >= 16` becomes `tokens >= 15`",
        "`tokens >= 16` becomes `tokens >= 17`",
    }


@pytest.mark.parametrize(("tests", "code"), [(BOTH, 0), (BOTH.replace("16", "17"), 1)])
def test_command_ends_with_1_where_a_mutant_survives(tmp_path, tests, code):
    (tmp_path / "mine.yaml").write_text(RULES + tests)

    result = typer.testing.CliRunner().invoke(app, ["test", str(tmp_path / "mine.yaml"), "--mutate"])

    assert result.exit_code == code
    assert ("kill it: - {record: {tokens: 16, kind: ngram}, expect: [dram]}" in result.stdout) is (code == 1)


def test_progress_is_told_shares_that_rise():
    told: list[float] = []
    file = tiering(RULES + BOTH)
    mutate(file, file.compile(), progress=told.append)

    assert told == sorted(told)
    assert (len(told), told[0]) == (8, 0.0)
