"""Traces for tests of the simulation: drawn by hypothesis, or made by a seed."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from flashnest.record import namespace_id
from flashnest.simulate.trace import INSERT, LOOKUP, NO_GROUP, Trace

NAMES = ("default", "batch")
NAMESPACES = {namespace_id(name): name for name in NAMES}


def trace_of(
    steps: list[tuple[int, list[list[int]], list[int]]], *, tokens: list[int], kinds: list[int], names: list[str]
) -> Trace:
    """Make a trace of steps: (ms, questions, inserts)."""
    record, op, step, group, times = [], [], [], [], []
    question = 0
    for number, (ms, questions, inserts) in enumerate(steps):
        times.append(ms)
        for candidates in questions:
            for one in candidates:
                record.append(one)
                op.append(LOOKUP)
                step.append(number)
                group.append(question)
            question += 1
        for one in inserts:
            record.append(one)
            op.append(INSERT)
            step.append(number)
            group.append(NO_GROUP)
    return Trace.checked(
        name="drawn",
        source="a test",
        record=np.array(record, np.int64),
        op=np.array(op, np.int64),
        step=np.array(step, np.int64),
        group=np.array(group, np.int64),
        step_time_ms=np.array(times, np.int64),
        tokens=tokens,
        kind=kinds,
        namespace=[namespace_id(name) for name in names],
        nbytes=[72] * len(tokens),
        namespaces=NAMESPACES,
    )


@st.composite
def drawn_traces(draw: st.DrawFn, *, records: int = 70, steps: int = 30) -> Trace:
    """Draw a trace: hypothesis chooses its shape and a seed, numpy its accesses."""
    seed = draw(st.integers(0, 2**32 - 1))
    count = draw(st.integers(1, records))
    length = draw(st.integers(1, steps))
    gap_ms = draw(st.sampled_from([0, 20, 700, 4000, 40_000]))
    busy = draw(st.integers(1, 25))
    skew = draw(st.sampled_from([0.0, 0.8, 1.3]))
    return seeded_trace(seed, records=count, steps=length, gap_ms=gap_ms, busy=busy, skew=skew)


def seeded_trace(seed: int, *, records: int, steps: int, gap_ms: int, busy: int, skew: float) -> Trace:
    """Make a trace: questions of one to three candidates by a power law, and as many inserts, up to `busy` a step."""
    random = np.random.default_rng(seed)
    weight = 1.0 / np.arange(1, records + 1) ** skew
    weight = random.permutation(weight / weight.sum())
    made, now = [], 0
    for _ in range(steps):
        now += int(random.integers(0, gap_ms + 1))
        asked = random.choice(records, (int(random.integers(0, busy + 1)), 3), p=weight)
        questions = [row[: random.integers(1, 4)].tolist() for row in asked]
        made.append((now, questions, random.choice(records, int(random.integers(0, busy + 1)), p=weight).tolist()))
    return trace_of(
        made,
        tokens=random.choice([4, 8, 16, 32], records).tolist(),
        kinds=random.choice([0, 0, 0, 1], records).tolist(),
        names=random.choice(NAMES, records).tolist(),
    )
