"""Rebuilds a cold tier's membership filter in the writer's spare time. Answers no lookup.

The owner's thread begins a rebuild when a batch was just sealed: what came before is in that batch or on disk, and the
writer writes the batch before it does the errand; what comes later also goes into the filter's next delta. So a key is
in the scan or in the delta, whatever is added, removed or written meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

from flashnest.record import U64Array
from flashnest.storage.cold_writes import WriteBuffer
from flashnest.storage.filter import MembershipFilter
from flashnest.storage.fuse import FuseBuilder, FuseFilter
from flashnest.storage.store import ColdStore


class _Rebuild:
    """One scan, an `Errand`; `done` when `result` may be read, None where it failed."""

    def __init__(self, store: ColdStore) -> None:
        self._store = store
        self._keys: Iterator[U64Array] | None = None
        self.result: FuseFilter | None = None
        self.done = False

    def step(self) -> bool:
        """See `Errand.step`: one batch of keys, now and then a shard of the filter."""
        if self._keys is None:
            self._keys, self._builder = self._store.scan_keys(), FuseBuilder(len(self._store))
        for keys in self._keys:
            self._builder.add_many(keys)
            return False
        self.result = self._builder.finish()
        self.done = True
        return True

    def fail(self, error: Exception) -> None:
        """See `Errand.fail`."""
        self.done = True


class FilterRebuilds:
    """Starts rebuilds when they are due and puts the results in place. The owner's thread calls it."""

    def __init__(self, store: ColdStore, writes: WriteBuffer, seen: MembershipFilter) -> None:
        self._store, self._writes, self._filter = store, writes, seen
        self._running: _Rebuild | None = None

    def tick(self) -> None:
        """Call after keys were handed to the write buffer and before they are added to the filter, and every step."""
        boundary = self._writes.take_boundary()
        if self._running is None:
            if boundary and self._filter.wants_rebuild:
                self._filter.begin_rebuild()
                self._running = _Rebuild(self._store)
                self._writes.run_errand(self._running)
        elif self._running.done:
            if self._running.result is not None:
                self._filter.finish_rebuild(self._running.result)
            else:
                self._filter.abandon_rebuild()
            self._running = None
