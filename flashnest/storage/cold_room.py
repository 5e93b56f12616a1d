"""How much room a cold tier has, what waits to be written included. Reads a store's figures, changes nothing."""

from __future__ import annotations

from flashnest.storage.cold_writes import WriteBuffer
from flashnest.storage.store import ColdStore, StoreStats


class ColdRoom:
    """A store's figures are asked for once a batch; in between, what waits in the buffer counts as stored."""

    def __init__(self, store: ColdStore, writes: WriteBuffer) -> None:
        self._store, self._writes = store, writes
        self._batches, self._free = -1, 0.0

    @property
    def records(self) -> int:
        """Records stored and waiting, less removals that wait."""
        return max(0, len(self._store) + self._writes.growth)

    def is_full(self) -> bool:
        """Return whether new records must be refused, since they would be lost once their batch is written."""
        if self._batches != self._writes.batches:
            self._batches = self._writes.batches
            disk = self._store.stats()
            self._free = (1.0 - disk.fill) / self._share(disk)
        return self._store.full or self._writes.growth >= self._free

    def fill(self, disk: StoreStats) -> float:
        """Return the share of the room that is taken, 0..1, given the store's figures of now."""
        return min(1.0, max(0.0, disk.fill + self._writes.growth * self._share(disk)))

    def _share(self, disk: StoreStats) -> float:
        """Return the share of the room that one record takes."""
        if disk.records and disk.fill > 0:
            return disk.fill / disk.records
        return self._store.value_bytes / disk.bytes_budget
