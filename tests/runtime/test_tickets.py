"""Tickets come back as they went out."""

from hypothesis import given
from hypothesis import strategies as st

from flashnest.runtime.tickets import MAX_PLACE, chunk_ticket, ngram_ticket, open_ticket


@given(st.integers(0, 2**38 - 1), st.integers(0, MAX_PLACE), st.integers(0, 7))
def test_ngram_ticket_names_request_length_and_index(request_id: int, length: int, index: int) -> None:
    ticket = open_ticket(ngram_ticket(request_id, length) + index)
    assert ticket == (False, request_id, length, index)
    assert ngram_ticket(request_id, length) < 2**63


@given(st.integers(0, 2**38 - 1), st.integers(0, MAX_PLACE))
def test_chunk_ticket_names_request_and_chunk(request_id: int, chunk: int) -> None:
    assert open_ticket(chunk_ticket(request_id, chunk)) == (True, request_id, chunk, 0)
    assert chunk_ticket(request_id, chunk) < 2**63
