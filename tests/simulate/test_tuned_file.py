"""A tuned file is the old one to the letter, but for its params and the comment at its top."""

from __future__ import annotations

import pytest
import yaml

from flashnest.policy import load_tiering_file
from flashnest.policy.compile import compile_policy
from flashnest.simulate.tuned_file import tuned_text, tuned_yaml

RULES = """rules: |
  param long = 32 tokens  # here
  place tokens >= long in dram else nvme
  place otherwise in nvme
"""
HEAD = "# A policy.\ntiers:\n  dram: {capacity: 14GiB}\n  nvme: {capacity: 64GiB}\n"
COMMENT = "# Tuned: today\n#   so much DRAM\n# End of the tuning's numbers.\n"
LINES = ["today", "so much DRAM"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("params: {}  # none yet\n", "params: {long: 16 tokens}  # none yet\n"),
        ("params:\n", "params: {long: 16 tokens}\n"),
        ("params: {long: 48, other: x}\n", "params: {long: 16 tokens, other: x}\n"),
        ("params:\n  long: 48  # was\n# about the rules\n", "params: {long: 16 tokens}  # was\n# about the rules\n"),
        ('params: {tenant: "12"}\n', 'params: {tenant: "12", long: 16 tokens}\n'),
        ("", "params: {long: 16 tokens}\n"),
    ],
)
def test_params_are_set_and_the_rest_stays(before, after):
    assert tuned_yaml(HEAD + before + RULES, {"long": "16 tokens"}, LINES) == COMMENT + HEAD + after + RULES


def test_file_compiles_with_the_params(tmp_path):
    path = tmp_path / "tuned.yaml"
    path.write_text(tuned_yaml(HEAD + "params: {}\n" + RULES, {"long": "16 tokens"}, LINES))
    assert load_tiering_file(path).compile().params["long"].value == 16


def test_many_params_stand_one_a_line():
    params = {f"a_rather_long_name_{i}": f"{i + 1} tokens" for i in range(8)}
    text = tuned_yaml(HEAD + "params: {}\n" + RULES, params, LINES)
    assert yaml.safe_load(text)["params"] == params
    assert "\n  a_rather_long_name_7: 8 tokens\n" in text


def test_a_second_tuning_replaces_the_first_ones_comment():
    once = tuned_yaml(HEAD + "params: {}\n" + RULES, {"long": "16 tokens"}, ["yesterday", "less"])
    assert tuned_yaml(once, {"long": "8"}, LINES) == COMMENT + HEAD + "params: {long: 8}\n" + RULES


def test_plain_text_has_its_declarations_changed():
    text = (
        "param long = 32 tokens  # here\nparam short = 8\nplace tokens >= long in dram\nplace tokens > short in nvme\n"
    )
    text += "place otherwise in reject\n"
    tuned = tuned_text(compile_policy(text).document, {"long": "16 tokens", "short": "4"}, LINES)
    assert tuned == COMMENT + text.replace("32 tokens", "16 tokens").replace("= 8", "= 4")
    assert compile_policy(tuned).params["short"].value == 4


def test_long_lines_of_the_comment_are_broken_at_spaces():
    text = tuned_yaml(HEAD + "params: {}\n" + RULES, {"long": "8"}, ["today", "word " * 60])
    comment = text[: text.index("# A policy.")].splitlines()
    assert max(map(len, comment)) <= 118
    assert all(line.startswith("#") for line in comment)
    assert sum(line.count("word") for line in comment) == 60
    assert tuned_yaml(text, {"long": "16 tokens"}, LINES) == COMMENT + HEAD + "params: {long: 16 tokens}\n" + RULES
