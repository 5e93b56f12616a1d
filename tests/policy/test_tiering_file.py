"""Tiering files: true line numbers, wrong shapes, tests and what they say when they fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashnest.policy import PolicyCheckError, load_tiering_file
from flashnest.policy.testing import run_tests
from flashnest.policy.tiering_file import TieringFileError
from flashnest.record import Tier

SHIPPED = sorted((Path(__file__).parents[2] / "flashnest" / "conf" / "tiering").glob("*.yaml"))
FILE = """\
# what it is
tiers:
  dram: {capacity: 14GiB}
  nvme:
    capacity: ${platform.table.nvme}
params: {long: 48}

rules: |   # the policy

    param long = 32 tokens
    place tokens >= long in dram
    place otherwise in nvme
tests:
  - name: long is hot
    record: {tokens: 48, bytes: 4KiB}
    expect: dram
  - record: {tokens: 47 tokens, kind: chunk, namespace: acme}
    expect: [nvme]
    by: place   otherwise on NVMe
"""


def written(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def wrong(folder: Path, text: str, name: str = "mine.yaml") -> TieringFileError:
    with pytest.raises(TieringFileError) as caught:
        load_tiering_file(written(folder, text, name))
    return caught.value


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_option_passes_its_own_tests(path):
    file = load_tiering_file(path)

    results = run_tests(file)

    assert results
    assert [result.failure for result in results if not result.passed] == []
    assert {tier.name.lower() for tier in file.compile().tiers} <= set(file.tiers)


def test_hotcold_tests_both_sides_of_both_bounds():
    file = load_tiering_file(next(path for path in SHIPPED if path.stem == "hotcold"))

    assert {31, 32, 8, 9} <= {case.record.tokens for case in file.tests}


def test_good_file_is_read_whole(tmp_path):
    file = load_tiering_file(written(tmp_path, FILE))

    assert file.tiers == ("dram", "nvme")
    assert file.params == {"long": 48}
    assert (file.first_line, file.column_offset) == (9, 4)
    assert [(case.name, case.line, case.expect, case.whole_chain) for case in file.tests] == [
        ("long is hot", 14, (Tier.DRAM,), False),
        ("47 tokens, chunk", 17, (Tier.NVME,), True),
    ]
    assert file.tests[0].record.nbytes == 4096
    assert all(result.passed for result in run_tests(file))


@pytest.mark.parametrize(
    ("rules", "line", "column"),
    [
        ("rules: |\n  place tokns > 1 in dram\n", 1 + 1, 9),
        ("# x\nrules: |\n\n\n      place tokns > 1 in dram\n", 5, 13),
        ("rules: |2\n    place tokns > 1 in dram\n", 2, 11),
        ("rules: |-\n  # comment\n  place tokens > 1 in dram,\n    tokns > 2 in dram", 4, 5),
        ("rules: place tokns > 1 in dram\n", 1, 14),
        ("rules: 'place tokns > 1 in dram'\n", 1, 15),
        ("tests: []\nrules: |\r\n  place tokns > 1 in dram\r\n", 3, 9),
    ],
)
def test_diagnostic_points_at_the_line_of_the_file(tmp_path, rules, line, column):
    path = tmp_path / "mine.yaml"
    path.write_bytes(rules.encode())

    with pytest.raises(PolicyCheckError) as caught:
        load_tiering_file(path).compile()

    first = caught.value.diagnostics[0]
    assert (first.code, first.line, first.column) == ("T402", line, column)
    shown = str(caught.value).splitlines()
    assert shown[3].index("tokns") == shown[4].index("^")


def test_plain_text_file_is_a_policy_without_tiers(tmp_path):
    file = load_tiering_file(written(tmp_path, "place otherwise in vram\n", "mine.tier"))

    assert file.tiers is None
    assert file.compile().tiers == {Tier.VRAM}


def test_rule_on_a_tier_that_is_not_open_is_t405(tmp_path):
    text = "tiers: {dram: }\nrules: |\n  place otherwise in dram else nvme\n"

    with pytest.raises(PolicyCheckError) as caught:
        load_tiering_file(written(tmp_path, text)).compile()

    assert [(one.code, one.line, one.column) for one in caught.value.diagnostics] == [("T405", 3, 32)]


def test_gap_is_closed_with_a_tier_that_is_open(tmp_path):
    text = "tiers: {nvme: }\nrules: |\n  place tokens > 3 in nvme\n"

    with pytest.raises(PolicyCheckError, match="add `place otherwise in nvme`"):
        load_tiering_file(written(tmp_path, text)).compile()


@pytest.mark.parametrize(
    ("text", "place", "what", "fix"),
    [
        ("", ":1:1", "the file is empty", ""),
        ("- a\n", ":1:1", "is a mapping", ""),
        ("a: [\n", ":2:1", "not YAML", ""),
        ("x: 1\n", ":1:1", "unknown key `x`", "known here"),
        ("tiers: {}\nrule: |\n  x\n", ":2:1", "unknown key `rule`", "did you mean `rules`?"),
        ("tiers: {}\n", ":1:1", "no `rules`", "rules: |"),
        ("rules: [a]\n", ":1:1", "`rules` is the text", "rules: |"),
        ("rules: >\n  place a\n  b\n", ":1:1", "needs a `|` block", "rules: |"),
        ("rules: a\nrules: b\n", ":2:1", "written twice", "keep one"),
        ("rules: a\ntiers: {drum: }\n", ":2:9", "unknown tier `drum`", "did you mean `dram`?"),
        ("rules: a\ntiers: {dram: 14GiB}\n", ":2:9", "tier `dram` is a mapping", ""),
        ("rules: a\nparams: {x: [1]}\n", ":2:10", "param `x` is a number or a text", ""),
        ("rules: a\nparams: {x: true}\n", ":2:10", "param `x` is a number or a text", ""),
        ("rules: a\ntests: {}\n", ":2:1", "`tests` is a list", ""),
        ("rules: a\ntests:\n  - 3\n", ":3:5", "a test is a mapping", ""),
        ("rules: a\ntests:\n  - expect: dram\n", ":3:5", "no `record`", ""),
        ("rules: a\ntests:\n  - record: {tokens: 3}\n", ":3:5", "no `expect`", ""),
        ("rules: a\ntests:\n  - record: {kind: ngram}\n    expect: dram\n", ":3:5", "no `tokens`", ""),
        ("rules: a\ntests:\n  - record: {tokens: 0}\n    expect: dram\n", ":3:14", "from 1 to 255", ""),
        ("rules: a\ntests:\n  - record: {tokens: 3MB}\n    expect: dram\n", ":3:14", "`3MB` is not a number", ""),
        ("rules: a\ntests:\n  - record: {tokens: 3, bytes: 4kb}\n    expect: dram\n", ":3:25", "unit 'kb'", "4kB"),
        ("rules: a\ntests:\n  - record: {tokens: 3, kind: gram}\n    expect: dram\n", ":3:25", "kind `gram`", "ngram"),
        ("rules: a\ntests:\n  - record: {tokens: 3, size: 4}\n    expect: dram\n", ":3:25", "unknown fact `size`", ""),
        ("rules: a\ntests:\n  - record: {tokens: 3}\n    expect: drm\n", ":4:5", "unknown tier `drm`", "`dram`"),
        ("rules: a\ntests:\n  - record: {tokens: 3}\n    expect: [drm]\n", ":4:14", "unknown tier `drm`", "`dram`"),
        ("rules: a\ntests:\n  - record: {tokens: 3}\n    expect: {}\n", ":4:5", "`expect` is a tier", ""),
        (
            "rules: a\ntests:\n  - record: {tokens: 3}\n    expect: dram\n    by: [1]\n",
            ":5:5",
            "`by` is a rule's number, label or text",
            "",
        ),
        *(
            (f"rules: a\ntests:\n  - {test}\n", f":3:{column}", what, fix)
            for test, column, what, fix in (
                ("{record: {tokens: 3, hits: 4}, expect: dram}", 26, "`hits` changes", "in: nvme"),
                ("{record: {tokens: 3}, fill: 9%, expect: dram}", 27, "`fill` is how full", "in: dram"),
                ("{record: {tokens: 3}, expect: stay}", 27, "`expect` is a tier", "in: nvme"),
                ("{record: {tokens: 3}, expect: {promote: dram}}", 27, "`expect` is a tier", "in: nvme"),
                ("{record: {tokens: 3}, in: drm, expect: stay}", 27, "unknown tier `drm`", "`dram`"),
                ("{record: {tokens: 3}, in: dram, expect: nvme}", 37, "not what a move", "`{demote: nvme}`"),
                ("{record: {tokens: 3}, in: dram, expect: [nvme]}", 37, "not what a move", "`stay`"),
                ("{record: {tokens: 3}, in: dram, expect: {move: nvme}}", 37, "not what a move", "`stay`"),
                ("{record: {tokens: 3}, in: dram, expect: {demote: nvm}}", 46, "tier `nvm`", "`nvme`"),
                ("{record: {tokens: 3}, in: dram, expect: {demote: nvme, promote: nvme}}", 37, "not what", "`stay`"),
                ("{record: {tokens: 3}, in: dram, fill: 101%, expect: stay}", 37, "never `101%` full", ""),
                ("{record: {tokens: 3}, in: dram, fill: 95, expect: stay}", 37, "share such as `95%`", ""),
                ("{record: {tokens: 3, hits: 5000}, in: dram, expect: stay}", 26, "from 0 to 4095", ""),
                ("{record: {tokens: 3, hits: {60s: 2, total: 1}}, in: dram, expect: stay}", 26, "more hits", ""),
                ("{record: {tokens: 3, hits: {60s: 2, 1h: 1}}, in: dram, expect: stay}", 26, "more hits", ""),
                ("{record: {tokens: 3, hits: {60: 2}}, in: dram, expect: stay}", 33, "a time such as", ""),
                ("{record: {tokens: 3, hits: {5ms: 2}}, in: dram, expect: stay}", 33, "whole seconds", "60s"),
                ("{record: {tokens: 3, hits: [2]}, in: dram, expect: stay}", 26, "is not a quantity", ""),
                ("{record: {tokens: 3, idle: 5}, in: dram, expect: stay}", 26, "a time such as `60s`", ""),
                ("{record: {tokens: 3, idle: 400d}, in: dram, expect: stay}", 26, "whole seconds up to", ""),
                ("{record: {tokens: 3, idle: 2h, age: 1h}, in: dram, expect: stay}", 36, "longer than it is", "`age`"),
                ("{record: {tokens: 3, refs: 1024}, in: dram, expect: stay}", 26, "from 0 to 1023", ""),
                ("{record: {tokens: 3, accept: 50}, in: dram, expect: stay}", 26, "share such as", ""),
                ("{record: {tokens: 3, accept: 5.5%}, in: dram, expect: stay}", 26, "from 0 to 100", ""),
                ("{record: {tokens: 3, fill: 5%}, in: dram, expect: stay}", 26, "unknown fact `fill`", ""),
                (f'{{record: {{tokens: "{"9" * 5000}"}}, expect: dram}}', 15, "too long to read", ""),
            )
        ),
    ],
)
def test_wrong_shape_is_one_clear_error(tmp_path, text, place, what, fix):
    error = wrong(tmp_path, text)

    assert f"mine.yaml{place}: " in error.what
    assert what in error.what
    assert fix in error.fix
    assert error.exit_code == 2


def test_file_that_cannot_be_read_is_one_clear_error(tmp_path):
    with pytest.raises(TieringFileError, match=r"cannot read .*nix\.yaml\nNo such file"):
        load_tiering_file(tmp_path / "nix.yaml")
    with pytest.raises(TieringFileError, match="cannot read"):
        load_tiering_file(tmp_path.parent / "folder.yaml")
    assert "must end in one of .yaml" in wrong(tmp_path, "x", "mine.json").fix
    (tmp_path / "latin.yaml").write_bytes(b"rules: caf\xe9\n")
    with pytest.raises(TieringFileError, match="not UTF-8"):
        load_tiering_file(tmp_path / "latin.yaml")


def test_failing_tests_say_record_expectation_and_rule(tmp_path):
    text = FILE.replace("expect: dram", "expect: nvme").replace("by: place   otherwise on NVMe", "by: 1")
    path = written(tmp_path, text)

    first, second = run_tests(load_tiering_file(path))

    assert first.failure.splitlines() == [
        f"{path}:14: long is hot",
        "  record:   {tokens: 48, kind: ngram, namespace: default, bytes: 4096}",
        "  expected: nvme",
        "  got:      dram by rule 1 (line 11): place tokens >= long in dram",
    ]
    assert second.failure.splitlines()[2:] == [
        "  expected: nvme by rule 1",
        "  got:      nvme by rule 2 (line 12): place otherwise in nvme",
        "  rule 1:   place tokens >= long in dram (line 11)",
        "            not taken: `tokens >= 48` is false: tokens is 47",
    ]


MOVING = """\
rules: |
  place otherwise in dram else nvme
  keep refs >= 9 in dram
  demote idle > 1h from dram to nvme when fill > 90% until fill < 80%
