"""The pytest plugin as an ops repository sees it: what is collected, what failures say."""

from __future__ import annotations

import subprocess
import sys

import pytest

import flashnest.policy.compile  # noqa: F401 - loads numpy before pytester starts to put modules back

pytest_plugins = ("pytester",)

MINE = """\
tiers: {dram: {capacity: 1GiB}, nvme: {capacity: "${platform.table.nvme}"}}
rules: |
  place tokens >= 16 in dram
  place otherwise in nvme
tests:
  - name: sixteen is hot
    record: {tokens: 16}
    expect: dram
  - record: {tokens: 15}
    expect: nvme
    by: 2
"""


def run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """Run pytest with the plugin, whether or not the package is installed in this environment."""
    return pytester.runpytest_inprocess("-p", "no:flashnest", "-p", "flashnest.policy.pytest_plugin", *args)


def test_good_file_passes_with_one_item_for_the_check_and_one_for_each_test(pytester):
    folder = pytester.mkdir("conf")
    (folder / "mine.yaml").write_text(MINE)

    result = run(pytester, "-v")

    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        ["*mine.yaml::check PASSED*", "*::sixteen is hot PASSED*", "*::15 tokens, ngram PASSED*"]
    )
    assert result.ret == 0


def test_tests_of_moves_are_run(pytester):
    moves = "  promote hits >= 3 from nvme to dram at most 9 rec/s\ntests:\n"
    good = "  - {name: up, record: {tokens: 9, hits: 3}, in: nvme, expect: {promote: dram}, by: 3}\n"
    wrong = "  - {name: not up, record: {tokens: 9, hits: 2}, in: nvme, expect: {promote: dram}}\n"
    pytester.makefile(".yaml", mine=MINE.replace("tests:\n", moves + good + wrong))

    result = run(pytester, "-v")

    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["*::up PASSED*", "  expected: promote to dram", "  got:      stay, no rule takes it"])


def test_failing_test_shows_record_expectation_and_rule_without_traceback(pytester):
    pytester.makefile(".yaml", mine=MINE.replace("expect: dram", "expect: nvme"))

    result = run(pytester)

    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*mine.yaml:6: sixteen is hot",
            "  record:   {tokens: 16, kind: ngram, namespace: default, bytes: *}",
            "  expected: nvme",
            "  got:      dram by rule 1 (line 3): place tokens >= 16 in dram",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")
    assert result.ret == 1


def test_policy_that_does_not_check_is_one_failing_item_with_its_diagnostics(pytester):
    pytester.makefile(".yml", mine=MINE.replace("place otherwise in nvme", ""))

    result = run(pytester)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["error[[]T101]: no rule places records with tokens = 1..15", "  --> *mine.yml:3:9", "*| *^^^^^^^^^^^^ covers*"]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_file_of_wrong_shape_is_one_failing_item(pytester):
    pytester.makefile(".yaml", mine=MINE.replace("expect: dram", "expct: dram"))

    result = run(pytester)

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*mine.yaml:8:5: unknown key `expct`", "did you mean `expect`?"])


@pytest.mark.parametrize(
    "text",
    [
        "rules:\n  - a\ntests:\n  - b\n",  # a list of rules: not ours
        "rules: [a]\ntests: [b]\n",
        "rules: |\n  place otherwise in dram\n",  # no tests
        "nested:\n  rules: |\n    x\n  tests:\n    - y\n",
        "tests:\n  - x\n",
        "{{ jinja }}\n\t: [",
        "",
    ],
)
def test_other_yaml_is_left_alone(pytester, text):
    pytester.makefile(".yaml", other=text)

    result = run(pytester)

    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.assert_outcomes()


def test_binary_and_broken_links_are_left_alone(pytester):
    (pytester.path / "binary.yaml").write_bytes(b"\xff\xfe\x00rules")
    (pytester.path / "link.yaml").symlink_to("nowhere.yaml")

    assert run(pytester).ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_ini_option_turns_collection_off(pytester):
    pytester.makefile(".yaml", mine=MINE)
    pytester.makeini("[pytest]\nflashnest_policy = false\n")

    assert run(pytester).ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_plugin_loads_nothing_heavy():
    code = (
        "import sys, flashnest.policy.pytest_plugin;"
        "print(sorted({'numpy', 'lark', 'yaml', 'torch', 'numba', 'typer'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
