"""`policy explain` and `Policy.explain`: the rule, why not those before it, the nearest changes, moves in each tier."""

from __future__ import annotations

import json

import pytest
import typer.testing

from flashnest.cli.policy import app
from flashnest.cli.policy.files import tiering_path
from flashnest.errors import PolicyError
from flashnest.policy.compile import Policy, compile_policy
from flashnest.policy.facts import RecordFacts
from flashnest.policy.record_words import read_words
from flashnest.policy.tiering_file import load_tiering_file
from flashnest.record import Kind, Tier


@pytest.fixture(scope="module")
def hotcold() -> Policy:
    return load_tiering_file(tiering_path("hotcold")).compile()


def run(*args: str) -> typer.testing.Result:
    return typer.testing.CliRunner().invoke(app, ["explain", *args])


def test_new_record_names_its_rule_and_the_first_false_atom_of_each_before(hotcold):
    found = hotcold.explain(RecordFacts(9))

    assert (found.rule.number, found.answer) == (3, "in dram else nvme")
    assert [(one.rule.number, one.why) for one in found.passed] == [
        (1, "`tokens >= 32` is false: tokens is 9"),
        (2, "`tokens <= 8` is false: tokens is 9"),
    ]
    assert [(one.fact, one.new, one.rule.number) for one in found.changes] == [("tokens", "8", 2), ("tokens", "32", 1)]


def test_stored_record_names_what_hits_and_fill_would_change(hotcold):
    record = RecordFacts(9, hits=5, window_hits=((60, 2),), idle_s=5, age_s=5)
    found = hotcold.explain(record, Tier.DRAM, 0.91)

    assert (found.rule.number, found.answer) == (5, "demote to nvme")
    assert [(one.fact, one.old, one.new, one.answer) for one in found.changes] == [
        ("hits in 1min", "2", "3", "stay in dram"),
        ("fill", "91%", "90%", "stay in dram"),
    ]


def test_record_that_stays_says_why_no_rule_takes_it(hotcold):
    found = hotcold.explain(RecordFacts(9), Tier.DRAM, 0.5)

    assert found.rule is None
    assert [one.why for one in found.passed] == ["`fill > 90%` is false: fill is 50%"]
    assert found.moves[0] == (
        Tier.DRAM,
        "demote to nvme until fill < 80% by idle desc at most 20 MB/s when fill > 90% (rule 5)",
    )


def test_or_names_all_its_parts_and_not_what_it_denies():
    policy = compile_policy(
        'place (kind = chunk or namespace = "acme") and tokens >= 8 in dram\n'
        "place not (tokens >= 16 or tokens <= 3) in nvme\nplace otherwise in reject"
    )
    found = policy.explain(RecordFacts(16))

    assert [one.why for one in found.passed] == [
        '`kind = chunk` is false: kind is ngram; `namespace = "acme"` is false: namespace is "default"',
        "`not (tokens >= 16 or tokens <= 3)` is false: tokens is 16",
    ]
    assert [(one.fact, one.new) for one in found.changes] == [
        ("tokens", "15"),
        ("kind", "chunk"),
        ("namespace", '"acme"'),
    ]


@pytest.mark.parametrize("name", ["hotcold", "long_context", "code_assistant", "vram_first"])
def test_every_change_changes_the_answer_and_a_smaller_one_does_not(name):
    """Against the policy itself: at the value named the answer is the one named, one unit nearer it is the old one."""
    policy = load_tiering_file(tiering_path(name)).compile()
    for tokens in range(1, 40):
        for kind in Kind:
            found = policy.explain(RecordFacts(tokens, kind))
            for change in found.changes:
                if change.fact != "tokens":
                    continue
                step = 1 if int(change.new) < tokens else -1
                assert policy.place(RecordFacts(int(change.new), kind)) is change.rule
                near = policy.place(RecordFacts(int(change.new) + step, kind))
                assert (near.chain, near.admission) == (found.rule.chain, found.rule.admission)


def test_words_and_yaml_are_the_same_record():
    words = read_words(["tokens=9", "kind=chunk", "hits=5/60s:3", "idle=5s"], stored=True)

    assert words == read_words(["{tokens: 9, kind: chunk, hits: {total: 5, 60s: 3}, idle: 5s}"], stored=True)
    assert (words.tokens, words.kind, words.hits, words.window_hits) == (9, Kind.CHUNK, 5, ((60, 3),))


@pytest.mark.parametrize(
    ("words", "stored", "says"),
    [
        (["tokens"], False, "is no `fact=value`"),
        (["tokens=x"], False, "not a quantity"),
        (["tokens=9", "tokens=8"], False, "written twice"),
        (["kind=chunk"], False, "has no `tokens`"),
        (["tokens=9", "hits=3"], False, "--in nvme"),
        (["tokens=9", "hits=3/60s:5"], True, "more hits"),
        (["{tokens: 9"], False, "not YAML"),
        (["tokens=9", "namespace=a'b]:{"], False, ""),
        ([""], False, "has no `tokens`"),
    ],
)
def test_wrong_records_are_policy_errors(words, stored, says):
    if not says:
        assert read_words(words, stored=stored).tokens == 9
        return
    with pytest.raises(PolicyError, match=says):
        read_words(words, stored=stored)


def test_command_prints_where_the_rule_stands_and_json_has_the_same():
    text = run("hotcold", "tokens=9", "kind=chunk")
    plain = json.loads(run("hotcold", "{tokens: 9}", "--in", "dram", "--fill", "91%", "--format", "json").stdout)

    assert text.exit_code == 0
    assert "decided by rule 3 at " in text.stdout
    assert "tokens 9 -> 8: in nvme by rule 2" in text.stdout
    assert (plain["tier"], plain["fill"], plain["rule"]["number"]) == ("dram", 0.91, 5)


@pytest.mark.parametrize("extra", [("--in", "cram"), ("--in", "dram", "--fill", "3"), ("--fill", "101%")])
def test_wrong_tier_or_fill_is_a_policy_error(extra):
    assert isinstance(run("hotcold", "tokens=9", *extra).exception, PolicyError)
