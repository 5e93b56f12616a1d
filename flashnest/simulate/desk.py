"""The desk of a simulation: one array of addresses and sizes, and what a kernel finds through it. Owns no memory.

Kernels are given the desk alone: a tuple of twenty arrays is 160 words to copy at every call between kernels (1.2 us an
access instead of 0.2 to 0.5). Whoever makes a desk keeps the arrays alive while it is used.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from flashnest.jit import inline_kernel
from flashnest.record import F64Array, I32Array, I64Array, U8Array, U32Array
from flashnest.simulate.program import ACTION_WORDS, BRAKES, COUNT_WORDS, LIMITS, ROW_WORDS, Rules
from flashnest.simulate.state import BATCH_RECORDS, COUNTERS, FOUND_RECORDS, GENERATIONS, LINE_WORDS, TIER_WORDS, State
from flashnest.storage.lines import f64_at, i32_at, i64_at, u8_at, u32_at

_LINES, _TOKENS, _KIND, _NAMESPACE, _NBYTES, _TIERS, _SLOTS, _FREE, _RING, _COUNTS = range(10)
_SEEN, _SEEN_AT, _LEARNT, _LEARNT_AT, _WINDOWS, _CHAINS, _ADMISSIONS, _FOUND, _PENDING, _BATCH = range(10, 20)
_WORDS, _LIMITS, _PROGRAM, _BRAKES, _SUMS, _STACK = range(20, 26)
_RECORDS, _SLOT_COUNT, _WINDOW_COUNT, _RULE_COUNT, _PENDING_ROOM, _STACK_ROOM = range(26, 32)
DESK_WORDS: Final = 32


def make_desk(state: State, rules: Rules) -> I64Array:
    """Return the desk of a state and its rules, which the caller keeps."""
    desk = np.zeros(DESK_WORDS, np.int64)
    arrays: tuple[npt.NDArray[Any], ...] = (
        state.lines, state.tokens, state.kind, state.namespace, state.nbytes, state.tiers, state.slots, state.free,
        state.ring, state.counts, state.seen, state.seen_at, state.learnt, state.learnt_at, state.windows_s,
        state.chains, state.admissions, state.found, state.pending, state.batch, rules.words, rules.limits,
        rules.program, rules.brakes, rules.counts, rules.stack,
    )  # fmt: skip
    for at, array in enumerate(arrays):
        assert array.flags.c_contiguous
        desk[at] = array.ctypes.data
    desk[_RECORDS], desk[_SLOT_COUNT] = len(state.lines), len(state.slots)
    desk[_WINDOW_COUNT], desk[_RULE_COUNT] = len(state.windows_s), len(rules.words)
    desk[_PENDING_ROOM], desk[_STACK_ROOM] = len(state.pending), len(rules.stack)
    return desk


@inline_kernel
def line_of(desk: I64Array, record: int) -> I32Array:
    """Return a record's line, int32 (16,)."""
    return i32_at(desk[_LINES] + np.int64(record) * (4 * LINE_WORDS), np.int64(LINE_WORDS))


@inline_kernel
def tokens_of(desk: I64Array) -> U8Array:
    """Return the tokens of all records."""
    return u8_at(desk[_TOKENS], desk[_RECORDS])


@inline_kernel
def kinds_of(desk: I64Array) -> U8Array:
    """Return the kinds of all records."""
    return u8_at(desk[_KIND], desk[_RECORDS])


@inline_kernel
def namespaces_of(desk: I64Array) -> U32Array:
    """Return the namespaces of all records."""
    return u32_at(desk[_NAMESPACE], desk[_RECORDS])


@inline_kernel
def nbytes_of(desk: I64Array) -> U32Array:
    """Return the sizes of all records."""
    return u32_at(desk[_NBYTES], desk[_RECORDS])


@inline_kernel
def tier_of(desk: I64Array, tier: int) -> I64Array:
    """Return a tier's words, int64 (20,)."""
    return i64_at(desk[_TIERS] + np.int64(tier) * (8 * TIER_WORDS), np.int64(TIER_WORDS))


@inline_kernel
def slots_of(desk: I64Array) -> I32Array:
    """Return the slots of all tiers, one after the other: the record in each, -1 for none."""
    return i32_at(desk[_SLOTS], desk[_SLOT_COUNT])


@inline_kernel
def free_of(desk: I64Array) -> I32Array:
    """Return the free slots of all tiers: a tier's first COUNT entries are in use."""
    return i32_at(desk[_FREE], desk[_SLOT_COUNT])


