"""What a workload is expected to bring, counted from a trace or from a number of records, without playing it.

Records are placed by the first tier of their chain and stay there: what moves do with time is for `simulate`. Figures
of room and writes are those that `simulate` uses (`room`, `wear`); a step's lookups are in `expected_lookups`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from flashnest.policy.compile import Policy
from flashnest.policy.expectations import ExpectedRecords, ExpectedWrites, TierRoom
from flashnest.record import CHUNK_TOKENS, F64Array, I64Array, Kind, Tier, record_bytes
from flashnest.simulate.room import PAGE_BYTES, rooms_of
from flashnest.simulate.tier_options import TierOptions
from flashnest.simulate.trace import INSERT, Trace
from flashnest.simulate.wear import lmdb_bytes, slots_bytes

_MOST_LEARNT: Final = 255
"""`after` asks for 255 hits at most."""

_DRAM_WORDS: Final = "a packed row, the table at most 0.8 full, what its eviction keeps"
_WORDS: Final = {
    "lmdb": "key, row, checksum and LMDB's node, leaves 0.6 full, 1/16 of the file kept free",
    "slots": "key and row in pages of 4 KiB, beside a log of 1/64 of the capacity",
}


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of a table. `trace` None: `records` alone are known, and one question a stream and step assumed.

    `lengths`: n-gram lengths looked up, for such questions; `within_s`: the time in which the records come, None where
    that is not known (then nothing is said of writes).
    """

    records: ExpectedRecords
    lengths: tuple[int, ...]
    within_s: float | None = None
    trace: Trace | None = None


def records_of_trace(trace: Trace, growth: float = 1.0) -> ExpectedRecords:
    """Count the records of a trace by their sort and by how often each is learnt.

    `growth`: how many times as long the same load goes on. What its second half learnt first, that much again is new in
    each further half; what its first half learnt is not met as new again.
    """
    learns = np.flatnonzero(trace.op == INSERT)
    learnt = np.bincount(trace.record[learns], minlength=trace.records).clip(max=_MOST_LEARNT)
    late = first_learnt(trace) >= len(trace) // 2
    counts = np.ones(trace.records) + late * 2.0 * max(0.0, growth - 1.0)
    rows = np.zeros((trace.records, 3), np.uint64)
    rows[:, 0] = trace.namespace.astype(np.uint64) << np.uint64(32) | trace.nbytes
    rows[:, 1] = trace.tokens.astype(np.uint64) << np.uint64(8) | trace.kind
    rows[:, 2] = learnt
    stored = learnt > 0
    sorts, sort = np.unique(rows[stored], axis=0, return_inverse=True)
    whole = np.bincount(sort.ravel(), weights=counts[stored], minlength=len(sorts))
    grown = "" if growth <= 1.0 else f", reckoned {growth:.4g} times as long from the {int(stored.sum()):,} counted"
    return ExpectedRecords(
        tokens=(sorts[:, 1] >> np.uint64(8)).astype(np.uint8),
        kind=(sorts[:, 1] & np.uint64(255)).astype(np.uint8),
        namespace=(sorts[:, 0] >> np.uint64(32)).astype(np.uint32),
        nbytes=(sorts[:, 0] & np.uint64(2**32 - 1)).astype(np.uint32),
        counts=whole.astype(np.float64),
        source=f"{whole.sum():,.0f} records counted in {trace.name}{grown}: {trace.source}",
        learnt=sorts[:, 2].astype(np.int64),
    )


def records_in_shares(total: float, shares: Mapping[int, float], namespace: int, source: str) -> ExpectedRecords:
    """Spread a number of records over n-gram lengths, `shares` of the whole by length; length 0 stands for chunks."""
    lengths = sorted(shares)
    whole = sum(shares.values())
    return ExpectedRecords(
        tokens=np.array([length or CHUNK_TOKENS for length in lengths], np.uint8),
        kind=np.array([Kind.NGRAM if length else Kind.CHUNK for length in lengths], np.uint8),
        namespace=np.full(len(lengths), namespace, np.uint32),
        nbytes=np.full(len(lengths), record_bytes(), np.uint32),
        counts=np.array([total * shares[length] / whole for length in lengths]),
        source=source,
    )


def tier_rooms(
    capacities: Mapping[Tier, int], policy: Policy, options: TierOptions, nbytes: int = record_bytes()
) -> dict[Tier, TierRoom]:
    """Return what each tier holds of records of `nbytes`. Raises StoreFullError where a capacity holds none."""
    named = next((rule.using for rule in policy.moves.rules if rule.source is Tier.DRAM and rule.using), None)
    eviction = options.eviction or named or "s3fifo"
    rooms = rooms_of(capacities, record_bytes=nbytes, eviction=eviction, engine=options.engine)
    words = {Tier.DRAM: _DRAM_WORDS, Tier.VRAM: "key, time and row, the table at most 0.8 full"}
    words[Tier.NVME] = _WORDS[options.engine]
    return {
        tier: TierRoom(capacities[tier], room.records, room.record_bytes, words[tier]) for tier, room in rooms.items()
    }