tests:
  - {name: gone, record: {tokens: 3, idle: 2h}, in: dram, fill: 90%, expect: {demote: nvme}}
  - {name: kept, record: {tokens: 3, idle: 2h, refs: 9}, in: dram, fill: 99.5%, expect: evict}
  - {record: {tokens: 3, idle: 2h, hits: {1h: 0, total: 2}}, in: dram, fill: 99%, expect: {demote: nvme}, by: 2}
  - {name: good, record: {tokens: 3, idle: 2h}, in: dram, fill: 99%, expect: {demote: NVMe}, by: 3}
"""


def test_failing_tests_of_moves_say_record_tier_and_rule(tmp_path):
    path = written(tmp_path, MOVING)

    results = run_tests(load_tiering_file(path))

    assert [result.failure.splitlines() for result in results] == [
        [
            f"{path}:6: gone",
            "  record:   {tokens: 3, kind: ngram, namespace: default, bytes: 72, hits: 0, idle: 2h, age: 2h, refs: 0, "
            "accept: 100%} in dram, fill 90%",
            "  expected: demote to nvme",
            "  got:      stay, no rule takes it",
        ],
        [
            f"{path}:7: kept",
            "  record:   {tokens: 3, kind: ngram, namespace: default, bytes: 72, hits: 0, idle: 2h, age: 2h, refs: 9, "
            "accept: 100%} in dram, fill 99.5%",
            "  expected: evict",
            "  got:      stay by rule 2 (line 3): keep refs >= 9 in dram",
        ],
        [
            f"{path}:8: 3 tokens, ngram in dram",
            "  record:   {tokens: 3, kind: ngram, namespace: default, bytes: 72, hits: {total: 2, 1h: 0}, idle: 2h, "
            "age: 2h, refs: 0, accept: 100%} in dram, fill 99%",
            "  expected: demote to nvme by rule 2",
            "  got:      demote to nvme by rule 3 (line 4): "
            "demote idle > 1h from dram to nvme when fill > 90% until fill < 80%",
            "  rule 2:   keep refs >= 9 in dram (line 3)",
            "            not taken: `refs >= 9` is false: refs is 0",
        ],
        [],
    ]


@pytest.mark.parametrize(
    ("expect", "passes"),
    [("dram", True), ("[dram, nvme]", True), ("[dram]", False), ("nvme", False), ("reject", False), ("DRAM", True)],
)
def test_expectation_is_a_first_tier_or_a_whole_chain(tmp_path, expect, passes):
    text = f"rules: place otherwise in dram else nvme\ntests:\n  - record: {{tokens: 3}}\n    expect: {expect}\n"

    (result,) = run_tests(load_tiering_file(written(tmp_path, text)))

    assert result.passed == passes


def test_rejected_record_and_unknown_rule_are_told_apart(tmp_path):
    text = """\
rules: place otherwise in reject
tests:
  - {record: {tokens: 3}, expect: reject}
  - {record: {tokens: 3}, expect: reject, by: place otherwise in dram}
  - {record: {tokens: 3}, expect: reject, by: 2}
  - {record: {tokens: 3}, expect: dram}
  - {record: {tokens: 3}, expect: reject, by: 0}
"""
    results = run_tests(load_tiering_file(written(tmp_path, text)))

    assert [result.passed for result in results] == [True, False, False, False, False]
    assert "by `place otherwise in dram`, which is no rule of the policy" in results[1].failure
    assert "by `2`, which is no rule of the policy" in results[2].failure
    assert "got:      reject by rule 1" in results[3].failure
    assert "by `0`, which is no rule of the policy" in results[4].failure
