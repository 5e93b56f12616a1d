"""Machine code of the router: which keys to ask for next, where answers go, which records share a chain.

Each replaces a chain of numpy calls on small arrays, which cost 2 to 5 us apiece whatever they do. Owns no memory,
checks no bounds: the router guarantees that the arrays fit together.
"""

from __future__ import annotations

import numpy as np

from flashnest import record
from flashnest.jit import kernel
from flashnest.record import BoolArray, I64Array, U8Array, U32Array, U64Array
from flashnest.storage.store import State

_ZERO = np.uint64(0)
_MISS, _HIT, _PENDING = np.uint8(State.MISS), np.uint8(State.HIT), np.uint8(State.PENDING)
_META, _NAMESPACE = record.META, record.NAMESPACE
_BYTE, _EIGHT = np.uint32(0xFF), np.uint32(8)


@kernel
def pick_missing(
    keys: U64Array, tickets: I64Array, state: U8Array, to_keys: U64Array, to_tickets: I64Array, places: I64Array
) -> int:
    """Gather the keys of a batch that are a MISS so far, with their tickets and places; returns how many."""
    count = 0
    for i in range(keys.shape[0]):
        if state[i] == _MISS and keys[i] != _ZERO:
            to_keys[count], to_tickets[count], places[count] = keys[i], tickets[i], i
            count += 1
    return count


@kernel
def pick_longer(
    keys: U64Array, tickets: I64Array, index: I64Array, to_keys: U64Array, to_tickets: I64Array, places: I64Array
) -> int:
    """Gather from keys (n, k) those longer than what each row has, `index` (n,); a place is row * k + length."""
    count, lengths = 0, keys.shape[1]
    for r in range(keys.shape[0]):
        for i in range(index[r] + 1, lengths):
            if keys[r, i] != _ZERO:
                to_keys[count], to_tickets[count], places[count] = keys[r, i], tickets[r] + i, r * lengths + i
                count += 1
    return count


@kernel
def mask_shorter(keys: U64Array, index: I64Array, out: U64Array) -> None:
    """Copy keys (n, k) to `out`, 0 in place of those that are not longer than what each row has."""
    for r in range(keys.shape[0]):
        for i in range(keys.shape[1]):
            out[r, i] = keys[r, i] if i > index[r] else _ZERO


@kernel
def take_longer(
    index: I64Array, rows: U32Array, code: int, state: U8Array, tier: U8Array, to_rows: U32Array, to_index: I64Array
) -> None:
    """Give each row of an answer the record of another, whose `index` is (n,), where that one is longer."""
    for r in range(index.shape[0]):
        if index[r] > to_index[r]:
            state[r], tier[r], to_index[r] = _HIT, code, index[r]
            to_rows[r] = rows[r]


@kernel
def take_known(
    count: int,
    lengths: int,
    known: BoolArray,
    keys: U64Array,
    tickets: I64Array,
    places: I64Array,
    answers: U8Array,
    answer_rows: U32Array,
    code: int,
    state: U8Array,
    tier: U8Array,
    rows: U32Array,
    index: I64Array,
    hit_keys: U64Array,
    hit_places: I64Array,
) -> tuple[int, int]:
    """Deliver the hits of gathered keys to their rows and close up over all that need no asking; returns (left, hits).

    Of a row's hits the longest stays, and what is no longer than it is not asked for. hit_keys and hit_places receive
    each hit's key and its place in `answer_rows`. With `lengths` 1 a place is one in the batch; `index` may be empty.
    """
    left, hits = 0, 0
    for i in range(count):
        if answers[i] == _HIT:
            r = places[i] // lengths
            hit_keys[hits], hit_places[hits] = keys[i], i
            hits += 1
            state[r], tier[r] = _HIT, code
            rows[r] = answer_rows[i]
            if index.shape[0] > 0:
                index[r] = places[i] % lengths
    for i in range(count):
        if not known[i] and (hits == 0 or index.shape[0] == 0 or places[i] % lengths > index[places[i] // lengths]):
            keys[left], tickets[left], places[left] = keys[i], tickets[i], places[i]
            left += 1
    return left, hits


@kernel
def mark_pending(lengths: int, pending: BoolArray, places: I64Array, state: U8Array) -> int:
    """Say PENDING where a question is under way and nothing is at hand; returns the questions."""
    asked: int = 0
    for i in range(pending.shape[0]):
        if pending[i]:
            asked += 1
            if state[places[i] // lengths] == _MISS:
                state[places[i] // lengths] = _PENDING
    return asked


@kernel
def pick_hits(keys: U64Array, index: I64Array, out: U64Array) -> int:
    """Gather the keys (n, k) that were found, one for each row whose `index` is not -1; returns how many."""
    count = 0
    for r in range(keys.shape[0]):
        if index[r] >= 0:
            out[count] = keys[r, index[r]]
            count += 1
    return count


@kernel
def read_facts(rows: U32Array, tokens: U8Array, kinds: U8Array, namespaces: U32Array) -> None:
    """Write what a placement asks of each row, each array (n,)."""
    for i in range(rows.shape[0]):
        meta = rows[i, _META]
        tokens[i] = (meta >> _EIGHT) & _BYTE
        kinds[i] = meta & _BYTE
        namespaces[i] = rows[i, _NAMESPACE]


@kernel
def group_codes(codes: U8Array, keys: U64Array, starts: I64Array, order: I64Array) -> int:
    """Sort the places of a batch by code, stable, leaving out keys of 0; returns how many were left.

    starts int64 (codes + 1,): code c has order[starts[c] : starts[c + 1]].
    """
    starts[:] = 0
    for i in range(codes.shape[0]):
        if keys[i] != _ZERO:
            starts[codes[i] + 1] += 1
    for c in range(1, starts.shape[0]):
        starts[c] += starts[c - 1]
    at = starts[:-1].copy()
    for i in range(codes.shape[0]):
        if keys[i] != _ZERO:
            order[at[codes[i]]] = i
            at[codes[i]] += 1
    return int(starts[-1])
