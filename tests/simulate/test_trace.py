"""`Trace`: what it takes and refuses, and what a part of one is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flashnest.errors import WorkloadError
from flashnest.simulate import INSERT, LOOKUP, Trace

GOOD: dict[str, Any] = {
    "name": "small",
    "source": "by hand",
    "record": [0, 1, 2, 0, 1, 2],
    "op": [LOOKUP, LOOKUP, LOOKUP, INSERT, LOOKUP, INSERT],
    "step": [0, 0, 0, 0, 2, 2],
    "group": [4, 4, 5, -1, 9, -1],
    "step_time_ms": [0, 1000, 1500],
    "tokens": [32, 16, 8],
    "kind": [0, 0, 0],
    "namespace": [7, 7, 7],
    "nbytes": [72, 72, 72],
    "namespaces": {7: "acme"},
}


def test_counts_of_a_trace() -> None:
    trace = Trace.checked(**GOOD)
    assert (len(trace), trace.steps, trace.records) == (6, 3, 3)
    assert (trace.lookups, trace.questions, trace.duration_s) == (4, 3, 1.5)
    assert trace.record.dtype == np.int32
    assert trace.namespaces == {7: "acme"}


def test_the_arrays_cannot_be_changed() -> None:
    trace = Trace.checked(**GOOD)
    with pytest.raises(ValueError, match="read-only"):
        trace.record[0] = 1


def test_a_part_starts_from_step_0_again() -> None:
    part = Trace.checked(**GOOD).part(1, 3)
    part.check()
    assert part.step.tolist() == [1, 1]
    assert part.record.tolist() == [1, 2]
    assert (part.steps, part.records, part.questions) == (2, 3, 1)


def test_parts_make_up_the_whole() -> None:
    trace = Trace.checked(**GOOD)
    parts = [trace.part(i, i + 1) for i in range(trace.steps)]
    assert np.concatenate([part.record for part in parts]).tolist() == trace.record.tolist()
    assert sum(part.questions for part in parts) == trace.questions
    assert len(trace.part(2, 1)) == 0


def test_an_empty_trace_is_one() -> None:
    empty: dict[str, Any] = {name: [] for name in GOOD if name not in ("name", "source", "namespaces")}
    trace = Trace.checked(name="empty", source="nothing", **empty)
    assert (len(trace), trace.steps, trace.records, trace.questions, trace.duration_s) == (0, 0, 0, 0, 0.0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"record": [0, 1, 2, 0, 1, 3]}, "an access to a record that is none of the 3"),
        ({"record": [0, 1, 2, 0, 1, -1]}, "an access to a record that is none of the 3"),
        ({"record": [0, 1, 2]}, "record, op, step and group differ in length"),
        ({"tokens": [32]}, "tokens, kind, namespace and nbytes differ in length"),
        ({"op": [0, 0, 0, 1, 0, 2]}, "an access that is neither LOOKUP (0) nor INSERT (1)"),
        ({"op": [0, 0, 1, 0, 0, 1], "group": [4, 4, -1, 5, 9, -1]}, "a LOOKUP after an INSERT of the same step"),
        ({"step": [0, 0, 0, 0, 2, 1]}, "step does not grow from 0 to at most 2"),
        ({"step": [0, 0, 0, 0, 2, 3]}, "step does not grow from 0 to at most 2"),
        ({"step": [0, 1, 1, 1, 2, 2]}, "a question that spans two steps"),
        ({"group": [4, 4, 5, 5, 9, -1]}, "group is not -1 for exactly the INSERTs"),
        ({"group": [4, 4, 5, -1, -1, -1]}, "group is not -1 for exactly the INSERTs"),
        ({"group": [5, 5, 4, -1, 9, -1]}, "the group numbers of LOOKUPs go down"),
        ({"step_time_ms": [0, 1000, 900]}, "a step begins before the one in front of it"),
        ({"kind": [0, 2, 0]}, "a record of a kind that is neither ngram (0) nor chunk (1)"),
        ({"nbytes": [72, 0, 72]}, "a record of 0 bytes or 0 tokens"),
        ({"tokens": [32, 16, 256]}, "tokens goes from 16 to 256, where 0 to 255 fit"),
        ({"tokens": [32.0, 16.0, 8.5]}, "tokens has values of type float64"),
        ({"tokens": [[32, 16, 8]]}, "tokens has 2 dimensions, not 1"),
    ],
)
def test_what_breaks_a_rule_is_refused_by_name(change: dict[str, Any], why: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        Trace.checked(**(GOOD | change))
    assert caught.value.why == why
    assert caught.value.what == "the trace by hand is not one"
