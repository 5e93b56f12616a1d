"""Runs the data files of `cases/`: what each record gets, and what each wrong policy is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flashnest.policy import PolicyCheckError, RecordFacts, compile_policy
from flashnest.policy.diagnostics import Diagnostic
from flashnest.policy.facts import KINDS
from flashnest.policy.render import render_one
from flashnest.record import record_bytes

CASES = Path(__file__).parent / "cases"


def placements() -> Iterator[Any]:
    for case in yaml.safe_load((CASES / "placement.yaml").read_text(encoding="utf-8")):
        for record, chain, rule in case["records"]:
            name = f"{case['policy'].split(chr(10))[0][:40]}-{record}"
            yield pytest.param(case["policy"], case.get("params"), record, chain, rule, id=name)


def errors() -> Iterator[Any]:
    for case in yaml.safe_load((CASES / "errors.yaml").read_text(encoding="utf-8")):
        yield pytest.param(case, id=f"{case['finds'][0][0]}-{case['policy'][:50]}")


def facts_of(record: dict[str, Any]) -> RecordFacts:
    return RecordFacts(
        record["tokens"],
        KINDS[record.get("kind", "ngram")],
        record.get("namespace", "default"),
        record.get("bytes", record_bytes()),
    )


@pytest.mark.parametrize(("policy", "params", "record", "chain", "rule"), list(placements()))
def test_record_goes_where_the_case_says(policy, params, record, chain, rule):
    decided = compile_policy(policy, params=params).place(facts_of(record))

    assert " else ".join(tier.name.lower() for tier in decided.chain) == ("" if chain == "reject" else chain)
    assert decided.number == rule


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


def place_of(diagnostic: Diagnostic) -> tuple[str, int, int]:
    return diagnostic.code, diagnostic.line, diagnostic.column
