"""Compiled moves and their checks against a naive interpreter, on random policies."""

from __future__ import annotations

import re

import numpy as np
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from moving import LIKELY, few_texts, stored_records, texts
from naive import acting, acts, decided, holds, moves, words_of

from flashnest.policy import Diagnostic, Policy, PolicyCheckError, RecordFacts, Severity, compile_policy
from flashnest.policy.cases import read_tests
from flashnest.policy.format import format_statement
from flashnest.policy.parse import parse
from flashnest.policy.syntax import Document, Keep, Move, Source
from flashnest.policy.yaml_nodes import read_yaml
from flashnest.record import FactArrays, Tier, namespace_id

quick = settings(max_examples=60, deadline=None)


def read(text: str) -> Document:
    document, errors = parse(Source(text))
    assert not errors
    return document


def compiled(text: str) -> tuple[Policy | None, tuple[Diagnostic, ...]]:
    """Return the policy, None where some move never acts, and what was said about the moves."""
    try:
        policy = compile_policy(text)
    except PolicyCheckError as error:
        if {one.code for one in error.diagnostics if one.severity is Severity.ERROR} == {"T102"}:
            return None, error.diagnostics
        raise
    return policy, policy.diagnostics


def arrays(records: list[RecordFacts], windows_s: tuple[int, ...]) -> FactArrays:
    def of(numbers: list[int], kind: type) -> np.ndarray:
        return np.array(numbers, kind)

    return FactArrays(
        tokens=of([one.tokens for one in records], np.uint8),
        kind=of([one.kind for one in records], np.uint8),
        namespace=of([namespace_id(one.namespace) for one in records], np.uint32),
        nbytes=of([one.nbytes for one in records], np.uint32),
        hits=of([one.hits for one in records], np.uint32),
        idle_s=of([one.idle_s for one in records], np.uint32),
        age_s=of([one.age_s for one in records], np.uint32),
        refs=of([one.refs for one in records], np.uint32),
        accept_percent=of([one.accept_percent for one in records], np.uint8),
        window_hits=tuple(of([one.hits_in(window) for one in records], np.uint32) for window in windows_s),
    )


@settings(max_examples=100, deadline=None)
@given(texts, st.lists(stored_records(), min_size=1, max_size=30))
def test_matches_agrees_with_naive_interpreter(text, records):
    policy, _ = compiled(text)
    if policy is None:
        return
    document = read(text)
    wanted = [moves(document, record) for record in records]
    facts = arrays(records, policy.moves.windows_s)

    for i, rule in enumerate(policy.moves.rules):
        found = rule.matches(facts)
        assert found.dtype == np.bool_
        assert found.tolist() == [one[i] for one in wanted], rule.text
        assert [rule.takes(record, 0.95) for record in records] == [one[i] for one in wanted]


@quick
@given(texts)
def test_canonical_text_of_moves_means_the_same(text):
    document = read(text)
    canonical = [format_statement(statement) for statement in document.statements]
    again = read("\n".join(canonical))

    assert [format_statement(statement) for statement in again.statements] == canonical
    for record in LIKELY[::97]:
        assert moves(again, record) == moves(document, record)


@quick
@given(few_texts)
def test_moves_that_never_act_are_found_exactly(text):
    document = read(text)
    takes = [acting(document, record) for record in LIKELY]
    never = {rule.span.line for i, rule in enumerate(document.moves) if not any(one[i] for one in takes)}

    _, found = compiled(text)

    assert {one.line for one in found if one.code == "T102"} == never


@settings(max_examples=100, deadline=None)
@given(few_texts)
def test_ping_pong_is_found_exactly_and_its_witness_is_taken_by_both(text):
    document = read(text)
    rules = document.moves
    takes = [acting(document, record) for record in LIKELY]
    wanted = {
        (up.span.line, back.span.line)
        for i, up in enumerate(rules)
        for k, back in enumerate(rules)
        if is_move(up, "promote") and is_move(back, "demote") and any(one[i] and one[k] for one in takes)
    }

    _, diagnostics = compiled(text)

    found = [one for one in diagnostics if one.code == "T301"]
    assert {(one.line, int(re.findall(r"\(line (\d+)\)", one.message)[0])) for one in found} == wanted
    for one in found:
        record = witness(one)
        lines = {rule.span.line: rule for rule in rules}
        for line in (one.line, one.secondary[0].span.line):
            assert holds(lines[line].condition, record, words_of(document))
        assert record.idle_s <= record.age_s


def is_move(rule: Keep | Move, action: str) -> bool:
    return isinstance(rule, Move) and rule.action == action and acts(rule)


@settings(max_examples=100, deadline=None)
@given(few_texts, st.sampled_from(("dram", "nvme")))
def test_moves_that_are_redundant_change_nothing_when_they_are_gone(text, tier):
    document = read(text)
    policy, found = compiled(text)
    if policy is None:
        return
    redundant = {one.line for one in found if one.code == "T104"}

    for i, rule in enumerate(document.moves):
        if rule.span.line in redundant:
            assert acts(rule)
            some = LIKELY[::7]
            gone = [decided(document, record, tier, without=i) for record in some]
            assert gone == [decided(document, record, tier) for record in some]


@quick
@given(texts, st.lists(stored_records(), min_size=1, max_size=10), st.sampled_from(Tier))
def test_policy_decides_about_stored_records_as_the_naive_interpreter(text, records, tier):
    policy, _ = compiled(text)
    if policy is None:
        return
    document = read(text)
    rules = policy.moves.rules

    for record in records:
        rule = policy.move(record, tier, fill=0.95)
        assert rule is None or rule.acts
        found = [] if rule is None else [rule.action]
        if rule is not None and rule.target is not None:
            found.append(rule.target.name.lower())
        assert found == decided(document, record, tier.name.lower()).split()
    assert [one.acts for one in rules] == [acts(one) for one in document.moves]
    assert policy.moves.acting.rules == tuple(one for one in rules if one.acts)
    assert [one.level == "enforce" for one in policy.requirements] == [acts(one) for one in document.requirements]
    assert (policy.flush is not None) == bool(document.flushes)


def witness(diagnostic: Diagnostic) -> RecordFacts:
    """Read the record of a finding as a tiering file would."""
    (text,) = (note.text for note in diagnostic.notes if note.kind == "example")
    entry = f"- {{{text}, in: nvme, expect: stay}}"
    assert yaml.safe_load(entry)
    (case,) = read_tests(read_yaml(entry))
    return case.record
