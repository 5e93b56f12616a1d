"""The layout of `policy fmt`: what it looks like, what it keeps, that it is stable and never changes the meaning."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from untidy import TIDY, UNTIDY, meaning, untidy

import flashnest.policy.layout as layout_module
from flashnest.errors import PolicyError
from flashnest.policy import PolicyCheckError
from flashnest.policy.layout import layout
from flashnest.policy.layout_words import COMMENT, words_of
from flashnest.policy.parse import lex
from flashnest.policy.syntax import Source


def comments(text: str) -> list[str]:
    return [word.text for word in words_of(text, lex(text)) if word.kind == COMMENT]


def test_layout_of_everything():
    assert layout(Source(UNTIDY)) == TIDY
    assert layout(Source(TIDY)) == TIDY


@pytest.mark.parametrize(
    ("text", "tidy"),
    [
        ("", ""),
        ("\n\n # alone\n\n", "# alone\n"),
        ("otherwise in DRAM else REJECT", "place otherwise in dram else reject\n"),
        (">=9-token records in DRAM,otherwise in NVMe", ">=9-token records in DRAM, otherwise in NVMe\n"),
        ("9 .. 31-tokens record on NVMe", "9..31-tokens record on NVMe\n"),
        (
            ">=9-token records in DRAM, place otherwise on NVMe",
            "place tokens >= 9 in dram\nplace otherwise   on nvme\n",
        ),
        ("place >=9-token records in DRAM\n", "place tokens >= 9 in dram\n"),
        ("tokens in DRAM, # one\n\n, # two\n", "place tokens in dram  # one\n\n# two\n"),
        ("place namespace = 'say \"x\"' in dram", "place namespace = 'say \"x\"' in dram\n"),
        ("param x = 1_000 B # 'q", "param x = 1_000B  # 'q\n"),
        ("place (tokens >= 32\n tokens) in dram", "place (tokens >= 32\n       tokens) in dram\n"),
        ("(\n>=9-token records\n) in DRAM", "place (\n       tokens >= 9\n      ) in dram\n"),
        (
            "place tokens >= 8 # a\n # b\n\n\n # c\n in dram",
            "place tokens >= 8  # a\n      # b\n      # c\n      in dram\n",
        ),
    ],
)
def test_layout_of_one_thing(text, tidy):
    assert layout(Source(text)) == tidy
    assert layout(Source(tidy)) == tidy


def test_long_condition_stands_aside_of_the_columns():
    long = " and ".join(f'namespace != "tenant{i}"' for i in range(4))

    lines = layout(Source(f"place tokens = 3 in dram\nplace {long} in dram\nplace tokens = 12 in dram")).splitlines()

    assert lines == ["place tokens = 3  in dram", f"place {long} in dram", "place tokens = 12 in dram"]


def test_what_does_not_follow_the_grammar_is_refused_with_its_place():
    with pytest.raises(PolicyCheckError) as caught:
        layout(Source("place tokens >= in dram", "x.tier", first_line=4, column_offset=2))

    assert [(one.code, one.line, one.column) for one in caught.value.diagnostics] == [("T001", 4, 19)]


def test_layout_that_would_change_the_meaning_is_refused(monkeypatch):
    monkeypatch.setattr(layout_module, "aligned", lambda lines: ["place otherwise in nvme"])

    with pytest.raises(PolicyError, match="would change what the policy means"):
        layout(Source("place otherwise in dram"))


@settings(max_examples=50, deadline=None)
@given(untidy())
def test_layout_keeps_meaning_and_comments_and_is_stable(text):
    done = layout(Source(text))

    assert layout(Source(done)) == done
    assert meaning(done) == meaning(text)
    assert comments(done) == comments(text)
    assert "\n\n\n" not in done
    assert not done.startswith("\n")
    assert all(line == line.rstrip() for line in done.split("\n"))