@inline_kernel
def ring_of(desk: I64Array) -> I32Array:
    """Return the rings of new records of all tiers."""
    return i32_at(desk[_RING], desk[_SLOT_COUNT])


@inline_kernel
def counts_of(desk: I64Array) -> I64Array:
    """Return the counters."""
    return i64_at(desk[_COUNTS], np.int64(COUNTERS))


@inline_kernel
def windows_of(desk: I64Array) -> I64Array:
    """Return the times of `hits in TIME`, in seconds."""
    return i64_at(desk[_WINDOWS], desk[_WINDOW_COUNT])


@inline_kernel
def seen_of(desk: I64Array, window: int, record: int) -> U8Array:
    """Return a record's hits within a window by generation, uint8 (4,)."""
    return u8_at(desk[_SEEN] + (window * desk[_RECORDS] + record) * GENERATIONS, np.uint64(GENERATIONS))


@inline_kernel
def last_seen_of(desk: I64Array, window: int) -> I32Array:
    """Return the generation of every record's last hit within a window."""
    return i32_at(desk[_SEEN_AT] + window * desk[_RECORDS] * 4, desk[_RECORDS])


@inline_kernel
def learnt_of(desk: I64Array, record: int) -> U8Array:
    """Return how often a record was learnt by generation, uint8 (4,)."""
    return u8_at(desk[_LEARNT] + np.int64(record) * GENERATIONS, np.uint64(GENERATIONS))


@inline_kernel
def last_learnt_of(desk: I64Array) -> I32Array:
    """Return the generation in which every record was last learnt."""
    return i32_at(desk[_LEARNT_AT], desk[_RECORDS])


@inline_kernel
def chain_of(desk: I64Array, chain: int) -> I64Array:
    """Return a chain's tiers, int64 (3,), -1 from its end on."""
    return i64_at(desk[_CHAINS] + np.int64(chain) * 24, np.int64(3))


@inline_kernel
def admission_of(desk: I64Array, chain: int) -> I64Array:
    """Return what a chain asks of a new record: times, 0 for nothing, and seconds."""
    return i64_at(desk[_ADMISSIONS] + np.int64(chain) * 16, np.int64(2))


@inline_kernel
def found_of(desk: I64Array) -> I32Array:
    """Return the ring of found cold records."""
    return i32_at(desk[_FOUND], np.int64(FOUND_RECORDS))


@inline_kernel
def pending_of(desk: I64Array) -> I32Array:
    """Return the cold records whose answers come with the next step."""
    return i32_at(desk[_PENDING], desk[_PENDING_ROOM])


@inline_kernel
def batch_of(desk: I64Array) -> I32Array:
    """Return the slice at work in its first half, those that a rule chose of it in its second."""
    return i32_at(desk[_BATCH], np.int64(2 * BATCH_RECORDS))


@inline_kernel
def rules_in(desk: I64Array) -> int:
    """Return how many rules there are."""
    return int(desk[_RULE_COUNT])


@inline_kernel
def word_of(desk: I64Array, rule: int) -> I64Array:
    """Return what a rule says in integers."""
    return i64_at(desk[_WORDS] + np.int64(rule) * (8 * ACTION_WORDS), np.int64(ACTION_WORDS))


@inline_kernel
def limits_of(desk: I64Array, rule: int) -> F64Array:
    """Return what a rule says in numbers."""
    return f64_at(desk[_LIMITS] + np.int64(rule) * (8 * LIMITS), np.int64(LIMITS))


@inline_kernel
def row_of(desk: I64Array, row: int) -> I64Array:
    """Return a row of the conditions' program: what, fact, low, high."""
    return i64_at(desk[_PROGRAM] + np.int64(row) * (8 * ROW_WORDS), np.int64(ROW_WORDS))


@inline_kernel
def brakes_of(desk: I64Array, rule: int) -> F64Array:
    """Return a rule's brakes."""
    return f64_at(desk[_BRAKES] + np.int64(rule) * (8 * BRAKES), np.int64(BRAKES))


@inline_kernel
def sums_of(desk: I64Array, rule: int) -> I64Array:
    """Return what a rule did so far."""
    return i64_at(desk[_SUMS] + np.int64(rule) * (8 * COUNT_WORDS), np.int64(COUNT_WORDS))


@inline_kernel
def stack_of(desk: I64Array) -> U8Array:
    """Return room for the values of a condition under way."""
    return u8_at(desk[_STACK], desk[_STACK_ROOM])
