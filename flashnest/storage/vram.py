"""The VRAM tier: a table of tensors on one device as a `Store`. Compresses nothing, reads no clock of its own.

Two ways in. Tensors in, tensors out (`lookup`, `longest`, `insert`, `remove` of `VramTensors`), for callers whose keys
are on the device: nothing there waits for it. And `Store` with numpy arrays, for the router: one transfer each way and
one wait a call. Rows are kept verbatim. `device="cpu"` runs the same operations, as the tests do.

Imports torch, which takes over a second: nothing imports this module before a run asks for a VRAM tier.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch

from flashnest.record import BoolArray, I32Array, I64Array, U32Array, U64Array
from flashnest.storage import vram_insert, vram_ops
from flashnest.storage import vram_planes as layout
from flashnest.storage.store import Found, State
from flashnest.storage.vram_planes import BUCKET_SLOTS, VramPlanes
from flashnest.storage.vram_tensors import VramTensors

_BATCH_RECORDS: Final = 4096
"""Records inserted at once: 4 MiB of working memory. Far fewer than the buckets of a table worth having, so that a
batch, which sees the buckets' fill from before it, still finds the emptier one."""
_SCAN_RECORDS: Final = 8192
_WINDOW: Final = 16
"""Slots looked at for each victim: the oldest of some 13 records, closer to LRU than the 5 to 10 that Redis samples."""
_LEAST_WINDOW: Final = 4096


