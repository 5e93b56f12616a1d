"""What a simulation knows at any moment: one line of 64 bytes for each record, lists for each tier. Decides nothing.

A record's line is 16 words, so that an access costs one cache miss:

    TIER       the tier that owns it, -1 for none
    SLOT       its place in that tier
    HITS REFS LAST INSERTED    as in a row; times are seconds since the trace began
    MOVED WAY  when a rule last moved it (-1: never) and which way, 8 x from + to
    USES QUEUED    the eviction's bits: hits since it last looked (3 at most), in the queue of new records
    GHOST      when it left the queue unused, counted in such leavings from 1; 0: forgotten
    BATCH      the write batch that it last went to NVMe with
    CHAIN RULE     the chain that the policy places it in, the rule that says so
    MARKS      STORED once, ASKED since, WAITING for the sweep
    TRIED      a bit for each trial rule that would have moved it

A tier is an array of slots with holes; which slot a new record gets is spread over the tier, as a hash would.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from flashnest.policy import Policy
from flashnest.record import I32Array, I64Array, Tier, U8Array, U32Array
from flashnest.simulate.room import Room
from flashnest.simulate.trace import Trace

TIER, SLOT, HITS, REFS, LAST, INSERTED, MOVED, WAY = range(8)
USES, QUEUED, GHOST, BATCH, CHAIN, RULE, MARKS, TRIED = range(8, 16)
LINE_WORDS: Final = 16
NOWHERE: Final = -1
STORED, ASKED, WAITING = 1, 2, 4

BASE, SLOTS, ROOM, COUNT, PEAK, TIER_HITS = range(6)
EVICTION, HAND, YOUNG, RING_START, RING_COUNT, QUEUE_MOST, GHOSTS, GHOST_MOST = range(6, 14)
SCAN, PASS_MS, PASS_SEEN, PASS_MOST, KEEPS, RULED = range(14, 20)
TIER_WORDS: Final = 20
"""Columns of `State.tiers`: where its slots begin and how many there are; records that fit, that are there, the most;
the eviction's algorithm and its hand, ring, ghosts; the sweep's hand and pass; whether rules keep records there, or
look at them."""
S3FIFO, SIEVE, LRU, REFUSE = range(4)
EVICTIONS: Final = {"s3fifo": S3FIFO, "sieve": SIEVE, "lru": LRU}

QUESTIONS, MISSES, REJECTED, NOT_ADMITTED, PUSHED_OUT, STORINGS = range(6)
NVME_INSERTS, NVME_REMOVES, FALSE_READS, BATCHES = range(6, 10)
GATHERED, GATHERED_MS, FOUND_START, FOUND_COUNT, PENDING, STAYS, BLOCKING = range(10, 17)
FLUSH_RECORDS, FLUSH_MS, PROMOTES, MILLILEAVES = range(17, 21)
COUNTERS: Final = 21

QUEUE_SHARE: Final = 0.1
GHOST_SHARE: Final = 0.9
"""As `storage.eviction`: S3-FIFO's small queue, and how many it remembers of those that left it."""
FOUND_RECORDS: Final = 4096
"""As `storage.sweep_cold.QUEUE_RECORDS`: found cold records that wait for a sweep."""
BATCH_RECORDS: Final = 512
GENERATIONS: Final = 4
"""As `storage.sketch`: a window is three whole ones and the one under way."""
LEAVES_A_RECORD: Final = 90 / (4096 * 2 / 3)
"""A record takes 90 bytes of an LMDB leaf (`room`), leaves of a B+tree filled at random are two thirds full."""
_LEAP_SHARE: Final = 0.6180339887


class State(NamedTuple):
    """Everything that changes, and the facts of records that do not.

    lines int32 (m, 16); tokens, kind uint8, namespace, nbytes uint32 (m,); tiers int64 (3, 20); slots, free, ring
    int32: those of all tiers one after the other; counts int64 (21,); seen uint8 (windows, m, 4) and seen_at int32
    (windows, m): hits by generation, and the last one; learnt uint8 and learnt_at int32: the same of inserts, for
    `after`; windows_s int64; chains int64 (chains, 3), -1 where one ends; admissions int64 (chains, 2): times and
    seconds, 0 for none; found, pending, batch int32: what waits for the sweep, for the next step, and slices at work.
    """

    lines: I32Array
    tokens: U8Array
    kind: U8Array
    namespace: U32Array
    nbytes: U32Array
    tiers: I64Array
    slots: I32Array
    free: I32Array
    ring: I32Array
    counts: I64Array
    seen: U8Array
    seen_at: I32Array
    learnt: U8Array
    learnt_at: I32Array
    windows_s: I64Array
    chains: I64Array
    admissions: I64Array
    found: I32Array
    pending: I32Array
    batch: I32Array


