"""Chunks that a running prompt is about to compute, and the prompts that wait for them instead of computing them twice.

Holds keys and block numbers only; a block is verified by the block pool before it is shared, as any other is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from flashnest.record import U64Array
    from flashnest.runtime.prefix_cache import Probe


class PendingChunks:
    """Who computes which chunk. Not thread-safe: the engine's thread owns it."""

    def __init__(self) -> None:
        self._owners: dict[int, int] = {}
        self._waiters: dict[int, dict[int, tuple[Probe, int]]] = {}

    def claim(self, request_id: int, keys: U64Array) -> None:
        """Note that the request computes these chunks, keys uint64 (n,), as far as nobody else does."""
        for key in keys.tolist():
            self._owners.setdefault(key, request_id)

    def waits(self, probe: Probe) -> bool:
        """Return whether the prompt's first missing chunk is being computed; its blocks are filled in as they come."""
        missing = np.flatnonzero(probe.blocks < 0).tolist() if self._owners else []
        if not missing or int(probe.keys.keys[missing[0]]) not in self._owners:
            return False
        for i in missing:
            key = int(probe.keys.keys[i])
            if key in self._owners:
                self._waiters.setdefault(key, {})[id(probe)] = (probe, i)
        return True

    def publish(self, keys: U64Array, blocks: list[int]) -> None:
        """Tell those who wait where the chunks are: keys uint64 (n,), block by chunk."""
        for key, block in zip(keys.tolist(), blocks, strict=True):
            self._owners.pop(key, None)
            for probe, i in self._waiters.pop(key, {}).values():
                probe.blocks[i] = block

    def drop(self, request_id: int) -> None:
        """Forget what an ended request had claimed; those who wait compute it themselves."""
        for key in [k for k, owner in self._owners.items() if owner == request_id]:
            del self._owners[key]
            self._waiters.pop(key, None)
