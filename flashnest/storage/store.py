"""The seam every tier implements: batches of keys in, batches of rows out. Owns no bytes itself.

Thread rule for every store: one owner thread calls its methods. A store that also works in the background says so in
its own docstring and keeps its locking to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, Self

import numpy as np

from flashnest.record import Admission, BoolArray, FactArrays, Tier, U8Array, U32Array, U64Array

ClockS = Callable[[], int]
"""Whole seconds since an epoch of the caller's choice; tests pass a counter they advance by hand."""


class State(IntEnum):
    """What became of one key of a batch."""

    MISS = 0
    HIT = 1
    PENDING = 2
    """A cold read is on its way; its answer comes out of a later `Router.drain`."""


@dataclass(frozen=True, slots=True)
class Found:
    """Answer buffers for a batch of lookups, allocated once and reused: lookups on the decode path allocate nothing.

    state uint8 (capacity,): `State` codes; tier uint8 (capacity,): `Tier` codes where state is HIT;
    rows uint32 (capacity, words): the record where state is HIT, undefined elsewhere.
    A call with n keys writes the first n entries only.
    """

    state: U8Array
    tier: U8Array
    rows: U32Array

    @classmethod
    def allocate(cls, capacity: int, words: int) -> Self:
        """Return buffers for up to `capacity` keys whose rows have `words` uint32 words."""
        return cls(np.zeros(capacity, np.uint8), np.zeros(capacity, np.uint8), np.zeros((capacity, words), np.uint32))

    @property
    def capacity(self) -> int:
        """The largest batch these buffers take."""
        return len(self.state)


@dataclass(frozen=True, slots=True)
class StoreStats:
    """A tier's figures for the report. Counters run since the store was opened."""

    records: int
    bytes_used: int
    """What the store has allocated (DRAM) or holds on disk (NVMe); never above `bytes_budget`."""
    bytes_budget: int
    lookups: int
    hits: int
    inserts: int
    updates: int
    removes: int
    rejected: int
    """Records refused because the tier was full."""
    evicted: int
    fill: float
    """Share of the room that records take, 0..1: the policy fact `fill`."""


class Store(Protocol):
    """One tier. Keys are uint64 (n,), never 0; rows are uint32 (n, words), laid out as in `flashnest.record`."""

    tier: Tier

    def lookup_many(self, keys: U64Array, found: Found) -> None:
        """Answer a batch: writes HIT or MISS, tier and row for each key, and touches hits and last access.

        A key of 0 is a MISS. Raises ValueError where the batch is larger than `found.capacity`.
        """

    def contains_many(self, keys: U64Array) -> BoolArray:
        """Return which keys are stored, shape (n,), touching nothing."""

    def insert_many(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """Insert or overwrite records; returns bool (n,): False where the tier was full and the record is not stored.

        A key given twice in a batch ends as its last row. Overwriting keeps HITS, INSERTED, DRAFTED and ACCEPTED of the
        stored record unless the kind or the first continuation token changes.
        """

    def remove_many(self, keys: U64Array) -> BoolArray:
        """Remove records; returns bool (n,): whether each was there."""

    def feedback_many(self, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
        """Add drafted and accepted token counts to the records that are there; DRAM only, never a write to NVMe."""

    def scan(self) -> Iterator[tuple[U64Array, U32Array]]:
        """Yield every record once, in batches of (keys, rows). The store must not change meanwhile."""

    def stats(self) -> StoreStats:
        """Return the tier's figures."""

    def close(self) -> None:
        """Flush what is owed and give everything back. A second call does nothing."""


class ColdStore(Store, Protocol):
    """What `ColdTier` needs of an NVMe engine: one thread may write while another reads."""

    @property
    def full(self) -> bool:
        """Whether new records are refused until some are removed."""

    @property
    def corrupt(self) -> int:
        """Damaged records met so far; each was a miss."""

    @property
    def value_bytes(self) -> int:
        """Bytes of key and value that one record takes."""

    @property
    def merge_bytes(self) -> int:
        """Bytes written anew so far beside the records' own, where the engine counts them."""

    def __len__(self) -> int:
        """Return how many records are stored."""

    def write_many(self, keys: U64Array, rows: U32Array, removes: U64Array) -> BoolArray:
        """Remove `removes`, then insert records, durably; returns which were inserted, (n,)."""

    def scan_keys(self) -> Iterator[U64Array]:
        """Yield every key once, in batches, ascending. The store may change meanwhile: then of the changed keys none is
        promised. For the writer's thread."""

    def scan_from(self, position: int, records: int) -> tuple[U64Array, U32Array, int]:
        """Read about `records` records from `position` on: keys (n,), rows (n, words), where to go on (0: at the end).

        Positions are the engine's own; 0 is the start. The store may change between calls. For the writer's thread.
        """


class PlacementMap(Protocol):
    """What storage needs of a compiled policy: which chain of tiers each new record gets.

    `chains[code]` is the tiers to try in order, `()` to reject. Codes come from `chain_codes`, vectorised.
    """

    @property
    def chains(self) -> tuple[tuple[Tier, ...], ...]:
        """The distinct targets of the policy: chains, apart where their admission differs."""

    @property
    def admissions(self) -> tuple[Admission | None, ...]:
        """What each of `chains` asks before it takes a new record; None: nothing."""

    def chain_codes(self, tokens: U8Array, kind: U8Array, namespace: U32Array, nbytes: U32Array) -> U8Array:
        """Return the index into `chains` for each record, shape (n,). All arguments have shape (n,)."""


class MoveRule(Protocol):
    """One compiled `keep`, `promote`, `demote` or `evict` statement.

    `source` is the tier whose records it looks at (for `keep`: the tier they stay in), `target` where they go (None for
    `keep` and `evict`). Watermarks are shares of the source's room, 0..1: the rule starts above `when_fill` and stops
    below `until_fill`; without them it always runs. `order` is (fact name, descending) and `using` the name of an
    eviction algorithm: which of the matching records go first. `cooldown_s`: a record that any rule moved within that
    time is left alone. `min_residency_s`: so is one that came into its tier within that time.
    Without `acts` it is a trial: what it would take is counted and stays.
    """

    @property
    def number(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def source(self) -> Tier: ...
    @property
    def target(self) -> Tier | None: ...
    @property
    def when_fill(self) -> float | None: ...
    @property
    def until_fill(self) -> float | None: ...
    @property
    def order(self) -> tuple[str, bool] | None: ...
    @property
    def using(self) -> str | None: ...
    @property
    def most_records_per_s(self) -> float | None: ...
    @property
    def most_bytes_per_s(self) -> float | None: ...
    @property
    def acts(self) -> bool: ...
    @property
    def cooldown_s(self) -> float: ...
    @property
    def min_residency_s(self) -> float: ...

    def matches(self, facts: FactArrays) -> BoolArray:
        """Return which records the rule's condition takes, shape (n,)."""


class MovePlan(Protocol):
    """The moves of a compiled policy, in file order; `windows_s` are the times of its `hits in TIME` facts."""

    @property
    def rules(self) -> Sequence[MoveRule]: ...
    @property
    def windows_s(self) -> tuple[int, ...]: ...
