"""Rules, plans and a rig of three tiers for tests of moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from records import WORDS, Clock, Placement, table_bytes

from flashnest.record import Admission, BoolArray, FactArrays, I64Array, Tier, U8Array, U32Array, U64Array
from flashnest.storage.cold import ColdOptions, ColdTier
from flashnest.storage.lmdb import LmdbStore
from flashnest.storage.router import Router
from flashnest.storage.store import ColdStore, Found, MovePlan, State, StoreStats
from flashnest.storage.table import DramTable

if TYPE_CHECKING:
    from flashnest.storage.vram import VramTable

Condition = Callable[[FactArrays], BoolArray]


def everything(facts: FactArrays) -> BoolArray:
    """Take every record."""
    return np.ones(len(facts.tokens), np.bool_)


@dataclass(frozen=True)
class Rule:
    """A rule compiled by hand."""

    action: str
    source: Tier
    target: Tier | None = None
    condition: Condition = everything
    when_fill: float | None = None
    until_fill: float | None = None
    order: tuple[str, bool] | None = None
    using: str | None = None
    most_records_per_s: float | None = None
    most_bytes_per_s: float | None = None
    cooldown_s: float = 0.0
    min_residency_s: float = 0.0
    number: int = 1
    text: str = "a rule"
    acts: bool = True

    def matches(self, facts: FactArrays) -> BoolArray:
        return self.condition(facts)


@dataclass(frozen=True)
class Plan:
    rules: tuple[Rule, ...]
    windows_s: tuple[int, ...] = ()


@dataclass(frozen=True)
class Everywhere(Placement):
    """The chain is the record's length in tokens, counted from 1."""

    chains: tuple[tuple[Tier, ...], ...] = ((Tier.DRAM,), (Tier.NVME,), (Tier.VRAM,), (Tier.DRAM, Tier.NVME), ())
    admissions: tuple[Admission | None, ...] = (None,) * 5

    def chain_codes(self, tokens: U8Array, kind: U8Array, namespace: object, nbytes: object) -> U8Array:
        codes: U8Array = (tokens - 1).astype(np.uint8)
        return codes


IN_DRAM, IN_NVME, IN_VRAM, IN_DRAM_OR_NVME, NOWHERE = 1, 2, 3, 4, 5
"""Lengths in tokens that `Everywhere` sends there."""


class DictStore:
    """A cold store in a dict with room for so many records."""

    tier = Tier.NVME
    corrupt, value_bytes, merge_bytes = 0, 84, 0

    def __init__(self, room: int) -> None:
        self.held: dict[int, U32Array] = {}
        self.room = room

    def __len__(self) -> int:
        return len(self.held)

    @property
    def full(self) -> bool:
        return len(self.held) >= self.room

    def lookup_many(self, keys: U64Array, found: Found) -> None:
        for i, key in enumerate(keys.tolist()):
            row = self.held.get(key)
            found.state[i] = State.MISS if row is None else State.HIT
            if row is not None:
                found.rows[i] = row

    def contains_many(self, keys: U64Array) -> BoolArray:
        return np.array([key in self.held for key in keys.tolist()], np.bool_)

    def write_many(self, keys: U64Array, rows: U32Array, removes: U64Array) -> BoolArray:
        for key in removes.tolist():
            self.held.pop(key, None)
        stored = np.zeros(len(keys), np.bool_)
        for i, key in enumerate(keys.tolist()):
            stored[i] = key in self.held or not self.full
            if stored[i]:
                self.held[key] = rows[i].copy()
        return stored

    def scan_keys(self) -> Iterator[U64Array]:
        yield np.array(sorted(self.held), np.uint64)

    def scan_from(self, position: int, records: int) -> tuple[U64Array, U32Array, int]:
        keys = sorted(key for key in self.held if key >= position)
        rows = np.array([self.held[key] for key in keys[:records]], np.uint32).reshape(-1, WORDS)
        return np.array(keys[:records], np.uint64), rows, keys[records] if len(keys) > records else 0

    def stats(self) -> StoreStats:
        return StoreStats(len(self), 0, 1 << 30, 0, 0, 0, 0, 0, 0, 0, len(self) / self.room)

    def close(self) -> None:
        """Keep what there is: a test looks at it afterwards."""


@dataclass
class Rig:
    """A router over three tiers, the first two small tables, with a clock for everything."""

    router: Router
    dram: DramTable
    cold: ColdTier
    vram: DramTable | VramTable
    clock: Clock
    found: Found = field(default_factory=lambda: Found.allocate(1024, WORDS))
    asked: int = 0

    def owners(self, keys: U64Array) -> dict[Tier, BoolArray]:
        """Return which keys each tier owns."""
        known = self.cold.lookup_buffered(keys, self.found)
        on_disk = self.cold._store.contains_many(keys)
        return {
            Tier.VRAM: self.vram.contains_many(keys),
            Tier.DRAM: self.dram.contains_many(keys),
            Tier.NVME: np.where(known, self.found.state[: len(keys)] == 1, on_disk),
        }

    def count(self, keys: U64Array, tier: Tier) -> int:
        return int(np.count_nonzero(self.owners(keys)[tier]))

    def ask(self, keys: U64Array) -> Found:
        tickets: I64Array = np.arange(len(keys), dtype=np.int64)
        self.router.lookup_many(keys, tickets, self.found)
        return self.found

    def find(self, keys: U64Array) -> None:
        """Look records up, as often as it takes to have every answer."""
        self.ask(keys)
        self.router.submit()
        self.router.wait(0.0)
        self.router.drain()

    def pass_s(self, seconds: float) -> None:
        """Let time pass, and the writer do what it can."""
        self.clock.now += seconds
        self.cold.pump()

    def sweep(self, times: int = 1) -> None:
        """Sweep with all the time there is; the writer works between two sweeps."""
        for _ in range(times):
            self.router.sweep(1.0)
            self.cold.pump()


def rig(
    path: Path,
    *rules: Rule,
    windows_s: tuple[int, ...] = (),
    units: int = 20,
    vram_units: int = 20,
    store: ColdStore | DictStore | None = None,
    vram: VramTable | None = None,
    plan: MovePlan | None = None,
    placement: Placement | None = None,
    **options: object,
) -> Rig:
    """Return a rig of tables with `units` of 14 slots; options are the cold tier's."""
    clock = Clock()
    disk = store if store is not None else LmdbStore(path, 8 << 20, words=WORDS, clock_s=clock.whole)
    cold = ColdTier(disk, words=WORDS, clock_s=clock.whole, clock=clock, options=ColdOptions(threaded=False, **options))  # type: ignore[arg-type]
    dram = DramTable(table_bytes(units), words=WORDS, clock_s=clock.whole)
    if vram is None:
        vram = DramTable(table_bytes(vram_units), words=WORDS, clock_s=clock.whole, tier=Tier.VRAM, evict=False)
    router = Router(
        dram,
        cold,
        placement or Everywhere(),
        vram=vram,
        moves=plan or (Plan(rules, windows_s) if rules else None),
        clock_s=clock.whole,
        clock_ns=lambda: int(clock.now * 1e9),
    )
    return Rig(router, dram, cold, vram, clock)
