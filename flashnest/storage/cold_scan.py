"""The slow walk over what NVMe holds, a slice at a time, for rules that look at cold records. Changes no record.

The owner's thread asks, the writer's thread reads when it has nothing to write, the owner takes a later step. A record
that was written, replaced or removed since it was read is left out: what is taken is what is stored.
"""

from __future__ import annotations

import numpy as np

from flashnest.record import U32Array, U64Array
from flashnest.storage.cold_writes import WriteBuffer
from flashnest.storage.store import ColdStore


class _Slice:
    """One question, an `Errand`; `done` when the rest may be read."""

    def __init__(self, store: ColdStore, position: int, records: int, words: int) -> None:
        self._store, self._records = store, records
        self.position = position
        self.keys, self.rows = np.zeros(0, np.uint64), np.zeros((0, words), np.uint32)
        self.done = False

    def step(self) -> bool:
        """See `Errand.step`."""
        self.keys, self.rows, self.position = self._store.scan_from(self.position, self._records)
        self.done = True
        return True

    def fail(self, error: Exception) -> None:
        """See `Errand.fail`: the walk starts again."""
        self.position = 0
        self.done = True


class ColdScan:
    """Walks round and round through a store. The owner's thread calls it."""

    def __init__(self, store: ColdStore, writes: WriteBuffer, words: int) -> None:
        self._store, self._writes, self._words = store, writes, words
        self._slice: _Slice | None = None
        self.position = 0

    def ask(self, records: int) -> None:
        """Have the next slice read, unless one is asked for already."""
        if self._slice is None:
            self._slice = _Slice(self._store, self.position, records, self._words)
            self._writes.watch()
            self._writes.run_errand(self._slice, first=True)

    def take(self) -> tuple[U64Array, U32Array] | None:
        """Return keys (n,) and rows (n, words) of the slice asked for, once it is read."""
        part = self._slice
        if part is None or not part.done:
            return None
        self._slice, self.position = None, part.position
        changed = self._writes.changed_many(part.keys)
        self._writes.unwatch()
        return (part.keys[~changed], part.rows[~changed]) if changed.any() else (part.keys, part.rows)
