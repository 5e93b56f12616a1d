"""Tickets: int64 numbers that say who asked a cold tier what, so that an answer finds its way back a step later.

bit  62      1 for a chunk key, 0 for an n-gram
bits 24-61   request id
bits 3-23    n-gram: tokens of the sequence when asked; chunk: index of the chunk
bits 0-2     n-gram: index of the length
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flashnest.record import MAX_NGRAM_LENGTHS, BoolArray, I32Array, I64Array

_CHUNK_BIT = 62
_REQUEST_SHIFT = 24
_PLACE_SHIFT = MAX_NGRAM_LENGTHS.bit_length() - 1
_PLACE_MASK = (1 << (_REQUEST_SHIFT - _PLACE_SHIFT)) - 1
MAX_PLACE = _PLACE_MASK
"""Longest sequence a ticket can name: 2,097,151 tokens."""


class Tickets(NamedTuple):
    """Tickets taken apart, arrays of shape (n,): is_chunk bool, the others int64, as in the module's table."""

    is_chunk: BoolArray
    request_id: I64Array
    place: I64Array
    length_index: I64Array


def ngram_ticket(request_id: int, length: int) -> int:
    """Return the ticket of a sequence's shortest n-gram length; add i for the i-th."""
    return request_id << _REQUEST_SHIFT | length << _PLACE_SHIFT


def ngram_tickets(request_ids: I64Array, lengths: I32Array) -> I64Array:
    """Return `ngram_ticket` of n sequences, int64 (n,): request_ids int64 (n,), lengths int32 (n,)."""
    tickets: I64Array = request_ids << _REQUEST_SHIFT | lengths.astype(np.int64) << _PLACE_SHIFT
    return tickets


def chunk_ticket(request_id: int, index: int) -> int:
    """Return the ticket of a prompt's index-th chunk."""
    return 1 << _CHUNK_BIT | request_id << _REQUEST_SHIFT | index << _PLACE_SHIFT


def open_tickets(tickets: I64Array) -> Tickets:
    """Take tickets, int64 (n,), apart."""
    rest = tickets & ((1 << _CHUNK_BIT) - 1)
    return Tickets(
        (tickets >> _CHUNK_BIT) != 0, rest >> _REQUEST_SHIFT, rest >> _PLACE_SHIFT & _PLACE_MASK, rest & 0b111
    )
