"""A table of tensors on one device, for callers whose keys are there: nothing waits for it. Knows no `Found`.

`VramTable` adds the `Store` that a router asks.
"""

from __future__ import annotations

import numpy as np
import torch

from flashnest.errors import StoreClosedError
from flashnest.record import I32Array, I64Array, Tier
from flashnest.storage import vram_insert, vram_ops
from flashnest.storage import vram_planes as layout
from flashnest.storage.store import ClockS, StoreStats
from flashnest.storage.vram_planes import VramPlanes
from flashnest.storage.vram_staging import Staging


class VramTensors:
    """A table of tensors: keys and rows come from the device and go there. One thread, and one CUDA stream, at a time.

    With `evict` a full table makes room by giving up the least recently used of the records that compete with a new
    one for its 32 slots; without, `insert` refuses what does not fit. Working memory of a batch is not part of the
    budget: 0.6 KiB a key looked up, 0.9 KiB a record inserted, and what sorting takes.
    """

    def __init__(
        self,
        budget_bytes: int,
        *,
        words: int,
        clock_s: ClockS,
        device: str | torch.device = "cuda",
        tier: Tier = Tier.VRAM,
        evict: bool = True,
    ) -> None:
        """Allocate the whole table.

        Raises StoreFullError where the budget holds not one bucket or the device has not that much free, StoreError
        where there is no such device.
        """
        self.tier = tier
        self._words, self._budget_bytes, self._clock_s, self._evict = words, budget_bytes, clock_s, evict
        on = layout.open_device(device, tier.name.lower())
        self._planes = layout.fit_planes(budget_bytes, words, on, tier.name.lower())
        self._bytes_used, self._max_records = int(self._planes.allocated.nbytes), self._planes.max_records
        self._staging = Staging(on)
        self._counts: I64Array = np.zeros(self._planes.counts.shape[0], np.int64)
        self._known = True
        """Whether `_counts` has the device's count of records."""
        self._now_s = 0
        self._hand = 0
        self._evicted = 0
        """Records that `evict_many` took; the device counts those that new ones replaced."""
        self._asked_again = 0
        """Records that the device counted as refused before it was asked to evict for them."""
        self._closed = False

    def __len__(self) -> int:
        return int(self._counted()[layout.RECORDS])

    def _counted(self) -> I64Array:
        """Return the counters; asks the device only where tensors were stored or removed since it last told."""
        if not self._known:
            self._receive()
        return self._counts

    def _receive(self, *tensors: torch.Tensor) -> tuple[I32Array, ...]:
        """Bring tensors back, with the counters."""
        *arrays, counts = self._staging.receive(*tensors, self._planes.counts)
        self._counts[:] = counts.view(np.int64)
        self._known = True
        return tuple(arrays)

    @property
    def words(self) -> int:
        """uint32 words in a row."""
        return self._words

    @property
    def bytes_used(self) -> int:
        """Bytes allocated on the device, whatever the fill."""
        return self._bytes_used

    @property
    def max_records(self) -> int:
        """How many records fit in all."""
        return self._max_records

    @property
    def free_records(self) -> int:
        """How many more records fit; one may find its 32 slots taken before, which `MAX_LOAD` makes rare."""
        return self.max_records - len(self)

    @property
    def evicted(self) -> int:
        """Records that had to make room so far."""
        return self._evicted + int(self._counted()[layout.EVICTED])

    @property
    def planes(self) -> VramPlanes:
        """The tensors, for `vram_ops` in a CUDA graph. Read this before each replay: it brings their time up to date.
        After a replay that inserts or removes, call `changed`."""
        return self._open()

    def changed(self) -> None:
        """Say that records were stored or removed behind the table's back."""
        self._known = False

    def lookup(self, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Find keys, int64 (n,), as `vram_ops.lookup`: hit bool (n,), slot int64 (n,), rows int32 (n, words)."""
        return vram_ops.lookup(self._open(), keys)

    def longest(self, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Find the longest of each row of keys, int64 (n, k), as `vram_ops.longest`: index, hit, slot, rows."""
        return vram_ops.longest(self._open(), keys)

    def insert(self, keys: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Insert keys int64 (n,) and rows int32 (n, words); returns bool (n,): which are stored.

        A batch should have fewer keys than the table has buckets: see `vram_insert`.
        """
        planes, self._known = self._open(), False
        return vram_insert.insert(planes, keys, rows, evict=self._evict)

    def remove(self, keys: torch.Tensor) -> torch.Tensor:
        """Remove keys int64 (n,); returns bool (n,): whether each was there."""
        planes, self._known = self._open(), False
        return vram_ops.remove(planes, keys)

    def stats(self) -> StoreStats:
        """See `Store.stats`; asks the device."""
        if not self._closed:
            self._receive()
        counts = self._counts.tolist()
        return StoreStats(
            records=counts[layout.RECORDS],
            bytes_used=0 if self._closed else self.bytes_used,
            bytes_budget=self._budget_bytes,
            lookups=counts[layout.LOOKUPS],
            hits=counts[layout.FOUND],
            inserts=counts[layout.INSERTS],
            updates=counts[layout.UPDATES],
            removes=counts[layout.REMOVES] - self._evicted,
            rejected=counts[layout.REJECTED] - self._asked_again,
            evicted=self.evicted,
            fill=counts[layout.RECORDS] / self.max_records,
        )

    def close(self) -> None:
        """Give the memory back. A second call does nothing."""
        if not self._closed:
            self._receive()
            self._closed = True
            del self._planes, self._staging

    def _open(self) -> VramPlanes:
        """Return the tensors, their time set: a fill that the device queues, where a second has passed."""
        if self._closed:
            raise StoreClosedError(f"the {self.tier.name.lower()} table is closed")
        now_s = self._clock_s()
        if now_s != self._now_s:
            self._planes.now.fill_(now_s - (now_s >> 31 << 32))
            self._now_s = now_s
        return self._planes
