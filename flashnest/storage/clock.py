"""Which records a full table gives up: the seam for eviction algorithms, and a second-chance clock. Moves no record."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from flashnest.record import U64Array
from flashnest.storage import kernels_clock


class Evictor(Protocol):
    """Which records a full table gives up. Built from the table's desk; the table calls it in its owner's thread."""

    @property
    def bytes_used(self) -> int:
        """Bytes that it has allocated beside the table."""

    def inserted_many(self, keys: U64Array) -> None:
        """Take note of records that are stored now, new or overwritten."""

    def victims(self, records: int) -> U64Array:
        """Return up to `records` distinct stored keys to give up next, fewer where it has not found more yet."""

    def spare_many(self, keys: U64Array) -> None:
        """Treat these as just used: the victims that were not taken."""


class ClockHand:
    """A second-chance clock over the rows' freq bits."""

    bytes_used = 0

    def __init__(self, desk: U64Array) -> None:
        """Start at the first bucket."""
        self._desk, self._hand = desk, 0

    def inserted_many(self, keys: U64Array) -> None:
        """Nothing to note: the hand meets new records where they lie."""

    def victims(self, records: int) -> U64Array:
        """See `Evictor.victims`; one call goes at most once around."""
        keys = np.empty(records, np.uint64)
        count, self._hand = kernels_clock.clock_victims(self._desk, self._hand, keys)
        return keys[:count]

    def spare_many(self, keys: U64Array) -> None:
        """See `Evictor.spare_many`."""
        kernels_clock.clock_spare(self._desk, keys)
