"""`flash-nest policy check` and `policy test`: exit codes and what is printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer.testing

from flashnest.cli.policy import app
from flashnest.cli.policy.files import tiering_path
from flashnest.errors import PolicyError

CARD = "rules: |\n  >=32-token records in DRAM, <=8-token records on NVMe\n"
MINE = """\
rules: place otherwise in dram
tests:
  - {name: one, record: {tokens: 1}, expect: dram}
  - {name: two, record: {tokens: 2}, expect: nvme}
"""


def run(*args: str) -> typer.testing.Result:
    return typer.testing.CliRunner().invoke(app, args)


def written(folder: Path, text: str, name: str = "mine.yaml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_check_of_the_cards_sentence_fails_with_gap_caret_and_fix(tmp_path):
    result = run("check", written(tmp_path, CARD, "card.yaml"))

    assert result.exit_code == 2
    assert "error[T101]: no rule places records with tokens = 9..31" in result.stdout
    assert f"--> {tmp_path}/card.yaml:2:31" in result.stdout
    assert "^^^^^^^^^^^^^^^^^ covers tokens = 1..8" in result.stdout
    assert "add `place otherwise in dram else nvme`" in result.stdout


def test_check_takes_names_of_shipped_options():
    result = run("check", "hotcold", "dram_only", "nvme_only")

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["ok", "ok", "ok"]
    assert lines[0].endswith("conf/tiering/hotcold.yaml: 3 rules, 3 moves, 13 tests")


def test_check_goes_on_after_a_wrong_file_and_returns_the_worst_code(tmp_path):
    result = run("check", str(tmp_path / "nix.yaml"), written(tmp_path, CARD), "dram_only")

    assert result.exit_code == 2
    assert "error: cannot read" in result.stderr
    assert "T101" in result.stdout
    assert "ok  " in result.stdout


@pytest.mark.parametrize(("flags", "code"), [((), 0), (("--strict",), 1)])
def test_warning_fails_only_with_strict(tmp_path, flags, code):
    path = written(tmp_path, "param long = 3\nplace otherwise in dram\n", "mine.tier")

    result = run("check", *flags, path)

    assert result.exit_code == code
    assert "warning[T409]: param `long` is never used" in result.stdout


def test_unknown_name_lists_or_suggests_options():
    result = run("check", "hotcld")

    assert result.exit_code == 2
    assert "unknown tiering option `hotcld`" in result.stderr
    assert "did you mean `hotcold`?" in result.stderr
    with pytest.raises(PolicyError, match="dram_only"):
        tiering_path("xyz")


def test_test_passes_on_shipped_options():
    result = run("test", "hotcold", "nvme_only")

    assert result.exit_code == 0
    assert "hotcold.yaml: 13 of 13 tests passed" in result.stdout


def test_test_fails_with_1_and_says_why(tmp_path):
    result = run("test", written(tmp_path, MINE))

    assert result.exit_code == 1
    assert "mine.yaml:4: two" in result.stdout
    assert "expected: nvme" in result.stdout
    assert "1 of 2 tests passed" in result.stdout
    assert "one" not in result.stdout.replace("mine", "")


def test_test_of_a_policy_that_does_not_check_ends_with_2(tmp_path):
    assert run("test", written(tmp_path, CARD)).exit_code == 2


def test_terminal_without_unicode_gets_a_mark_instead_of_a_traceback(tmp_path):
    path = written(tmp_path, "\u226532-token records in DRAM\n", "mine.tier")
    code = f"from flashnest.cli.policy import app; app(['check', {path!r}])"
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONPATH": ":".join(sys.path)}

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)

    assert done.returncode == 2
    lines = done.stdout.splitlines()
    assert lines[3].index("?32-token") == lines[4].index("^")


def test_check_and_help_load_nothing_heavy():
    """Start-up is part of the product: 0.6 s for `policy check` leaves no room for these."""
    heavy = "{'torch', 'numba', 'transformers', 'hydra', 'omegaconf', 'rich', 'numpy.ma'}"
    code = (
        "import sys; from flashnest.cli.policy import app\n"
        f"try: app(sys.argv[1:])\nexcept SystemExit: print({heavy} & set(sys.modules))"
    )

    for arguments in (["check", "hotcold"], ["--help"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "set()"
