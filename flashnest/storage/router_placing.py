"""Puts new records where the policy says: the first tier of a record's chain that has room. Moves no stored record.

A record that a table owns is overwritten where it is: moves are the sweep's, and learning a text again must not undo
them. Knows policies only as codes and chains.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from flashnest.record import KEY_BYTES, BoolArray, I64Array, Tier, U8Array, U32Array, U64Array
from flashnest.storage.router_kernels import group_codes, read_facts
from flashnest.storage.router_tiers import Table, Tiers
from flashnest.storage.sketch import AdmissionGate
from flashnest.storage.store import ClockS, PlacementMap

_NOWHERE = 255
_T = TypeVar("_T", bound=np.generic)


class Placer:
    """Fills tiers by a placement map. The tiers' owner thread calls it.

    `stays`: a record that the cold tier owns stays there when it is learnt again (rules decide when it moves), so that
    repeated text writes nothing; without, it moves up to the first tier of its chain that has room.
    """

    def __init__(
        self, tiers: Tiers, placement: PlacementMap, words: int, clock_s: ClockS, *, stays: bool, window_keys: int
    ) -> None:
        self._tiers, self._placement, self._stays = tiers, placement, stays
        self._record_bytes = KEY_BYTES + 4 * words
        self._gates = [
            None if admission is None else AdmissionGate(admission, clock_s=clock_s, expected_keys=window_keys)
            for admission in placement.admissions
        ]
        self._starts = np.zeros(len(placement.chains) + 1, np.int64)
        self.rejected = self.not_admitted = 0
        self._reserve(1024)

    def _reserve(self, records: int) -> None:
        self._tokens, self._kinds = np.zeros(records, np.uint8), np.zeros(records, np.uint8)
        self._namespaces, self._order = np.zeros(records, np.uint32), np.zeros(records, np.int64)
        self._nbytes = np.full(records, self._record_bytes, np.uint32)

    def insert_many(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """See `Router.insert_many`."""
        n = len(keys)
        evicted = self._tiers.evicted
        owners = np.full(n, _NOWHERE, np.uint8)
        for code, at in self._groups(keys, rows):
            if len(at) == n:
                self._place(code, keys, rows, owners)
            else:
                theirs = np.full(len(at), _NOWHERE, np.uint8)
                self._place(code, keys[at], rows[at], theirs)
                owners[at] = theirs
        stored: BoolArray = owners != _NOWHERE
        if self._tiers.evicted != evicted:  # making room may have taken what this call put in before
            stored = (owners == Tier.NVME) | (stored & self._tiers.in_tables(keys))
        return stored

    def _groups(self, keys: U64Array, rows: U32Array) -> list[tuple[int, I64Array]]:
        n = len(keys)
        if n > len(self._tokens):
            self._reserve(2 * n)
        tokens, kinds, namespaces = self._tokens[:n], self._kinds[:n], self._namespaces[:n]
        read_facts(rows, tokens, kinds, namespaces)
        codes = self._placement.chain_codes(tokens, kinds, namespaces, self._nbytes[:n])
        placed = group_codes(codes, keys, self._starts, self._order)
        self.rejected += n - placed
        bounds = self._starts.tolist()
        return [(c, self._order[a:b]) for c, (a, b) in enumerate(pairwise(bounds)) if a != b]

    def _place(self, code: int, keys: U64Array, rows: U32Array, owners: U8Array) -> None:
        """Find an owner for records of one chain: writes it to owners, (n,)."""
        chain, tiers = self._placement.chains[code], self._tiers
        gate = self._gates[code]
        left: I64Array | None = None  # None: all of them
        if chain and (tiers.cold is not None or tiers.vram is not None or gate is not None):
            left = self._overwrite(keys, rows, owners)
            if left is not None and not len(left):
                return
        cold = None if tiers.cold is None or not chain else tiers.cold.may_hold(_part(keys, left))
        if gate is not None:
            left, cold = self._admit(gate, keys, left, cold, owners)
        if cold is not None and self._stays and cold.any():
            left, cold = self._leave_cold(keys, rows, left, cold, owners)
        left = self._fill(chain, keys, rows, left, cold, owners)
        self.rejected += len(keys) if left is None else len(left)

    def _overwrite(self, keys: U64Array, rows: U32Array, owners: U8Array) -> I64Array | None:
        """Overwrite what tables own, in place; returns which records no table owns, None for all."""
        for table in self._tiers.tables:
            if len(table):
                there = table.contains_many(keys)
                if there.all():
                    table.insert_fitting(keys, rows)
                elif there.any():
                    table.insert_fitting(keys[there], rows[there])
                owners[there] = table.tier
        left = np.flatnonzero(owners == _NOWHERE)
        return None if len(left) == len(keys) else left

    def _admit(
        self, gate: AdmissionGate, keys: U64Array, left: I64Array | None, cold: BoolArray | None, owners: U8Array
    ) -> tuple[I64Array, BoolArray | None]:
        """Leave out new records that were not learnt often enough yet."""
        at = np.arange(len(keys)) if left is None else left
        admitted = np.zeros(len(at), np.bool_) if cold is None else cold.copy()
        new = np.flatnonzero(~admitted)
        admitted[new] = gate.admit_many(keys[at[new]])
        self.not_admitted += len(at) - int(np.count_nonzero(admitted))
        return at[admitted], None if cold is None else cold[admitted]

    def _leave_cold(
        self, keys: U64Array, rows: U32Array, left: I64Array | None, cold: BoolArray, owners: U8Array
    ) -> tuple[I64Array, BoolArray]:
        """Give records that the cold tier may own to it: those it knows cost nothing."""
        assert self._tiers.cold is not None
        at = np.arange(len(keys)) if left is None else left
        theirs = at[cold]
        took = self._tiers.put_cold(self._tiers.cold, keys[theirs], rows[theirs])
        owners[theirs[took]] = Tier.NVME
        self.rejected += len(took) - int(np.count_nonzero(took))
        return at[~cold], np.zeros(len(at) - len(theirs), np.bool_)

    def _fill(
        self,
        chain: tuple[Tier, ...],
        keys: U64Array,
        rows: U32Array,
        left: I64Array | None,
        cold: BoolArray | None,
        owners: U8Array,
    ) -> I64Array | None:
        """Offer records to the tiers of their chain in turn; returns those that none took, None for all."""
        for tier in chain:
            took = self._offer(tier, _part(keys, left), _part(rows, left), cold)
            if took is None:
                continue  # a tier that this run does not have
            left, cold = _settle(tier, took, left, cold, owners)
            if not len(left):
                return left
        last = self._last_table(chain)
        if last is not None:
            took = self._tiers.put_table(last, _part(keys, left), _part(rows, left), cold, evict=True)
            left, _ = _settle(last.tier, took, left, cold, owners)
        return left

    def _offer(self, tier: Tier, keys: U64Array, rows: U32Array, cold: BoolArray | None) -> BoolArray | None:
        table = self._tiers.table_of(tier)
        if table is not None:
            return self._tiers.put_table(table, keys, rows, cold)
        return None if self._tiers.cold is None else self._tiers.put_cold(self._tiers.cold, keys, rows)

    def _last_table(self, chain: tuple[Tier, ...]) -> Table | None:
        """Return the table that makes room where a whole chain is full: DRAM's, or VRAM's where there is no other."""
        if Tier.DRAM in chain:
            return self._tiers.dram
        return self._tiers.vram if chain == (Tier.VRAM,) else None


def _part(array: npt.NDArray[_T], at: I64Array | None) -> npt.NDArray[_T]:
    return array if at is None else array[at]


def _settle(
    tier: Tier, took: BoolArray, left: I64Array | None, cold: BoolArray | None, owners: U8Array
) -> tuple[I64Array, BoolArray | None]:
    """Note who took what; returns what is left."""
    if left is None:
        owners[took] = tier
        left = np.flatnonzero(~took)
    else:
        owners[left[took]] = tier
        left = left[~took]
    return left, None if cold is None else cold[~took]
