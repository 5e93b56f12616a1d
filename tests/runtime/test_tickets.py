"""Tickets come back as they went out."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashnest.runtime.tickets import MAX_PLACE, chunk_ticket, ngram_ticket, open_tickets

REQUESTS = st.integers(0, 2**38 - 1)
PLACES = st.integers(0, MAX_PLACE)


@given(st.lists(st.tuples(st.booleans(), REQUESTS, PLACES, st.integers(0, 7)), min_size=1, max_size=8))
def test_tickets_name_kind_request_place_and_length(asked: list[tuple[bool, int, int, int]]) -> None:
    numbers = [chunk_ticket(r, p) if is_chunk else ngram_ticket(r, p) + i for is_chunk, r, p, i in asked]
    opened = open_tickets(np.array(numbers, np.int64))  # int64 holds them all, or this raises
    for at, (is_chunk, request_id, place, index) in enumerate(asked):
        found = tuple(array[at] for array in opened)
        assert found == (is_chunk, request_id, place, 0 if is_chunk else index)