def expected_writes(
    policy: Policy, demand: Demand, rooms: Mapping[Tier, TierRoom], options: TierOptions
) -> ExpectedWrites | None:
    """Predict what is written to the drive. None where no time is known, or no NVMe tier is open."""
    if not demand.within_s or Tier.NVME not in rooms:
        return None
    records, room = demand.records, rooms[Tier.NVME]
    placed = first_tiers(policy, records)
    by_rule = _by_rule(policy, records, records.counts * (placed == Tier.NVME) / demand.within_s)
    demoted = _demoted_per_s(policy, float(records.counts[placed == Tier.DRAM].sum()), rooms, demand.within_s)
    rate = sum(by_rule.values()) + demoted
    nbytes = int(records.nbytes.max()) if len(records.nbytes) else record_bytes()
    stored = min(room.records, rate * demand.within_s)
    interval_s = options.flush_interval_s if policy.flush is None else policy.flush.every_s
    cost = {
        "lmdb": _lmdb_bytes_a_record(stored, room, min(options.flush_records, max(1.0, rate * interval_s))),
        "slots": slots_bytes(1000, nbytes, room.capacity_bytes) / 1000,
    }
    other = "slots" if options.engine == "lmdb" else "lmdb"
    twice = None
    if records.learnt is not None:
        twice = float(records.counts[(placed == Tier.NVME) & (records.learnt >= 2)].sum()) / demand.within_s
    most = None if policy.flush is None else policy.flush.most_bytes_per_s
    written, others = cost[options.engine], cost[other]
    return ExpectedWrites(rate, by_rule, demoted, written, options.engine, other, others, twice, demand.within_s, most)


def bytes_a_change(records: int, rooms: Mapping[Tier, TierRoom], options: TierOptions) -> float:
    """Return the bytes that NVMe's engine writes for a changed record among so many, in full batches; 0: no NVMe."""
    room = rooms.get(Tier.NVME)
    if room is None:
        return 0.0
    if options.engine == "slots":
        return slots_bytes(1000, record_bytes(), room.capacity_bytes) / 1000
    return _lmdb_bytes_a_record(2.0 * min(records, room.records), room, options.flush_records)


def first_tiers(policy: Policy, records: ExpectedRecords) -> I64Array:
    """Return the tier that each sort is placed in first, int64 (m,); -1 where it is not stored."""
    firsts = np.array([rule.chain[0] if rule.chain else -1 for rule in policy.rules], np.int64)
    rules = rule_codes(policy, records)
    tiers = firsts[rules]
    if records.learnt is not None:
        least = np.array([rule.admission.hits if rule.admission else 0 for rule in policy.rules], np.int64)
        tiers[records.learnt < least[rules]] = -1
    return tiers


def rule_codes(policy: Policy, records: ExpectedRecords) -> I64Array:
    """Return the index of the rule that places each sort, int64 (m,)."""
    codes = policy.placement.rule_codes(records.tokens, records.kind, records.namespace, records.nbytes)
    return codes.astype(np.int64)


def _by_rule(policy: Policy, records: ExpectedRecords, weights: F64Array) -> dict[int, float]:
    sums = np.bincount(rule_codes(policy, records), weights=weights, minlength=len(policy.rules))
    return {i + 1: float(count) for i, count in enumerate(sums) if count}


def _demoted_per_s(policy: Policy, into_dram: float, rooms: Mapping[Tier, TierRoom], within_s: float) -> float:
    """Return the records a second that a `demote` from DRAM moves to NVMe once DRAM is filled to its watermark."""
    room = rooms.get(Tier.DRAM)
    for rule in policy.moves.rules:
        if room is None or not rule.acts or (rule.source, rule.target) != (Tier.DRAM, Tier.NVME):
            continue
        over = into_dram - (rule.when_fill or 0.0) * room.records
        limits = [
            rule.most_records_per_s,
            None if rule.most_bytes_per_s is None else rule.most_bytes_per_s / record_bytes(),
        ]
        return max(0.0, min([over / within_s, *(limit for limit in limits if limit is not None)]))
    return 0.0


def _lmdb_bytes_a_record(stored: float, room: TierRoom, batch: float) -> float:
    """Return the bytes that LMDB writes for a changed record: half filled on average, in batches of random keys."""
    leaves = max(1.0, stored / 2 * room.record_bytes / PAGE_BYTES)
    return lmdb_bytes(leaves * (1.0 - math.exp(-batch / leaves))) / batch


def first_learnt(trace: Trace) -> I64Array:
    """Return the access at which each record is first learnt, int64 (m,); after the last one where it never is."""
    first = np.full(trace.records, len(trace), np.int64)
    learns = np.flatnonzero(trace.op == INSERT)
    np.minimum.at(first, trace.record[learns], learns)
    return first
