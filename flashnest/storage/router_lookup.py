"""The order of a lookup: VRAM table, DRAM table, the cold tier's buffer, filter and queue. Moves and stores nothing.

Two shapes share it: a flat batch of keys, and the longest of several keys for each sequence. Buffers are allocated
once and grow only with the batch.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest.hashing import hash_tails
from flashnest.record import BoolArray, I32Array, I64Array, Tier, U64Array
from flashnest.storage.cold import ColdTier
from flashnest.storage.router_kernels import (
    mark_pending,
    mask_shorter,
    pick_hits,
    pick_longer,
    pick_missing,
    take_known,
    take_longer,
)
from flashnest.storage.router_tiers import Table, Tiers
from flashnest.storage.store import Found, State
from flashnest.storage.sweep import Sweep
from flashnest.storage.table import DramTable

_FIRST_KEYS: Final = 1024
_NO_INDEX: Final = np.zeros(0, np.int64)
_VRAM, _DRAM, _NVME = int(Tier.VRAM), int(Tier.DRAM), int(Tier.NVME)
"""As plain integers: numba takes 100 us to look at an enum each time it is handed one."""


class Lookup:
    """Answers batches from the open tiers. The tiers' owner thread calls it."""

    def __init__(self, tiers: Tiers, dram: DramTable, sweep: Sweep | None, words: int) -> None:
        self._tiers, self._dram, self._cold, self._sweep = tiers, dram, tiers.cold, sweep
        self._words = words
        self._sees_hits = sweep is not None and sweep.sees_hits
        self._reserve(_FIRST_KEYS)

    def _reserve(self, keys: int) -> None:
        self._keys, self._tickets = np.zeros(keys, np.uint64), np.zeros(keys, np.int64)
        self._places, self._index = np.zeros(keys, np.int64), np.zeros(keys, np.int64)
        self._masked, self._hit_keys = np.zeros(keys, np.uint64), np.zeros(keys, np.uint64)
        self._hit_places = np.zeros(keys, np.int64)
        self._answers = Found.allocate(keys, self._words)

    def compile(self) -> None:
        """Load or compile the kernels that a lookup reaches only where records are; see `Router`."""
        keys, tickets, no_keys = np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros((0, 1), np.uint64)
        found, index, none = Found.allocate(1, self._words), np.zeros(1, np.int64), np.zeros(0, np.bool_)
        self._take_known(none, 1, _NVME, found, _NO_INDEX)
        mark_pending(1, none, self._places, found.state)
        if self._tiers.vram is not None:
            self._vram_many(self._tiers.vram, keys, tickets, found)
            self._vram_longest(self._tiers.vram, no_keys, found, index)

    def many(self, keys: U64Array, tickets: I64Array, found: Found) -> None:
        """See `Router.lookup_many`."""
        n = len(keys)
        if n > len(self._keys):
            self._reserve(2 * n)
        vram = self._tiers.vram
        if vram is not None and len(vram):
            self._vram_many(vram, keys, tickets, found)
        else:
            self._dram.lookup_many(keys, found)
        if self._sees_hits and self._sweep is not None:
            self._sweep.saw(keys[found.state[:n] == State.HIT])
        if self._cold is not None:
            left = pick_missing(keys, tickets, found.state, self._keys, self._tickets, self._places)
            if left:
                self._ask_cold(self._cold, left, 1, found, _NO_INDEX)

    def _vram_many(self, vram: Table, keys: U64Array, tickets: I64Array, found: Found) -> None:
        """Ask VRAM for all keys, DRAM for the rest."""
        vram.lookup_many(keys, found)
        left = pick_missing(keys, tickets, found.state, self._keys, self._tickets, self._places)
        if left:
            self._dram.lookup_many(self._keys[:left], self._answers)
            self._take_known(self._answers.state[:left] == State.HIT, 1, _DRAM, found, _NO_INDEX)

    def longest_many(self, keys: U64Array, tickets: I64Array, found: Found, index: I64Array) -> None:
        """See `Router.longest_many`."""
        if keys.size > len(self._keys):
            self._reserve(2 * keys.size)
        vram = self._tiers.vram
        if vram is not None and len(vram):
            self._vram_longest(vram, keys, found, index)
        else:
            self._dram.longest_many(keys, found, index)
        self._note_hits(keys, index)
        self._ask_longer(keys, tickets, found, index)

    def longest_tails_many(
        self,
        tokens: I32Array,
        ends: I32Array,
        salts: U64Array,
        lengths: I32Array,
        tickets: I64Array,
        keys: U64Array,
        found: Found,
        index: I64Array,
    ) -> None:
        """See `Router.longest_tails_many`."""
        self.in_tables(tokens, ends, salts, lengths, keys, found, index)
        self._ask_longer(keys, tickets, found, index)

    def in_tables(
        self,
        tokens: I32Array,
        ends: I32Array,
        salts: U64Array,
        lengths: I32Array,
        keys: U64Array,
        found: Found,
        index: I64Array,
    ) -> None:
        """See `Router.extend_tails_many`."""
        if keys.size > len(self._keys):
            self._reserve(2 * keys.size)
        vram = self._tiers.vram
        if vram is not None and len(vram):
            hash_tails(tokens, ends, salts, lengths, keys)
            self._vram_longest(vram, keys, found, index)
        else:
            self._dram.longest_tails_many(tokens, ends, salts, lengths, keys, found, index)
        self._note_hits(keys, index)

    def _note_hits(self, keys: U64Array, index: I64Array) -> None:
        """Offer what was found to the sweep."""
        if self._sees_hits and self._sweep is not None:
            self._sweep.saw(self._keys[: pick_hits(keys, index, self._keys)])

    def _ask_longer(self, keys: U64Array, tickets: I64Array, found: Found, index: I64Array) -> None:
        """Ask the cold tier for what is longer than the tables' matches."""
        if self._cold is not None:
            left = pick_longer(keys, tickets, index, self._keys, self._tickets, self._places)
            if left:
                self._ask_cold(self._cold, left, keys.shape[1], found, index)

    def _vram_longest(self, vram: Table, keys: U64Array, found: Found, index: I64Array) -> None:
        """Ask VRAM for all lengths, DRAM for those longer than what VRAM has."""
        mine, answers = self._index[: len(keys)], self._answers
        vram.longest_many(keys, answers, mine)
        masked = self._masked[: keys.size].reshape(keys.shape)
        mask_shorter(keys, mine, masked)
        self._dram.longest_many(masked, found, index)
        take_longer(mine, answers.rows, _VRAM, found.state, found.tier, found.rows, index)

    def _ask_cold(self, cold: ColdTier, count: int, lengths: int, found: Found, index: I64Array) -> None:
        """Ask the cold tier for the first `count` gathered keys: filter and buffer first, then the queue."""
        keys, tickets, places = self._keys, self._tickets, self._places
        left = self._take_known(cold.lookup_buffered(keys[:count], self._answers), lengths, _NVME, found, index)
        if not left:
            return
        if cold.blocking:
            self._read_now(cold, left, lengths, found, index)
            return
        pending = cold.ask(keys[:left], tickets[:left])
        if mark_pending(lengths, pending, places, found.state) and self._tiers.flights is not None:
            self._tiers.flights.add_many(keys[:left][pending])

    def _take_known(self, known: BoolArray, lengths: int, code: int, found: Found, index: I64Array) -> int:
        """Deliver the answers to the gathered keys, (n,), offer hits to the sweep; returns how many are left to ask."""
        answers = self._answers
        left, hits = take_known(
            len(known),
            lengths,
            known,
            self._keys,
            self._tickets,
            self._places,
            answers.state,
            answers.rows,
            code,
            found.state,
            found.tier,
            found.rows,
            index,
            self._hit_keys,
            self._hit_places,
        )
        if hits and code == _NVME and self._sweep is not None:
            self._sweep.buffered(self._hit_keys[:hits].copy(), answers.rows[self._hit_places[:hits]])
        return left

    def _read_now(self, cold: ColdTier, count: int, lengths: int, found: Found, index: I64Array) -> None:
        """Read the gathered keys one after the other, the longest of a sequence first, as the field report's L2 did."""
        keys, places = self._keys[:count].copy(), self._places[:count].tolist()
        for i in range(count - 1, -1, -1):
            r, length = divmod(places[i], lengths)
            if len(index) and length <= index[r]:
                continue
            row = cold.read_now(keys[i : i + 1])
            if row is not None:
                found.state[r], found.tier[r], found.rows[r] = State.HIT, Tier.NVME, row
                if len(index):
                    index[r] = length
                if self._sweep is not None:
                    self._sweep.buffered(keys[i : i + 1], row[None].copy())
