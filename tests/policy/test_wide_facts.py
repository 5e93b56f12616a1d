"""Tables of 32-bit facts against a search among the starts, on values at, beside and far from every start."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashnest.policy.cells import Axis
from flashnest.policy.facts import FACTS
from flashnest.policy.wide_facts import ByName, BySearch, ByValue, WideFact, wide_fact
from flashnest.record import namespace_id

TOP = 2**32 - 1


def axis_of(fact: str, starts: list[int]) -> Axis:
    """Every interval is a group of its own."""
    return Axis(FACTS[fact], np.array(starts, np.int64), np.arange(len(starts), dtype=np.int64))


def names_axis(codes: list[int]) -> Axis:
    """Cut as the checker cuts: a group for each code, one for all others."""
    starts = sorted({0, *codes, *(code + 1 for code in codes if code < TOP)})
    group = [1 + codes.index(start) if start in codes else 0 for start in starts]
    return Axis(FACTS["namespace"], np.array(starts, np.int64), np.array(group, np.int64))


def agrees(table: WideFact, axis: Axis, offset: np.ndarray) -> bool:
    near = [start + step for start in axis.starts.tolist() for step in (-1, 0, 1)]
    random = np.random.default_rng(1).integers(0, TOP, 1000).tolist()
    values = np.array([value for value in (*near, *random, 0, TOP) if 0 <= value <= TOP], np.uint32)
    wanted = offset[np.maximum(np.searchsorted(axis.starts, values, side="right") - 1, 0)]
    cell = np.arange(len(values), dtype=np.intp)

    table.add_to(cell, values)

    return (cell - np.arange(len(values))).tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("starts", "kind"),
    [([1, 2], ByValue), ([1, 1025, 65_535], ByValue), ([1, 65_536], BySearch), ([1, 5, 2**32 - 1], BySearch)],
)
def test_sizes_take_a_table_where_it_is_small(starts, kind):
    axis, offset = axis_of("bytes", starts), np.arange(len(starts), dtype=np.intp) * 7

    table = wide_fact(axis, offset)

    assert isinstance(table, kind)
    assert agrees(table, axis, offset)


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(0, TOP) | st.sampled_from((0, 1, 2, TOP - 1, TOP)), min_size=1, max_size=40))
def test_names_are_found_by_a_perfect_hash(codes):
    axis = names_axis(list(codes))
    offset = (axis.group * 11 + 3).astype(np.intp)

    table = wide_fact(axis, offset)

    assert isinstance(table, ByName)
    assert agrees(table, axis, offset)


@pytest.mark.parametrize(("count", "kind"), [(256, ByName), (257, BySearch)])
def test_many_names_are_hashed_and_very_many_searched(count, kind):
    axis = names_axis([namespace_id(f"tenant{i}") for i in range(count)])
    offset = axis.group.astype(np.intp)

    table = wide_fact(axis, offset)

    assert isinstance(table, kind)
    assert agrees(table, axis, offset)


def test_a_fact_that_makes_no_difference_has_no_table():
    axis = Axis(FACTS["bytes"], np.array([1, 100], np.int64), np.array([0, 0], np.int64))

    assert wide_fact(axis, np.zeros(2, np.intp)) is None
