"""The tiering options that flashnest ships: checked without a warning, and tested whole."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from flashnest.policy.tested_file import run_file
from flashnest.policy.tiering_file import load_tiering_file

FOLDER = Path(str(resources.files("flashnest"))) / "conf" / "tiering"
NAMES = ("code_assistant", "dram_only", "hotcold", "long_context", "nvme_only", "vram_first", "vram_only")


def test_these_are_all():
    assert tuple(sorted(path.stem for path in FOLDER.glob("*.yaml"))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_tests_pass_cover_everything_and_let_no_mutant_live(name):
    one = run_file(load_tiering_file(FOLDER / f"{name}.yaml"), coverage=True, mutants=True)

    assert [result.failure for result in one.failed] == []
    assert one.exercised is not None
    assert (one.exercised.percent, one.exercised.missing) == (100.0, ())
    assert one.mutants is not None
    assert one.mutants.survivors == ()
    assert one.mutants.killed >= 2


@pytest.mark.parametrize("name", NAMES)
def test_policy_has_no_warning_and_says_why_it_is_as_it_is(name):
    path = FOLDER / f"{name}.yaml"

    assert load_tiering_file(path).compile().diagnostics == ()
    assert path.read_text().startswith("# ")
