"""Which records moved lately, and rules that move them to and fro: found at run time, suspended, said once.

Linux's tiering counts pages that are promoted again soon after they were demoted and takes that as the sign that moving
does harm (TPP, ASPLOS 2023); so does this. Bounded and lossy: 4 MiB whatever the table's size. Never moves a record.
"""

from __future__ import annotations

import logging
from typing import Final

import numpy as np

from flashnest.hashing import mix64
from flashnest.jit import kernel
from flashnest.record import Tier, U8Array, U32Array, U64Array

SLOTS: Final = 1 << 18
"""Moves remembered; a later one takes the slot of an earlier one by hash. 2000 moves a second are kept for a minute,
after which a quarter is lost; what is lost is only moved or counted once too often."""
WINDOW_S: Final = 60
"""A record that goes back where it came from within this time is a ping-pong."""
JUDGED_MOVES: Final = 64
SHARE: Final = 0.25
FIRST_SUSPENSION_S: Final = 60
LONGEST_SUSPENSION_S: Final = 3600
NEVER_S: Final = 0xFFFF_FFFF

_MASK = np.uint64(SLOTS - 1)
_NO_WAY: Final = 255
_log = logging.getLogger("flashnest.storage")


@kernel
def _note(
    slots: U64Array, times: U32Array, ways: U8Array, keys: U64Array, now: int, way: int, back: int, window: int
) -> int:
    """Note moves the way `way`; returns how many of the records had come the way `back` within `window` seconds."""
    returned: int = 0
    for i in range(keys.shape[0]):
        at = mix64(keys[i]) & _MASK
        if slots[at] == keys[i] and ways[at] == back and now - np.int64(times[at]) <= window:
            returned += 1
        slots[at], times[at], ways[at] = keys[i], now, way
    return returned


@kernel
def _ages(slots: U64Array, times: U32Array, keys: U64Array, now: int, ages: U32Array) -> None:
    for i in range(keys.shape[0]):
        at = mix64(keys[i]) & _MASK
        ages[i] = NEVER_S
        if slots[at] == keys[i]:
            ages[i] = max(now - int(times[at]), 0)


def _way(source: Tier, target: Tier | None) -> int:
    return _NO_WAY if target is None else 8 * source + target


class RecentMoves:
    """When each of the last records moved, and which way. One thread owns it. Keys are uint64 (n,)."""

    def __init__(self) -> None:
        self._slots = np.zeros(SLOTS, np.uint64)
        self._times = np.zeros(SLOTS, np.uint32)
        self._ways = np.full(SLOTS, _NO_WAY, np.uint8)
        none = np.zeros(0, np.uint64)  # compiled now, not in a step
        self.note_many(none, 0, Tier.DRAM, Tier.NVME, 0)
        self.ages_many(none, 0)

    @property
    def bytes_used(self) -> int:
        """Bytes allocated."""
        return self._slots.nbytes + self._times.nbytes + self._ways.nbytes

    def note_many(self, keys: U64Array, now_s: int, source: Tier, target: Tier | None, window_s: int) -> int:
        """Note that records moved; returns how many had come from `target` to `source` within `window_s`."""
        back = _NO_WAY - 1 if target is None else _way(target, source)
        return _note(self._slots, self._times, self._ways, keys, now_s, _way(source, target), back, window_s)

    def ages_many(self, keys: U64Array, now_s: int) -> U32Array:
        """Return the seconds since each record moved, uint32 (n,); NEVER_S where that is not known."""
        ages = np.empty(len(keys), np.uint32)
        _ages(self._slots, self._times, keys, now_s, ages)
        return ages


class Breaker:
    """Suspends one rule when more than a quarter of its last 64 or more moves were ping-pongs.

    60 s the first time, then twice as long each time, an hour at most; after an hour without a suspension it starts
    anew. The decay by halves keeps about the last 64 to 128 moves in the balance.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._moves = self._returned = 0.0
        self._next_s = FIRST_SUSPENSION_S
        self._until_s = 0
        self.ping_pongs = self.suspensions = self.suspended_s = 0

    def is_open(self, now_s: int) -> bool:
        """Whether the rule is suspended."""
        return now_s < self._until_s

    def note(self, moves: int, returned: int, now_s: int) -> None:
        """Count moves, `returned` of them ping-pongs, and suspend the rule where they are too many."""
        self.ping_pongs += returned
        if self._moves >= 2 * JUDGED_MOVES:
            self._moves, self._returned = self._moves / 2, self._returned / 2
        self._moves += moves
        self._returned += returned
        if self._moves >= JUDGED_MOVES and self._returned > SHARE * self._moves:
            self._suspend(now_s)

    def _suspend(self, now_s: int) -> None:
        if now_s - self._until_s > LONGEST_SUSPENSION_S:
            self._next_s = FIRST_SUSPENSION_S
        _log.warning(
            "rule suspended for %d s, %.0f %% of its last moves undid others: %s",
            self._next_s,
            100 * self._returned / self._moves,
            self._text,
        )
        self._until_s = now_s + self._next_s
        self.suspensions += 1
        self.suspended_s += self._next_s
        self._next_s = min(2 * self._next_s, LONGEST_SUSPENSION_S)
        self._moves = self._returned = 0.0
