"""The exact text of diagnostics: what operators read, and what their logs are searched for."""

from __future__ import annotations

from textwrap import dedent

import pytest

from flashnest.policy import PolicyCheckError, compile_policy


def rendered(text: str, **where: object) -> str:
    with pytest.raises(PolicyCheckError) as caught:
        compile_policy(text, **where)
    return str(caught.value) + "\n"


def test_gap_of_the_cards_sentence():
    assert rendered(">=32-token records in DRAM, <=8-token records on NVMe", source="conf/card.tier") == dedent("""\
        error[T101]: no rule places records with tokens = 9..31
          --> conf/card.tier:1:29
           |
         1 | >=32-token records in DRAM, <=8-token records on NVMe
           | ------------------          ^^^^^^^^^^^^^^^^^ covers tokens = 1..8
           | |
           | covers tokens = 32..
           |
           = example: record: {tokens: 9, kind: ngram}
           = help: widen `tokens >= 32` to `tokens >= 9`, or add `place otherwise in dram else nvme` as the last rule
        """)


def test_rules_far_apart_leave_the_lines_between_out():
    text = "place otherwise in dram\n# one\n# two\n\tplace tokens = 3 in nvme\n"

    assert rendered(text, first_line=8, column_offset=2) == dedent("""\
        error[T102]: this rule can never match: rule 1 (line 8) takes all its records
          --> <policy>:11:4
            |
          8 | place otherwise in dram
            |       --------- rule 1 takes its records first
        ...
         11 |  place tokens = 3 in nvme
            |  ^^^^^^^^^^^^^^^^^^^^^^^^ unreachable
            |
            = example: record: {tokens: 3, kind: ngram}
            = help: move it above rule 1, or remove it
        """).replace("  -->", "   -->")


def test_three_labels_on_one_line_hang_below_each_other():
    text = "tokens <= 20 in dram, tokens >= 10 in nvme, tokens in 15..25 in dram"

    assert rendered(text).splitlines()[3:8] == [
        " 1 | tokens <= 20 in dram, tokens >= 10 in nvme, tokens in 15..25 in dram",
        "   | ------------          ------------          ^^^^^^^^^^^^^^^^^^^^^^^^ unreachable",
        "   | |                     |",
        "   | |                     rule 2 takes its records first",
        "   | rule 1 takes its records first",
    ]


def test_carets_stand_under_text_after_wide_characters():
    lines = rendered('place namespace = "\u6f22\u5b57" or tokns > 3 in dram, otherwise in dram').splitlines()

    assert lines[3].index("tokns") + 2 == lines[4].index("^")  # two characters, four cells


def test_every_finding_is_shown_in_file_order_and_warnings_last():
    text = "param unused = 3\nplace tokns > 3 in dram\nplace tokens > in dram\nflush 5min\n"

    heads = [line.split(":")[0] for line in rendered(text).splitlines() if line.startswith(("error", "warning"))]

    assert heads == ["error[T402]", "error[T001]", "error[T001]", "warning[T409]"]


def test_no_line_is_wrapped():
    text = f"place {' or '.join(f'tokens = {n}' for n in range(1, 90))} in dram"

    assert text in rendered(text)
