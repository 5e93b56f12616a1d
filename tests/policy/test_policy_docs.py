"""Every example of docs/policy.md, and the README's policy, does what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from flashnest.policy import PolicyCheckError, compile_policy, load_tiering_file
from flashnest.policy.codes import CODES
from flashnest.policy.facts import FILL, MOVE_FACTS
from flashnest.policy.render import render
from flashnest.policy.testing import run_tests
from flashnest.record import record_bytes

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "policy.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)(?: (\w+=\w+))?\n(.*?)^```$", PAGE + README, re.MULTILINE | re.DOTALL)
POLICIES = [(told, text) for language, told, text in BLOCKS if language == "policy"]


def blocks(language: str) -> list[str]:
    return [text for written, _, text in BLOCKS if written == language]


@pytest.mark.parametrize(("told", "text"), POLICIES)
def test_example_compiles_or_is_told_its_code(told, text):
    severity, _, code = told.partition("=")
    if severity == "error":
        with pytest.raises(PolicyCheckError) as caught:
            compile_policy(text)
        found = caught.value.diagnostics
    else:
        found = compile_policy(text).diagnostics
    assert [(one.severity, one.code) for one in found] == ([(severity, code)] if told else [])


def test_page_shows_the_real_message_of_the_gap():
    gap = next(text for told, text in POLICIES if told == "error=T101")
    with pytest.raises(PolicyCheckError) as caught:
        compile_policy(gap, source="card.tier")

    assert blocks("text")[0] == f"{caught.value}\n"


def test_page_shows_the_real_message_of_the_ping_pong():
    shown = blocks("text")[1]
    moves = re.findall(r"^ \d \| (.*)$", shown, re.MULTILINE)

    policy = compile_policy("place otherwise in dram else nvme\n" + "\n".join(moves), source="mine.tier")

    assert f"{render(policy.diagnostics)}\n" == shown


@pytest.mark.parametrize(("number", "code"), [(2, "T103"), (3, "T104"), (4, "T105")])
def test_page_shows_the_real_message_of_a_warning(number, code):
    text = next(text for told, text in POLICIES if told == f"warning={code}")

    policy = compile_policy(text, source="card.tier")

    assert blocks("text")[number] == f"{render(policy.diagnostics)}\n"


def test_grammar_of_the_page_is_made_from_the_grammar():
    (page,) = blocks("ebnf")
    done = subprocess.run([sys.executable, ROOT / "tools" / "ebnf.py"], capture_output=True, text=True, check=True)

    assert page == done.stdout


def test_grammar_of_the_page_defines_every_name_that_it_uses():
    (page,) = blocks("ebnf")
    plain = re.sub(r'"[^"\s]*(?: \w+)?"|\? /.*?/ \?', "", page)
    defined = set(re.findall(r"^(\w+) +=", plain, re.MULTILINE))

    assert set(re.findall(r"\w+", plain)) - {"NEWLINE"} == defined


def test_page_says_the_size_of_the_default_record():
    assert f"; {record_bytes()} with the default row" in PAGE
    assert f"`bytes` is {record_bytes()} where not given" in PAGE


def test_tiering_file_of_the_page_passes_its_tests(tmp_path):
    (page,) = blocks("yaml")
    path = tmp_path / "page.yaml"
    path.write_text(page)

    assert [result.failure for result in run_tests(load_tiering_file(path))] == [""] * 4


def test_python_of_the_page_runs(capsys):
    (code,) = blocks("python")
    exec(compile(code, "docs/policy.md", "exec"), {})

    assert capsys.readouterr().out == "2 place otherwise in nvme (<Tier.NVME: 2>,)\n"


def test_every_word_has_a_heading_and_every_code_a_row():
    headings = " ".join(re.findall(r"^## (.*)$", PAGE, re.MULTILINE)).replace(",", "").split()
    words = ("param", "place", "otherwise", "in", "on", "else", "and", "or", "not", "reject", *MOVE_FACTS, FILL)
    moves = ("class", "keep", "promote", "demote", "evict", "after", "from", "to")
    clauses = ("when", "until", "by", "using", "at", "most", "cooldown", "min", "residency")
    goals = ("flush", "every", "require", "warn", "enforce", "labels")

    assert {*words, *moves, *clauses, *goals} <= set(headings)
    assert set(re.findall(r"^\| (T\d{3})", PAGE, re.MULTILINE)) == CODES.keys()