class VramTable(VramTensors):
    """A `Store` on a device, beside what `VramTensors` does. A `Router` chooses call by call whether to evict."""

    def lookup_many(self, keys: U64Array, found: Found) -> None:
        """See `Store.lookup_many`. A key given twice in a batch sees the row as both have touched it."""
        planes = self._check_fits(len(keys), found)
        if len(keys):
            hit, _, rows = vram_ops.lookup(planes, *self._staging.send(keys))
            self._answer(found, *self._staging.receive(hit, rows))

    def _answer(self, found: Found, hit: I32Array, rows: I32Array) -> None:
        n = len(hit)
        found.state[:n] = np.where(hit != 0, State.HIT, State.MISS)
        found.tier[:n] = self.tier
        found.rows[:n] = rows.view(np.uint32).reshape(n, self._words)

    def longest_many(self, keys: U64Array, found: Found, index: I64Array) -> None:
        """Find the longest stored n-gram of each sequence in one call; see `DramTable.longest_many`."""
        planes = self._check_fits(len(keys), found)
        if keys.size:
            (flat,) = self._staging.send(keys.reshape(-1))
            longest, hit, _, rows = vram_ops.longest(planes, flat.view(keys.shape))
            at, hits, words = self._staging.receive(longest, hit, rows)
            index[: len(keys)] = at.view(np.int64)
            self._answer(found, hits, words)

    def contains_many(self, keys: U64Array) -> BoolArray:
        """See `Store.contains_many`."""
        planes = self._open()
        if not len(keys):
            return np.zeros(0, np.bool_)
        hit, _ = vram_ops.find(planes, *self._staging.send(keys))
        return _bools(*self._staging.receive(hit))

    def insert_many(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """See `Store.insert_many`. A row with INSERTED 0 gets the store's time as INSERTED and LAST_ACCESS.

        An n-gram learnt again with the same first token adds to REFS. Where records were evicted, the answer is what is
        stored when the call returns.
        """
        return self._put(keys, rows, evict=self._evict)

    def insert_fitting(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """Like `insert_many`, rejecting what does not fit."""
        return self._put(keys, rows, evict=False)

    def insert_evicting(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """Like `insert_many`, making room."""
        return self._put(keys, rows, evict=True)

    def _put(self, keys: U64Array, rows: U32Array, *, evict: bool) -> BoolArray:
        self._open()
        if rows.shape[1] != self._words or len(rows) < len(keys):
            raise ValueError(f"{len(keys)} keys come with rows {rows.shape}, the table has {self._words} words a row")
        stored, step, evicted = np.zeros(len(keys), np.bool_), self._batch_records(), self.evicted
        for at in range(0, len(keys), step):
            part = slice(at, min(at + step, len(keys)))
            stored[part] = self._put_batch(keys[part], rows[part], evict=evict)
        if self.evicted != evicted and len(keys) > step:
            return self.contains_many(keys)
        return stored

    def _put_batch(self, keys: U64Array, rows: U32Array, *, evict: bool) -> BoolArray:
        """Insert one batch; where there seems to be room, the operations that evict are run only if there was none."""
        planes = self._planes
        full = evict and len(keys) > self.free_records
        stored = _bools(*self._receive(vram_insert.insert(planes, *self._staging.send(keys, rows), evict=full)))
        left = np.flatnonzero(~stored & (keys != 0)) if evict and not full else ()
        if len(left):
            self._asked_again += len(left)
            sent = self._staging.send(keys[left], rows[left])
            stored[left] = _bools(*self._receive(vram_insert.insert(planes, *sent, evict=True, again=True)))
        return stored

    def _batch_records(self) -> int:
        """Return how many records to insert at once: few beside the buckets, whose fill a batch sees from before it."""
        return max(BUCKET_SLOTS, min(_BATCH_RECORDS, self._planes.buckets // 2))

    def remove_many(self, keys: U64Array) -> BoolArray:
        """See `Store.remove_many`."""
        planes = self._open()
        if not len(keys):
            return np.zeros(0, np.bool_)
        return _bools(*self._receive(vram_ops.remove(planes, *self._staging.send(keys))))

    def feedback_many(self, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
        """See `Store.feedback_many`."""
        planes = self._open()
        if len(keys):
            vram_ops.feedback(planes, *self._staging.send(keys, drafted, accepted))
            self._receive()

    def scan_slice(self, hand: int, records: int) -> tuple[U64Array, U32Array, int]:
        """Read the records from `hand` on, about `records` of them; touches nothing.

        Returns keys (n,), rows (n, words) and the hand to go on with, 0 after the last. The table may change between
        calls: a record that stays stored is seen once.
        """
        planes = self._open()
        fill = max(len(self) / planes.slots, 1 / 8)
        stop = min(hand + max(BUCKET_SLOTS, int(records / fill)), planes.slots)
        keys, rows = self._read(planes.keys[hand:stop], planes.rows[hand:stop])
        return keys, rows, 0 if stop == planes.slots else stop

    def _read(self, keys: torch.Tensor, rows: torch.Tensor) -> tuple[U64Array, U32Array]:
        """Return what is in slots, without the empty ones."""
        flat_keys, flat_rows = self._receive(keys, rows)
        there = flat_keys.view(np.uint64)
        full = there != 0
        return there[full], flat_rows.view(np.uint32).reshape(-1, self._words)[full]

    def scan(self) -> Iterator[tuple[U64Array, U32Array]]:
        """See `Store.scan`; batches are fresh arrays of about 8192 records."""
        hand = 0
        while True:
            keys, rows, hand = self.scan_slice(hand, _SCAN_RECORDS)
            if len(keys):
                yield keys, rows
            if hand == 0:
                return

    def victims(self, records: int) -> tuple[U64Array, U32Array]:
        """Return keys (n,) and rows (n, words) of up to `records` that were not used for long, still stored.

        They are the least recently used of a window of 16 slots for each, which moves on with every call; a table of at
        most 4096 slots is one window. Fewer than asked for, even none, does not mean that there are no more.
        """
        planes = self._open()
        records = max(0, min(records, len(self)))
        if not records:
            return np.zeros(0, np.uint64), np.zeros((0, self._words), np.uint32)
        window = max(_WINDOW * records, _LEAST_WINDOW)
        start = 0 if window >= planes.slots else self._hand
        stop = min(start + window, planes.slots)
        self._hand = 0 if stop == planes.slots else stop
        return self._read(*vram_ops.oldest(planes, start, stop, min(records, stop - start)))

    def spare_many(self, keys: U64Array) -> None:
        """Say that these victims were not taken: they count as just used. Their rows stay as they are."""
        planes = self._open()
        if len(keys):
            vram_ops.mark_used(planes, *self._staging.send(keys))
            self._receive()

    def evict_many(self, records: int) -> tuple[U64Array, U32Array]:
        """Take up to `records` records that were not used for long out; returns their keys and rows."""
        self._open()
        wanted = max(0, min(records, len(self)))
        parts = [(np.zeros(0, np.uint64), np.zeros((0, self._words), np.uint32))]
        while wanted > 0:
            keys, rows = self.victims(wanted)
            self.remove_many(keys)
            parts.append((keys, rows))
            wanted -= len(keys)
            self._evicted += len(keys)
        return np.concatenate([k for k, _ in parts]), np.concatenate([r for _, r in parts])

    def clear(self) -> None:
        """Forget every record; counters run on."""
        planes = self._open()
        planes.keys.zero_()
        planes.counts[layout.RECORDS].zero_()
        self._receive()

    def _check_fits(self, keys: int, found: Found) -> VramPlanes:
        planes = self._open()
        if keys > found.capacity or found.rows.shape[1] != self._words:
            raise ValueError(
                f"{keys} keys and rows of {self._words} words do not fit answer buffers for {found.capacity} keys and "
                f"rows of {found.rows.shape[1]} words"
            )
        return planes


def _bools(words: I32Array) -> BoolArray:
    return words.astype(np.bool_)
