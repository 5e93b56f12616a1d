"""Tickets: int64 numbers that say who asked a cold tier what, so that an answer finds its way back a step later.

bit  62      1 for a chunk key, 0 for an n-gram
bits 24-61   request id
bits 3-23    n-gram: tokens of the sequence when asked; chunk: index of the chunk
bits 0-2     n-gram: index of the length
"""

from __future__ import annotations

from typing import NamedTuple

from flashnest.record import MAX_NGRAM_LENGTHS

_CHUNK_BIT = 62
_REQUEST_SHIFT = 24
_PLACE_SHIFT = MAX_NGRAM_LENGTHS.bit_length() - 1
_PLACE_MASK = (1 << (_REQUEST_SHIFT - _PLACE_SHIFT)) - 1
MAX_PLACE = _PLACE_MASK
"""Longest sequence a ticket can name: 2,097,151 tokens."""


class Ticket(NamedTuple):
    """A ticket taken apart; `place` and `length_index` as in the module's table."""

    is_chunk: bool
    request_id: int
    place: int
    length_index: int


def ngram_ticket(request_id: int, length: int) -> int:
    """Return the ticket of a sequence's shortest n-gram length; add i for the i-th."""
    return request_id << _REQUEST_SHIFT | length << _PLACE_SHIFT


def chunk_ticket(request_id: int, index: int) -> int:
    """Return the ticket of a prompt's index-th chunk."""
    return 1 << _CHUNK_BIT | request_id << _REQUEST_SHIFT | index << _PLACE_SHIFT


def open_ticket(ticket: int) -> Ticket:
    """Take a ticket apart."""
    is_chunk = bool(ticket >> _CHUNK_BIT)
    rest = ticket & ((1 << _CHUNK_BIT) - 1)
    return Ticket(is_chunk, rest >> _REQUEST_SHIFT, rest >> _PLACE_SHIFT & _PLACE_MASK, rest & 0b111)
