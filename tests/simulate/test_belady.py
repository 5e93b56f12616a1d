"""Belady's optimum against all that a table could do, and as a bound of what policies do."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import drawn_traces, trace_of

from flashnest.policy import compile_policy
from flashnest.record import Tier
from flashnest.simulate import INSERT, TierOptions, Trace, simulate
from flashnest.simulate.belady import most_answered
from flashnest.simulate.room import rooms_of


def best_of_all(trace: Trace, room: int) -> int:
    """Return the most questions answered by any choice of what to keep: every reachable set of records is tried."""
    best: dict[frozenset[int], int] = {frozenset(): 0}
    at = 0
    while at < len(trace):
        following: dict[frozenset[int], int] = {}
        if trace.op[at] == INSERT:
            new = int(trace.record[at])
            for kept, hits in best.items():
                both = kept | {new}
                options = [both] if len(both) <= room else [frozenset(c) for c in combinations(both, room)]
                for one in options:
                    following[one] = max(following.get(one, -1), hits)
            at += 1
        else:
            end = at
            while end < len(trace) and trace.group[end] == trace.group[at]:
                end += 1
            asked = set(trace.record[at:end].tolist())
            following = {kept: hits + bool(kept & asked) for kept, hits in best.items()}
            at = end
        best = following
    return max(best.values())


def asked_then_learnt(asks: list[list[int]], records: int) -> Trace:
    """Make a trace of one question a step, whose candidates are inserted at its end."""
    steps = [(1000 * i, [asked], asked) for i, asked in enumerate(asks)]
    return trace_of(steps, tokens=[8] * records, kinds=[0] * records, names=["default"] * records)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(asks=st.lists(st.integers(0, 5), max_size=14), room=st.integers(1, 4))
def test_with_one_candidate_it_is_exact(asks: list[int], room: int) -> None:
    trace = asked_then_learnt([[one] for one in asks], 6)
    assert most_answered(trace, room) == best_of_all(trace, room)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    asks=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True), max_size=9), room=st.integers(1, 3)
)
def test_with_several_candidates_nothing_does_better(asks: list[list[int]], room: int) -> None:
    trace = asked_then_learnt(asks, 6)
    assert most_answered(trace, room) >= best_of_all(trace, room)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(trace=drawn_traces(), eviction=st.sampled_from(["s3fifo", "sieve", "lru"]))
def test_no_eviction_does_better(trace: Trace, eviction: str) -> None:
    capacity = 3000
    found = simulate(
        compile_policy("place otherwise in dram"),
        trace,
        capacities={Tier.DRAM: capacity},
        options=TierOptions(eviction=eviction),
    )
    assert found.belady_hit_share is not None
    assert found.table_hit_share <= found.belady_hit_share + 1e-12
    room = rooms_of({Tier.DRAM: capacity}, record_bytes=72, eviction=eviction, engine="lmdb")[Tier.DRAM].records
    assert found.belady_hit_share == pytest.approx(most_answered(trace, room) / max(1, trace.questions))


def test_what_was_never_learnt_is_never_found() -> None:
    trace = trace_of([(0, [[0], [1]], [1]), (1, [[0], [1]], [])], tokens=[8, 8], kinds=[0, 0], names=["default"] * 2)
    assert most_answered(trace, 2) == 1


def test_without_room_or_accesses_there_are_no_hits() -> None:
    trace = asked_then_learnt([[0], [0]], 1)
    assert most_answered(trace, 0) == 0
    assert most_answered(trace.part(0, 0), 5) == 0
    assert most_answered(trace, 5) == 1


def test_a_loop_keeps_all_but_what_does_not_fit() -> None:
    """A loop over 10 records with room for 5: LRU finds nothing, MIN keeps some."""
    trace = asked_then_learnt([[i % 10] for i in range(10 * 50)], 10)
    assert most_answered(trace, 10) == 490
    assert most_answered(trace, 5) == best_of_loop(10, 5, 50)


def best_of_loop(records: int, room: int, rounds: int) -> int:
    """Simulate Belady's MIN with bypass, the textbook way: the one that is asked for last goes."""
    asks = [i % records for i in range(records * rounds)]
    kept: set[int] = set()
    hits = 0
    for at, one in enumerate(asks):
        hits += one in kept
        kept.add(one)
        if len(kept) > room:

            def next_ask(record: int, at: int = at) -> int:
                later = [i for i in range(at + 1, min(at + 1 + records, len(asks))) if asks[i] == record]
                return later[0] if later else len(asks)

            kept.remove(max(kept, key=next_ask))
    return hits


def test_it_never_falls_with_more_room() -> None:
    random = np.random.default_rng(5)
    trace = asked_then_learnt([[int(one)] for one in random.zipf(1.3, 400) % 60], 60)
    answered = [most_answered(trace, room) for room in range(0, 61, 5)]
    assert answered == sorted(answered)
    assert answered[-1] == 400 - len(set(trace.record.tolist()))
