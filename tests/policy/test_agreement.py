"""Compiled policies and checks against a naive interpreter, on random policies."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from moving import texts
from naive import acts, first_match, holds, words_of
from oracle import Oracle
from policies import NAMESPACES, policies, records

from flashnest.policy import Diagnostic, Policy, PolicyCheckError, RecordFacts, Severity, compile_policy
from flashnest.policy.diagnostics import Label
from flashnest.policy.format import format_statement
from flashnest.policy.parse import parse
from flashnest.policy.syntax import Source
from flashnest.record import Kind, namespace_id

DOMAIN = [
    RecordFacts(tokens, kind, space, nbytes)
    for tokens, kind, space, nbytes in product(
        (1, 2, 3, 8, 9, 10, 31, 32, 33, 254, 255),
        Kind,
        (*NAMESPACES, "other"),
        (1, 2, 104, 105, 4095, 4096, 4097, 4098, 2**32 - 1),
    )
]
"""A record for every cell that texts of `policies` can make: a cell starts at a constant or just above one."""

quick = settings(max_examples=60, deadline=None)


def reached(text: str, trial: int | None = None) -> list[int | None]:
    document, errors = parse(Source(text))
    assert not errors
    return [first_match(document, record, trial) for record in DOMAIN]


def compiled(text: str) -> Policy | PolicyCheckError:
    try:
        return compile_policy(text)
    except PolicyCheckError as error:
        return error


def errors_of(text: str) -> list[Diagnostic]:
    result = compiled(text)
    found = result.diagnostics if isinstance(result, PolicyCheckError) else ()
    return [one for one in found if one.severity is Severity.ERROR]


@quick
@given(policies.map(lambda text: f"{text}\nplace otherwise in nvme else dram"), st.lists(records, min_size=1))
def test_placement_agrees_with_naive_interpreter(text, some):
    document, errors = parse(Source(text))
    assert not errors
    wanted = [first_match(document, record) for record in some]
    policy = compiled(text)
    if isinstance(policy, PolicyCheckError):
        assert {one.code for one in errors_of(text)} == {"T102"}
        return
    arrays = (
        np.array([record.tokens for record in some], np.uint8),
        np.array([record.kind for record in some], np.uint8),
        np.array([namespace_id(record.namespace) for record in some], np.uint32),
        np.array([record.nbytes for record in some], np.uint32),
    )

    assert policy.placement.rule_codes(*arrays).tolist() == wanted
    chains = [policy.placement.chains[code] for code in policy.placement.chain_codes(*arrays)]
    assert chains == [policy.rules[rule].chain for rule in wanted]
    assert [policy.place(record) for record in some] == [policy.rules[rule] for rule in wanted]


@quick
@given(policies)
def test_gap_is_reported_exactly_when_some_record_has_no_rule(text):
    assert ("T101" in {one.code for one in errors_of(text)}) == (None in reached(text))


@quick
@given(policies)
def test_unreachable_is_reported_exactly_for_rules_that_win_no_record(text):
    places = parse(Source(text))[0].places
    number = {place.span.line: i for i, place in enumerate(places)}
    wins = {i for trial in range(len(places)) for i in (reached(text, trial) if not acts(places[trial]) else ())}

    found = {number[one.line] for one in errors_of(text) if one.code == "T102"}

    assert found == {i for i in range(len(places)) if i not in (reached(text) if acts(places[i]) else wins)}


@quick
@given(policies)
def test_overlaps_redundant_and_constant_rules_are_found_exactly(text):
    """One pass over the domain for all three: it is the slow part."""
    document, _ = parse(Source(f"{text}\nplace otherwise in nvme else dram"))
    policy = compiled(document.source.text)
    if isinstance(policy, PolicyCheckError):
        return
    oracle = Oracle(document, DOMAIN)
    lines = {place.span.line: i for i, place in enumerate(document.places)}
    found = {code: [one for one in policy.diagnostics if one.code == code] for code in ("T103", "T104", "T105")}

    constant = {lines[one.line] for one in found["T105"]}
    assert constant == {i for i in range(len(lines)) if oracle.has_constant_part(i)}
    assert {lines[one.line] for one in found["T104"]} == {i for i in range(len(lines)) if oracle.is_redundant(i)}
    pairs = [(line_of(one.secondary[0]), one.line) for one in found["T103"]]
    overlaps = {(lines[earlier], lines[later]) for earlier, later in pairs}
    wanted = set(oracle.overlaps())
    if constant:  # T103 looks at the rules without the parts that T105 finds
        return
    assert overlaps <= wanted
    assert len(overlaps) == min(5, len(wanted))
    for one in found["T103"]:
        witness = witness_of(one)
        assert first_match(document, witness) == lines[line_of(one.secondary[0])]
        assert witness.kind is Kind.NGRAM or witness.tokens == 32


def line_of(label: Label) -> int:
    return label.span.line


@quick
@given(policies)
def test_witness_of_a_gap_matches_no_rule(text):
    document, _ = parse(Source(text))
    gaps = [one for one in errors_of(text) if one.code == "T101" and one.message.startswith("no rule")]

    assert [first_match(document, witness_of(one)) for one in gaps] == [None] * len(gaps)


@quick
@given(policies)
def test_witness_of_an_unreachable_rule_is_taken_by_a_rule_above(text):
    document, _ = parse(Source(text))
    lines = [place.span.line for place in document.places]
    never = [one for one in errors_of(text) if one.code == "T102" and one.secondary]

    for one in never:
        index = lines.index(one.line)
        place, witness = document.places[index], witness_of(one)
        assert holds(place.condition, witness, words_of(document))
        assert first_match(document, witness) in range(index)


@quick
@given(policies)
def test_canonical_text_means_the_same(text):
    document, _ = parse(Source(text))
    canonical = "\n".join(format_statement(statement) for statement in document.statements)
    again, errors = parse(Source(canonical))

    assert not errors
    assert [format_statement(statement) for statement in again.statements] == canonical.split("\n")
    assert reached(canonical) == reached(text)


def witness_of(diagnostic: Diagnostic) -> RecordFacts:
    (text,) = (note.text for note in diagnostic.notes if note.kind == "example")
    return record_of(text)


def record_of(note: str) -> RecordFacts:
    words = dict(part.split(": ") for part in note.removeprefix("record: {").removesuffix("}").split(", "))
    rest = {"namespace": words.get("namespace", "default")}
    if "bytes" in words:
        rest["nbytes"] = int(words["bytes"])
    return RecordFacts(int(words["tokens"]), Kind[words["kind"].upper()], **rest)


WORDS = ("place", "param", "in", "on", "dram", "nvme", "tokens", "kind", ">=", "8", "32-token", "records", "..")
MOVES = (
    *("class", "keep", "promote", "demote", "evict", "from", "to", "when", "until", "by", "using", "at most", "after"),
    *("cooldown", "min residency", "fill", "hits", "idle", "popular", "90%", "80%", "60s", "2000 rec/s", "asc", "desc"),
    *("flush", "every", "require", "warn", "enforce", "lookup p99", "nvme life", '"long ones":', "otherwise", "5y"),
)
SIGNS = ("(", ")", ",", "\n", "and", "or", "not", "=", '"', "#", ":")


broken = st.builds(
    lambda text, at, word: f"{text[:at]} {word} {text[at:]}",
    texts,
    st.integers(0, 400),
    st.sampled_from(WORDS + MOVES + SIGNS),
)
"""Policies that were right before a word was put in."""


@settings(max_examples=300, deadline=None)
@given(st.text() | st.lists(st.sampled_from(WORDS + MOVES + SIGNS)).map(" ".join) | broken)
def test_any_text_is_a_policy_or_a_policy_error(text):
    result = compiled(text)

    if isinstance(result, PolicyCheckError):
        assert all(one.line >= 1 and one.column >= 1 for one in result.diagnostics)
        assert len(str(result).splitlines()) >= 2
    else:
        assert result.rules