def leaves_of(state: State) -> float:
    """Return how many leaves of a B+tree the changes touch that have gathered for NVMe, with keys at random."""
    leaves = max(1.0, state.tiers[Tier.NVME, COUNT] * LEAVES_A_RECORD)
    return float(leaves * (1.0 - math.exp(-state.counts[GATHERED] / leaves)))


def make_state(
    policy: Policy, trace: Trace, rooms: Mapping[Tier, Room], *, eviction: str, engine: str, pending: int
) -> State:
    """Return the state before the first step. `pending`: most lookups in one step. One vectorised call places all."""
    m, windows = trace.records, policy.moves.windows_s
    lines = np.zeros((m, LINE_WORDS), np.int32)
    lines[:, TIER] = NOWHERE
    lines[:, MOVED] = -1
    facts = (trace.tokens, trace.kind, trace.namespace, trace.nbytes)
    lines[:, CHAIN] = policy.placement.chain_codes(*facts)
    lines[:, RULE] = policy.placement.rule_codes(*facts)
    tiers, slots = _tiers(rooms, m, eviction)
    if engine == "slots":
        tiers[Tier.NVME, EVICTION] = LRU  # a full bucket drops its longest idle record
    gated = any(admission is not None for admission in policy.placement.admissions)
    return State(
        lines=lines,
        tokens=_read_only(trace.tokens),
        kind=_read_only(trace.kind),
        namespace=trace.namespace.copy(),
        nbytes=trace.nbytes.copy(),
        tiers=tiers,
        slots=np.full(slots, NOWHERE, np.int32),
        free=np.concatenate([_spread(int(tiers[tier, SLOTS])) for tier in Tier]),
        ring=np.zeros(slots, np.int32),
        counts=_counts(),
        seen=np.zeros((len(windows), m if windows else 0, GENERATIONS), np.uint8),
        seen_at=np.zeros((len(windows), m if windows else 0), np.int32),
        learnt=np.zeros((m if gated else 0, GENERATIONS), np.uint8),
        learnt_at=np.zeros(m if gated else 0, np.int32),
        windows_s=np.array(windows, np.int64),
        chains=_chains(policy, rooms),
        admissions=_admissions(policy),
        found=np.zeros(FOUND_RECORDS, np.int32),
        pending=np.zeros(max(1, pending), np.int32),
        batch=np.zeros(2 * BATCH_RECORDS, np.int32),
    )


def _counts() -> I64Array:
    counts = np.zeros(COUNTERS, np.int64)
    counts[BATCHES], counts[GATHERED_MS] = 1, -1
    return counts


def _read_only(array: U8Array) -> U8Array:
    return array.copy()  # own memory: a kernel is compiled anew for read-only arrays


def _tiers(rooms: Mapping[Tier, Room], records: int, eviction: str) -> tuple[I64Array, int]:
    tiers = np.zeros((len(Tier), TIER_WORDS), np.int64)
    base = 0
    for tier in Tier:
        room = rooms[tier].records if tier in rooms else 0
        slots = min(room, records)
        tiers[tier, BASE], tiers[tier, SLOTS], tiers[tier, ROOM] = base, slots, room
        tiers[tier, QUEUE_MOST] = max(1, int(room * QUEUE_SHARE))
        tiers[tier, GHOST_MOST] = int(room * GHOST_SHARE)
        tiers[tier, EVICTION] = LRU if tier is Tier.VRAM else REFUSE
        tiers[tier, YOUNG] = 1
        base += slots
    tiers[Tier.DRAM, EVICTION] = EVICTIONS[eviction]
    return tiers, base


def _spread(slots: int) -> I32Array:
    """Return a tier's slots in leaps of 0.618 of it: the first records already lie all over it."""
    leap = max(1, int(slots * _LEAP_SHARE))
    while slots and math.gcd(leap, slots) != 1:
        leap += 1
    order: I32Array = (np.arange(slots, dtype=np.int64) * leap % max(1, slots)).astype(np.int32)
    return order


def _chains(policy: Policy, rooms: Mapping[Tier, Room]) -> I64Array:
    chains = np.full((len(policy.placement.chains), len(Tier)), NOWHERE, np.int64)
    for at, chain in enumerate(policy.placement.chains):
        there = [int(tier) for tier in chain if tier in rooms]
        chains[at, : len(there)] = there
    return chains


def _admissions(policy: Policy) -> I64Array:
    asked = [(0, 1) if one is None else (one.hits, one.window_s) for one in policy.placement.admissions]
    return np.array(asked, np.int64).reshape(-1, 2)
