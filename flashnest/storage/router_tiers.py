"""Who owns a record: the tiers a run has, and every way in which a record changes hands. Knows no policy and no rule.

Exactly one tier owns a record. A record is stored where it goes before it is removed where it was, both within one
call of the one thread that owns all tiers; where the removal cannot be noted, the new copy is taken back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from flashnest.record import BoolArray, I64Array, Tier, U32Array, U64Array
from flashnest.storage.cold import ColdTier
from flashnest.storage.router_flights import Flights
from flashnest.storage.store import Found, Store

Keeps = Callable[[Tier, U64Array, U32Array], BoolArray]
"""Which records of a tier the policy keeps there, (n,)."""

_ROOM_RECORDS: Final = 256
"""Records asked of a full table's eviction at once where some may have to stay: 16 KiB of rows."""


class Table(Store, Protocol):
    """What the router needs of a tier that it asks in line: the DRAM table, or the VRAM table in the same shape."""

    def __len__(self) -> int: ...

    @property
    def max_records(self) -> int:
        """How many records fit in all."""

    @property
    def free_records(self) -> int:
        """How many more records fit."""

    @property
    def evicted(self) -> int:
        """Records that the eviction has taken so far."""

    def longest_many(self, keys: U64Array, found: Found, index: I64Array) -> None:
        """Find the longest stored of each row of keys (n, k), shortest first; index (n,): which it was, -1 for none."""

    def insert_fitting(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """Like `insert_many`, rejecting what does not fit."""

    def insert_evicting(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """Like `insert_many`, making room."""

    def scan_slice(self, hand: int, records: int) -> tuple[U64Array, U32Array, int]:
        """Return about `records` records from `hand` on, and where to go on: 0 after the last. Touches nothing."""

    def victims(self, records: int) -> tuple[U64Array, U32Array]:
        """Return the records that the eviction would take next, still stored."""

    def spare_many(self, keys: U64Array) -> None:
        """Say that victims were not taken: they count as just used."""


class Tiers:
    """The open tiers, fastest first. One thread owns them; the cold tier's threads are its own affair."""

    def __init__(self, dram: Table, cold: ColdTier | None, vram: Table | None, words: int) -> None:
        self.dram, self.cold, self.vram = dram, cold, vram
        self.tables: tuple[Table, ...] = (dram,) if vram is None else (vram, dram)
        self.flights: Flights | None = None
        """Noted only where a rule promotes cold records."""
        self.keeps: Keeps | None = None
        """Set where a rule keeps records in a table."""
        self.kept_out = 0
        """Records that insertion has pushed out of a table around those that stay."""
        self._found = Found.allocate(0, words)
        self._words = words

    def table_of(self, tier: Tier) -> Table | None:
        """Return a tier's table, None where it has none."""
        if tier is Tier.DRAM:
            return self.dram
        return self.vram if tier is Tier.VRAM else None

    @property
    def evicted(self) -> int:
        """Records that insertion has pushed out of tables so far."""
        return self.kept_out + sum(table.evicted for table in self.tables)

    def fill(self, tier: Tier) -> float:
        """Return the share of a tier's room that records take, 0..1."""
        table = self.table_of(tier)
        if table is not None:
            return len(table) / table.max_records
        return self.cold.stats().fill if self.cold is not None and tier is Tier.NVME else 0.0

    def in_tables(self, keys: U64Array) -> BoolArray:
        """Return which keys a table owns, (n,)."""
        there = self.dram.contains_many(keys)
        if self.vram is not None and len(self.vram):
            there |= self.vram.contains_many(keys)
        return there

    def only_cold(self, keys: U64Array) -> BoolArray:
        """Return which keys the cold tier may own, (n,)."""
        if self.cold is None:
            return np.zeros(len(keys), np.bool_)
        maybe = self.cold.may_hold(keys)
        at = np.flatnonzero(maybe)
        if len(at):
            maybe[at] = ~self.in_tables(keys[at])
        return maybe

    def put_table(
        self, table: Table, keys: U64Array, rows: U32Array, cold: BoolArray | None, *, evict: bool = False
    ) -> BoolArray:
        """Store records that no table owns; returns which were stored, (n,). `cold`: those the cold tier may own."""
        if evict and self.keeps is not None:
            took = self._put_around_kept(table, keys, rows, self.keeps)
        else:
            took = table.insert_evicting(keys, rows) if evict else table.insert_fitting(keys, rows)
        if cold is not None and (moved := took & cold).any():
            self._take_from_cold(table, keys, took, moved)
        return took

    def _take_from_cold(self, table: Table, keys: U64Array, took: BoolArray, moved: BoolArray) -> None:
        at = np.flatnonzero(moved)
        stuck = at[~self.forget_cold(keys[at])]
        if len(stuck):
            table.remove_many(keys[stuck])  # the removal could not be noted: the cold tier stays the owner
            took[stuck] = False

    def _put_around_kept(self, table: Table, keys: U64Array, rows: U32Array, keeps: Keeps) -> BoolArray:
        """Make room out of what need not stay, looking at each record of the table once at most."""
        seen = 0
        missing = len(keys) - table.free_records
        while missing > 0 and seen < table.max_records + _ROOM_RECORDS:
            victims, theirs = table.victims(min(missing, _ROOM_RECORDS))
            seen += len(victims) or table.max_records // 2 + 1  # none: it has looked at all once
            stay = keeps(table.tier, victims, theirs)
            if stay.any():
                table.spare_many(victims[stay])
            gone = int(np.count_nonzero(table.remove_many(victims[~stay])))
            self.kept_out += gone
            missing -= gone
        return table.insert_fitting(keys, rows)

    def put_cold(self, cold: ColdTier, keys: U64Array, rows: U32Array, *, replace: bool = False) -> BoolArray:
        """Store records that no table owns, or with `replace` those that leave one; returns which are stored, (n,)."""
        took = cold.insert_many(keys, rows, replace=replace)
        if self.flights is not None and len(self.flights):
            self._spoil_changed(cold, self.flights, keys[took], changed=replace)
        return took

    def _spoil_changed(self, cold: ColdTier, flights: Flights, keys: U64Array, *, changed: bool) -> None:
        """Spoil the answers under way of records just changed; one that was known, and so left alone, is not."""
        if not changed:
            keys = keys[flights.under_way_many(keys)]
            if not len(keys):
                return
            if len(keys) > self._found.capacity:
                self._found = Found.allocate(2 * len(keys), self._words)
            keys = keys[cold.lookup_buffered(keys, self._found)]
        flights.spoil_many(keys)

    def forget_cold(self, keys: U64Array) -> BoolArray:
        """Remove records from the cold tier; returns which removals were taken, (n,)."""
        if self.cold is None:
            return np.zeros(len(keys), np.bool_)
        if self.flights is not None:
            self.flights.spoil_many(keys)
        return self.cold.forget_many(keys)

    def move(self, source: Tier, target: Tier, keys: U64Array, rows: U32Array) -> BoolArray:
        """Make `target` the owner of records that `source` owns; returns which moved, (n,). Makes no room."""
        table, origin = self.table_of(target), self.table_of(source)
        if table is not None:
            took = table.insert_fitting(keys, rows)
        elif self.cold is not None:
            took = self.put_cold(self.cold, keys, rows, replace=True)
        else:
            return np.zeros(len(keys), np.bool_)
        if origin is not None:
            origin.remove_many(keys[took])
        elif table is not None and took.any():
            self._take_from_cold(table, keys, took, took.copy())
        return took

    def drop(self, source: Tier, keys: U64Array) -> BoolArray:
        """Remove records that `source` owns for good; returns which, (n,)."""
        table = self.table_of(source)
        return self.forget_cold(keys) if table is None else table.remove_many(keys)

    def remove_many(self, keys: U64Array) -> BoolArray:
        """Remove records wherever they are; see `Router.remove_many`."""
        cold = self.only_cold(keys)
        removed = self.dram.remove_many(keys)
        if self.vram is not None and len(self.vram):
            removed |= self.vram.remove_many(keys)
        if cold.any():
            removed[cold] = self.forget_cold(keys[cold])
        return removed

    def feedback_many(self, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
        """Add draft counts to records wherever they are."""
        for table in self.tables:
            if len(table):
                table.feedback_many(keys, drafted, accepted)
        if self.cold is not None:
            cold = self.only_cold(keys)
            if cold.any():
                self.cold.feedback_many(keys[cold], drafted[cold], accepted[cold])

    def close(self) -> None:
        """Close all tiers, the cold one first: it may fail, memory does not."""
        if self.cold is not None:
            self.cold.close()
        for table in self.tables:
            table.close()
