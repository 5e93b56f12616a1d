"""Random policies and records: compiled policies and findings against the naive interpreter.

`python -m benchmarks.policy_fuzz` does the same for a million pairs.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from agreeing import can_be, disagreements
from random_policies import Pool, move_text, place_text, pool

from flashnest.policy import PolicyCheckError, RecordFacts, compile_policy
from flashnest.policy.placement import Placement


@pytest.fixture(scope="module")
def records() -> Pool:
    return pool(3000, seed=5)


@pytest.mark.parametrize("kind", [place_text, move_text])
def test_compiled_policies_agree_with_the_interpreter(records, kind):
    random, numbers = Random(17), np.random.default_rng(17)
    for _ in range(80):
        text = kind(random)
        assert list(disagreements(text, records, numbers.integers(0, 3000, 60))) == [], text


@pytest.mark.parametrize("kind", [place_text, move_text])
def test_some_of_the_policies_compile_and_some_do_not(kind):
    random, compiled = Random(3), 0
    for _ in range(60):
        try:
            compiled += bool(compile_policy(kind(random)).rules)
        except PolicyCheckError as error:
            assert {"T101", "T102"} & {one.code for one in error.diagnostics}  # noqa: PT017
    assert 15 < compiled < 60


def test_half_of_the_records_can_be(records):
    assert 1500 <= sum(can_be(record) for record in records.records) < 2500
    assert len({record.idle_s for record in records.records if can_be(record)}) > 10
    assert not can_be(RecordFacts(8, idle_s=2, age_s=1))
    assert not can_be(RecordFacts(8, hits=1, window_hits=((60, 2),)))
    assert not can_be(RecordFacts(8, hits=3, window_hits=((60, 1),), idle_s=61, age_s=61))


def test_a_wrong_placement_would_be_seen(records, monkeypatch):
    monkeypatch.setattr(Placement, "rule_codes", lambda self, tokens, *rest: np.zeros(len(tokens), np.uint16))

    found = list(disagreements("place tokens > 8 in dram\nplace otherwise in nvme", records, np.arange(50)))

    assert found
    assert "is placed by rule 1, not 1" in found[0]
