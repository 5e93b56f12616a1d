"""Fuzzing: sentences of the grammar and mutated bytes through parser, checker, fmt and tiering files.

`python -m benchmarks.policy_fuzz` does the same a million times.
"""

from __future__ import annotations

import json
from random import Random

import pytest
from fuzzing import Input, documents, drawn, outcome
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_texts import corpus, grammar, mutated, sentences

from flashnest.policy.codes import CODES
from flashnest.policy.parse import parse
from flashnest.policy.syntax import Source

ENDINGS = ("ok", "PolicyError", "TieringFileError", *CODES)
tools = st.sampled_from(("check", "fmt"))
suffixes = st.sampled_from((".tier", ".yaml"))


@settings(max_examples=120, deadline=None)
@given(st.randoms(use_true_random=False))
def test_any_input_is_a_policy_or_a_policy_error(random):
    assert outcome(drawn(random)) in ENDINGS


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode), suffixes, tools)
@example(b"rules: |2-\n\n  \n", ".yaml", "fmt")
@example("rules: |\n  otherwise in dram # \x85\n  # \u2028".encode(), ".yaml", "fmt")
@example(b"rules: !!binary |\n  eA==\n", ".yaml", "check")
@example(b"rules: &a |\n  otherwise in dram\ntests: *a\n", ".yaml", "check")
@example(b"\xff\xfeplace", ".tier", "check")
@example(b"otherwise in dram\x00", ".tier", "fmt")
def test_any_bytes_are_a_policy_or_a_policy_error(data, suffix, tool):
    assert outcome(Input(data, suffix, tool)) in ENDINGS


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_any_input_can_be_told_as_json_and_sarif(random):
    first, second = json.loads(documents(drawn(random)))

    assert len(first["files"][0]["findings"]) == len(second["runs"][0]["results"])


@pytest.mark.parametrize("text", corpus(), ids=range(len(corpus())))
def test_cases_are_formatted_or_do_not_parse(text):
    parses = not parse(Source(text))[1]

    assert outcome(Input(text.encode(), ".tier", "fmt")) == ("ok" if parses else "T001")


def test_sentences_follow_the_grammar():
    """Otherwise fuzzing would not get past the parser."""
    random = Random(7)
    read = [parse(Source(" ".join(grammar().statement(random)).replace("9" * 40, "9"))) for _ in range(300)]

    assert sum(not broken for _, broken in read) > 200
    assert len({type(document.statements[0]).__name__ for document, broken in read if not broken}) == 7


def test_inputs_are_of_every_sort():
    random = Random(11)
    found = [outcome(drawn(random)) for _ in range(400)]

    assert {"ok", "T001", "T402", "TieringFileError"} <= set(found)
    assert found.count("ok") > 20
    assert any(mutated("place otherwise in dram", random).startswith(b"place") for _ in range(50))
    assert len({sentences(random) for _ in range(50)}) > 40
