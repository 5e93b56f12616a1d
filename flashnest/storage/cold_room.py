"""How much room a cold tier has, what waits to be written included. Reads a store's figures, changes nothing."""

from __future__ import annotations

from typing import Final

from flashnest.storage.cold_writes import WriteBuffer
from flashnest.storage.store import ColdStore, StoreStats

_BYTES_A_BYTE: Final = 2.0
"""Bytes of file a byte of record, for a store that is empty yet: LMDB 1.9."""


class ColdRoom:
    """A store's figures are asked for once a batch; in between, what waits in the buffer counts as stored."""

    def __init__(self, store: ColdStore, writes: WriteBuffer) -> None:
        self._store, self._writes = store, writes
        self._batches, self._free = -1, 0.0

    @property
    def records(self) -> int:
        """Records stored and waiting, less removals that wait."""
        return max(0, len(self._store) + self._writes.growth)

    @property
    def free(self) -> int:
        """New records that may be taken; more would be lost once their batch is written."""
        if self._store.full:
            return 0
        if self._batches != self._writes.batches:
            self._batches = self._writes.batches
            disk = self._store.stats()
            self._free = (1.0 - disk.fill) / self._share(disk)
        return max(0, int(self._free) - self._writes.growth)

    def fill(self, disk: StoreStats) -> float:
        """Return the share of the room that is taken, 0..1, given the store's figures of now."""
        return min(1.0, max(0.0, disk.fill + self._writes.growth * self._share(disk)))

    def _share(self, disk: StoreStats) -> float:
        """Return the share of the room that one record takes."""
        if disk.records and disk.fill > 0:
            return disk.fill / disk.records
        return _BYTES_A_BYTE * self._store.value_bytes / disk.bytes_budget
