"""Runs the data files of `cases/`: what each record gets, and what each wrong policy is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flashnest.policy import PolicyCheckError, RecordFacts, Rule, compile_policy
from flashnest.policy.cases import read_tests
from flashnest.policy.diagnostics import Diagnostic, Severity
from flashnest.policy.facts import KINDS, REJECT
from flashnest.policy.format import format_statement
from flashnest.policy.parse import parse
from flashnest.policy.render import render_one
from flashnest.policy.syntax import Source
from flashnest.policy.testing import run_test
from flashnest.policy.tiering_file import TieringFile
from flashnest.policy.yaml_nodes import read_yaml
from flashnest.record import record_bytes

CASES = Path(__file__).parent / "cases"


def placements() -> Iterator[Any]:
    for case in yaml.safe_load((CASES / "placement.yaml").read_text(encoding="utf-8")):
        for record, chain, rule, *label in case["records"]:
            name = f"{case['policy'].split(chr(10))[0][:40]}-{record}"
            yield pytest.param(case["policy"], case.get("params"), record, chain, rule, *(label or [None]), id=name)


def trials() -> Iterator[Any]:
    for case in yaml.safe_load((CASES / "trials.yaml").read_text(encoding="utf-8")):
        for record, trial, chain, rule in case["records"]:
            yield pytest.param(case["policy"], record, trial, chain, rule, id=f"{record}-{trial}")


def goals() -> Iterator[Any]:
    for case in yaml.safe_load((CASES / "goals.yaml").read_text(encoding="utf-8")):
        yield pytest.param(case, id=case["policy"][-60:])


def errors() -> Iterator[Any]:
    for case in yaml.safe_load((CASES / "errors.yaml").read_text(encoding="utf-8")):
        yield pytest.param(case, id=f"{case['finds'][0][0]}-{case['policy'][:50]}")


def warnings() -> Iterator[Any]:
    for case in yaml.safe_load((CASES / "warnings.yaml").read_text(encoding="utf-8")):
        yield pytest.param(case, id=f"{[found[0] for found in case['finds']]}-{case['policy'][34:84]}")


def moves() -> Iterator[Any]:
    for case in yaml.safe_load((CASES / "moves.yaml").read_text(encoding="utf-8")):
        policy = compile_policy(case["policy"], params=case.get("params"))
        file = TieringFile(CASES / "moves.yaml", case["policy"])
        for test in read_tests(read_yaml(yaml.safe_dump(case["tests"]))):
            yield pytest.param(policy, file, test, id=f"{case['policy'].split(chr(10))[0][:40]}-{test.name}")


def facts_of(record: dict[str, Any]) -> RecordFacts:
    return RecordFacts(
        record["tokens"],
        KINDS[record.get("kind", "ngram")],
        record.get("namespace", "default"),
        record.get("bytes", record_bytes()),
    )


@pytest.mark.parametrize(("policy", "params", "record", "chain", "rule", "label"), list(placements()))
def test_record_goes_where_the_case_says(policy, params, record, chain, rule, label):
    decided = compile_policy(policy, params=params).place(facts_of(record))

    assert chain_of(decided) == chain
    assert (decided.number, decided.name) == (rule, label)


@pytest.mark.parametrize(("policy", "record", "trial", "chain", "rule"), list(trials()))
def test_trial_decides_where_it_is_asked_to(policy, record, trial, chain, rule):
    decided = compile_policy(policy).place(facts_of(record), trial)

    assert (chain_of(decided), decided.number) == (chain, rule)


@pytest.mark.parametrize("case", list(goals()))
def test_policy_asks_of_the_table_what_the_case_says(case):
    policy = compile_policy(case["policy"], params=case.get("params"))

    if "flush" in case:
        flush = policy.flush
        assert case["flush"] == (None if flush is None else [flush.every_s, flush.most_bytes_per_s])
    found = [[one.metric, one.operator, one.bound, one.level, one.name] for one in policy.requirements]
    assert found == case.get("requirements", [])
    assert not policy.diagnostics


@pytest.mark.parametrize(("written", "canonical"), yaml.safe_load((CASES / "canonical.yaml").read_text("utf-8")))
def test_statement_has_the_canonical_form_of_the_case(written, canonical):
    for text in (written, canonical):
        document, broken = parse(Source(text))
        assert not broken
        assert [format_statement(statement) for statement in document.statements] == [canonical]


@pytest.mark.parametrize(("policy", "file", "test"), list(moves()))
def test_moves_do_with_the_record_what_the_case_says(policy, file, test):
    assert run_test(policy, file, test).failure == ""


@pytest.mark.parametrize("case", list(warnings()))
def test_policy_that_compiles_is_warned_of_what_and_where(case):
    found = compile_policy(case["policy"]).diagnostics

    assert [place_of(one) for one in found] == [tuple(wanted[:3]) for wanted in case["finds"]]
    assert {one.severity for one in found} <= {Severity.WARNING}
    texts = [render_one(one) for one in found]
    assert all(wanted[3] in text for wanted, text in zip(case["finds"], texts, strict=True)), texts


@pytest.mark.parametrize("case", list(errors()))
def test_wrong_policy_is_told_what_and_where(case):
    with pytest.raises(PolicyCheckError) as caught:
        compile_policy(case["policy"], params=case.get("params"), tiers=case.get("tiers"))

    found = list(caught.value.diagnostics)
    if case.get("any_order"):
        found.sort(key=lambda one: [one.code, one.line, one.column])
    assert [place_of(one) for one in found] == [tuple(wanted[:3]) for wanted in case["finds"]]
    texts = [render_one(one) for one in found]
    if case.get("any_order"):
        assert all(any(wanted[3] in text for text in texts) for wanted in case["finds"]), texts
    else:
        assert all(wanted[3] in text for wanted, text in zip(case["finds"], texts, strict=True)), texts


def chain_of(rule: Rule) -> str:
    return " else ".join(tier.name.lower() for tier in rule.chain) or REJECT


def place_of(diagnostic: Diagnostic) -> tuple[str, int, int]:
    return diagnostic.code, diagnostic.line, diagnostic.column
