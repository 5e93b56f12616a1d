"""What a workload is expected to bring on a platform: records, room for them, a step's lookups, writes to the drive.

Filled in by whoever can count and predict (`flashnest.simulate.expected`), judged by `budgets` and `budget_goals`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flashnest.record import F64Array, FactArrays, I64Array, U8Array, U32Array


@dataclass(frozen=True, slots=True)
class ExpectedRecords:
    """Sorts of records and how many of each. tokens, kind uint8, namespace, nbytes uint32, counts float64; all (m,).

    learnt int64 (m,): how often each record is learnt, for rules with `after`; None: not known, then all are stored.
    """

    tokens: U8Array
    kind: U8Array
    namespace: U32Array
    nbytes: U32Array
    counts: F64Array
    source: str
    """Where the counts come from, for a note: `counts from --records 100M, shares ...`."""
    learnt: I64Array | None = None

    @property
    def facts(self) -> FactArrays:
        """The records as just stored: never hit, neither idle nor old."""
        none, narrow = np.zeros(len(self.tokens), np.uint32), np.full(len(self.tokens), 100, np.uint8)
        return FactArrays(self.tokens, self.kind, self.namespace, self.nbytes, none, none, none, none, narrow)


@dataclass(frozen=True, slots=True)
class TierRoom:
    """What a tier holds: `records` at most, `record_bytes` of its capacity for each, `words` say why so many."""

    capacity_bytes: int
    records: int
    record_bytes: float
    words: str


@dataclass(frozen=True, slots=True)
class ExpectedLookups:
    """One step's lookups, as a policy places records before any move: keys asked, reads that reach the drive.

    Reads are those of stored records: the membership filter stops the others. `without_reads_s` is the p99 that a step
    has where nothing is read from the drive; `async_p99_s` where reads are not waited for.
    """

    keys: float
    reads: float
    reads_by_rule: Mapping[int, float]
    """Reads a step for the records of each `place` rule, by its number."""
    p50_s: float
    p99_s: float
    async_p99_s: float
    without_reads_s: float
    blocking: bool


@dataclass(frozen=True, slots=True)
class ExpectedWrites:
    """What is written to the drive: records stored there a second, and the bytes that the engine writes for each."""

    records_per_s: float
    by_rule: Mapping[int, float]
    """Records a second of each `place` rule, by its number."""
    demoted_per_s: float
    bytes_a_record: float
    engine: str
    other_engine: str
    other_bytes_a_record: float
    twice_per_s: float | None
    """Records a second that would be placed there `after 2 hits`, None where it is not known how often they come."""
    within_s: float
    """The time that the rates are over."""
    most_bytes_per_s: float | None = None
    """What the policy's `flush` allows; what comes faster waits in DRAM, then is refused."""

    @property
    def wanted_bytes_per_s(self) -> float:
        """Bytes a second that the records ask for."""
        return self.records_per_s * self.bytes_a_record

    @property
    def bytes_per_s(self) -> float:
        """Bytes written a second."""
        most = self.most_bytes_per_s
        return self.wanted_bytes_per_s if most is None else min(most, self.wanted_bytes_per_s)
