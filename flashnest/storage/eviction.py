"""Which records a full table gives up: S3-FIFO, SIEVE and sampled LRU behind one seam. Moves and reads no record.

Every algorithm decides from the two bits of use (and the queue bit) in a record's packed header, so a hit costs nothing
more than it already does. What they need beside the table is counted in `bytes_used`:

s3fifo  Yang et al., SOSP 2023. New records wait in a small queue, kept at a tenth of the table; used twice there, they
        move to the main part; else they go, and a ghost remembers them: if they come back soon, they go to the main
        part at once. The main part is a clock with uses counted to 3. Approximated: the main part is gone through in
        table order, not in the order of insertion, and a ghost line holds the last 31 of its own keys, not of all.
        5.9 bytes a record: a ring for as many entries as the table has records (while few records prove useful the
        queue is far more than a tenth, as the algorithm wants), and a ghost for 9 in 10 of them.
sieve   Zhang et al., NSDI 2024. The hand goes through the records once around, oldest first, taking those that were not
        used since it last came by; new records are met last. Approximated: those that survived a round are met in table
        order. 4 bytes a record.
lru     Sampled, as Redis does: of 16 records that the hand meets, the one idle longest. Times are whole seconds; within
        one second those found more often count as younger. No memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from flashnest.errors import StoreError
from flashnest.record import U32Array, U64Array
from flashnest.storage import kernels_evict, kernels_idle
from flashnest.storage.kernels_evict import GHOST_LINE, GHOST_MARKS, STATE_WORDS
from flashnest.storage.kernels_layout import BUCKET_KEYS, BUCKETS, MAX_RECORDS, RECORDS
from flashnest.storage.store import ClockS

QUEUE_SHARE: Final = 0.1
"""Share of the records that S3-FIFO's small queue is kept at; the paper's figure."""
GHOST_SHARE: Final = 0.9
SAMPLE: Final = 16
"""Records that LRU compares for each victim: 0.1 points of hit ratio below exact LRU, 5 of them 0.3 (Zipf traces)."""

_SAMPLE_VICTIMS: Final = 4096
_LEAP_SHARE: Final = 0.6180339887
"""The golden ratio: wherever the hand stops, the buckets that it met are spread evenly (Knuth 6.4)."""


class Evictor(Protocol):
    """Which records a full table gives up. Built from the table's desk; the table calls it in its owner's thread."""

    @property
    def bytes_used(self) -> int:
        """Bytes that it has allocated beside the table."""

    def inserted_many(self, keys: U64Array) -> None:
        """Take note of new records, (n,), that are stored now."""

    def victims(self, records: int) -> U64Array:
        """Return up to `records` distinct stored keys to give up next, fewer where it has not found more yet."""

    def spare_many(self, keys: U64Array) -> None:
        """Treat these as just used: the victims that were not taken."""

    def clear(self) -> None:
        """Start afresh: the table forgot every record."""


class QueueEvictor:
    """S3-FIFO or SIEVE: a queue of new records and a hand over the others."""

    def __init__(self, desk: U64Array, *, sieve: bool) -> None:
        """Allocate for as many records as the desk says that the table takes."""
        records = int(desk[MAX_RECORDS])
        self._desk, self._sieve = desk, sieve
        self._target = max(1, int(records * QUEUE_SHARE))
        self._ring: U32Array = np.zeros(records, np.uint32)
        self._ghost = np.zeros(0 if sieve else _ghost_lines(records) * GHOST_LINE, np.uint16)
        self._state = _fresh_state(desk)
        self.victims(0)  # compiled now, not in a step
        self.inserted_many(np.zeros(0, np.uint64))
        self.spare_many(np.zeros(0, np.uint64))

    @property
    def bytes_used(self) -> int:
        """See `Evictor`."""
        return self._ring.nbytes + self._ghost.nbytes + self._state.nbytes

    def inserted_many(self, keys: U64Array) -> None:
        """See `Evictor.inserted_many`."""
        kernels_evict.queue_note(self._desk, self._ring, self._ghost, self._state, keys)

    def victims(self, records: int) -> U64Array:
        """See `Evictor.victims`; fewer only where fewer are stored. Bounded work: `kernels_evict` says by what."""
        keys = np.empty(records, np.uint64)
        count = kernels_evict.queue_victims(
            self._desk, self._ring, self._ghost, self._state, self._target, self._sieve, keys
        )
        return keys[:count]

    def spare_many(self, keys: U64Array) -> None:
        """See `Evictor.spare_many`: they leave the queue with the most uses that count."""
        kernels_evict.queue_spare(self._desk, self._ghost, keys)

    def clear(self) -> None:
        """See `Evictor.clear`."""
        self._ghost[:] = 0
        self._state[:] = _fresh_state(self._desk)


class SampledLru:
    """The record idle longest of each 16 that the hand meets."""

    def __init__(self, desk: U64Array, clock_s: ClockS) -> None:
        """Start at the first bucket."""
        self._desk, self._clock_s = desk, clock_s
        self._state = _fresh_state(desk)
        self.victims(0)  # compiled now, not in a step
        self.spare_many(np.zeros(0, np.uint64))

    @property
    def bytes_used(self) -> int:
        """See `Evictor`."""
        return self._state.nbytes

    def inserted_many(self, keys: U64Array) -> None:
        """Nothing to note: a row says when it was last used."""

    def victims(self, records: int) -> U64Array:
        """See `Evictor.victims`; one call goes at most once around."""
        sample = min(float(SAMPLE), int(self._desk[RECORDS]) / max(1, records))
        steps, parts = int(self._desk[BUCKETS]) * BUCKET_KEYS, [np.zeros(0, np.uint64)]
        for start in range(0, records, _SAMPLE_VICTIMS):
            wanted = min(_SAMPLE_VICTIMS, records - start)
            keys, passed = self._idlest(wanted, max(wanted, int(wanted * sample)), steps)
            parts.append(keys)
            steps -= passed
        return np.concatenate(parts)

    def _idlest(self, wanted: int, sample: int, steps: int) -> tuple[U64Array, int]:
        keys, idle = np.empty(sample, np.uint64), np.empty(sample, np.uint32)
        count, passed = kernels_idle.idle_sample(self._desk, self._state, self._clock_s(), steps, keys, idle)
        if count > wanted:
            return keys[np.argpartition(idle[:count], count - wanted)[count - wanted :]], passed
        return keys[:count], passed

    def spare_many(self, keys: U64Array) -> None:
        """See `Evictor.spare_many`: the hand passes over them once."""
        kernels_idle.idle_spare(self._desk, keys)

    def clear(self) -> None:
        """See `Evictor.clear`."""


def _fresh_state(desk: U64Array) -> U64Array:
    """Return the state of a hand at the first bucket, among the young, and of an empty ring."""
    buckets, state = int(desk[BUCKETS]), np.zeros(STATE_WORDS, np.uint64)
    leap = max(1, int(buckets * _LEAP_SHARE))
    while math.gcd(leap, buckets) != 1:  # then the leaps meet every bucket before they meet one again
        leap += 1
    state[kernels_evict.LEAP] = leap
    state[kernels_evict.LEAP_AHEAD] = leap * kernels_evict.AHEAD % buckets
    state[kernels_evict.YOUNG] = 1
    return state


def _ghost_lines(records: int) -> int:
    return max(1, -(-int(records * GHOST_SHARE) // GHOST_MARKS))


def _queue_bytes(records: int) -> int:
    return 4 * records + 8 * STATE_WORDS


_ALGORITHMS: Final[dict[str, tuple[Callable[[U64Array, ClockS], Evictor], Callable[[int], int]]]] = {
    "s3fifo": (
        lambda desk, clock_s: QueueEvictor(desk, sieve=False),
        lambda records: _queue_bytes(records) + 2 * GHOST_LINE * _ghost_lines(records),
    ),
    "sieve": (lambda desk, clock_s: QueueEvictor(desk, sieve=True), _queue_bytes),
    "lru": (SampledLru, lambda records: 8 * STATE_WORDS),
}
EVICTIONS: Final = tuple(_ALGORITHMS)


def _algorithm(eviction: str) -> tuple[Callable[[U64Array, ClockS], Evictor], Callable[[int], int]]:
    if eviction not in _ALGORITHMS:
        raise StoreError(
            f"there is no eviction algorithm {eviction!r}",
            why=f"the table knows {', '.join(EVICTIONS)}",
            fix="name one of these",
        )
    return _ALGORITHMS[eviction]


def evictor_of(eviction: str, desk: U64Array, clock_s: ClockS) -> Evictor:
    """Build the evictor for a table whose desk says its size. Raises StoreError for a name not in `EVICTIONS`."""
    return _algorithm(eviction)[0](desk, clock_s)


def evictor_bytes(eviction: str, records: int) -> int:
    """Return what `evictor_of` will allocate beside a table that takes `records`. Raises as `evictor_of`."""
    return _algorithm(eviction)[1](records)
