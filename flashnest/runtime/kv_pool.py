"""Which KV block belongs to whom: free list, reference counts, cached blocks and their verified reuse.

Bookkeeping only: the tensors live with the model, the table of keys with the stores. A hash never decides a reuse: the
block's own tokens, parent digest, namespace and kv_version are compared each time (design.md 4), because a 64-bit key
clashes and keys can be forged (CVE-2025-25183). A referenced block is never handed out, never evicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from flashnest.record import CHUNK_TOKENS, I32Array, U32Array

_DIGEST_WORDS = 4


class Reuse(Enum):
    """What became of an attempt to reuse a block.

    STALE: the block holds something else by now, or its KV came from other weights. MISMATCH: the digest is the same
    but the tokens, the parent or the namespace are not, which is a clash or a forgery.
    """

    OK = "ok"
    STALE = "stale"
    MISMATCH = "mismatch"


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Blocks by state, and counters since the pool was made. blocks = allocated + cached + free."""

    blocks: int
    allocated: int
    """Referenced by at least one request."""
    cached: int
    """Referenced by nobody, kept for reuse, evictable."""
    evicted_total: int
    reused_total: int
    hash_mismatch_total: int
    stale_total: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a full block holds: enough to prove that a reuse is right.

    digest and parent uint32 (4,): 128-bit chained digests, low word first; tokens int32 (32,).
    """

    digest: U32Array
    parent: U32Array
    tokens: I32Array
    namespace: str
    kv_version: int


class BlockPool:
    """Hands out block ids 0..blocks-1. One thread owns it; nothing here allocates per call beyond the answer."""

    def __init__(self, blocks: int) -> None:
        if blocks < 1:
            raise ValueError(f"a pool needs at least one block, got {blocks}")
        self.blocks = blocks
        self._refs = np.zeros(blocks, np.int32)
        self._registered = np.zeros(blocks, np.bool_)
        self._digests = np.zeros((blocks, _DIGEST_WORDS), np.uint32)
        self._parents = np.zeros((blocks, _DIGEST_WORDS), np.uint32)
        self._tokens = np.zeros((blocks, CHUNK_TOKENS), np.int32)
        self._namespaces = np.zeros(blocks, np.int32)
        self._kv_versions = np.zeros(blocks, np.uint32)
        self._namespace_ids: dict[str, int] = {}
        # Free blocks as a stack, lowest id on top at first: short runs touch little memory.
        self._free = np.arange(blocks - 1, -1, -1, dtype=np.int32)
        self._free_count = blocks
        # Cached blocks as a ring through a sentinel at index `blocks`: next = older to newer, sentinel.next = oldest.
        self._next = np.full(blocks + 1, blocks, np.int32)
        self._prev = np.full(blocks + 1, blocks, np.int32)
        self._cached_count = 0
        self._evicted = self._reused = self._mismatched = self._stale = 0

    @property
    def available(self) -> int:
        """Blocks that `allocate` can hand out now, cached ones included."""
        return self._free_count + self._cached_count

    def refs(self, block: int) -> int:
        """Return how many holders `block` has."""
        return int(self._refs[block])

    def allocate(self, count: int) -> list[int] | None:
        """Hand out `count` blocks with one reference each, or None where fewer are available (then nothing changes).

        Blocks that hold nothing go first, then cached ones, least recently used first; those forget their chunk.
        """
        if count > self.available:
            return None
        fresh = min(count, self._free_count)
        self._free_count -= fresh
        ids: list[int] = self._free[self._free_count : self._free_count + fresh][::-1].tolist()
        ids += [self._evict_oldest() for _ in range(count - fresh)]
        self._refs[ids] = 1
        return ids

    def release(self, ids: Sequence[int]) -> None:
        """Give back one reference of each block, in sequence order; raises ValueError for one that has none.

        Unreferenced blocks that hold a registered chunk stay cached. A sequence's tail is evicted before its head,
        because a tail is of no use without what comes before it.
        """
        for block in reversed(ids):
            if self._refs[block] <= 0:
                raise ValueError(f"block {block} was released more often than it was taken")
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._retire(block)

    def register(self, block: int, chunk: Chunk) -> None:
        """Note what a referenced, full block holds, so that it can be reused; raises ValueError for a free block."""
        if self._refs[block] <= 0:
            raise ValueError(f"block {block} is nobody's; only a block in use can be registered")
        self._digests[block] = chunk.digest
        self._parents[block] = chunk.parent
        self._tokens[block] = chunk.tokens
        self._namespaces[block] = self._namespace_ids.setdefault(chunk.namespace, len(self._namespace_ids))
        self._kv_versions[block] = chunk.kv_version
        self._registered[block] = True

    def acquire(self, block: int, chunk: Chunk) -> Reuse:
        """Take one reference of `block` if it provably holds `chunk`; anything else changes only a counter."""
        verdict = self._verdict(block, chunk)
        if verdict is Reuse.OK:
            self._reused += 1
            if self._refs[block] == 0:
                self._unlink(block)
            self._refs[block] += 1
        elif verdict is Reuse.STALE:
            self._stale += 1
        else:
            self._mismatched += 1
        return verdict

    def stats(self) -> PoolStats:
        """Return the pool's figures."""
        return PoolStats(
            blocks=self.blocks,
            allocated=self.blocks - self.available,
            cached=self._cached_count,
            evicted_total=self._evicted,
            reused_total=self._reused,
            hash_mismatch_total=self._mismatched,
            stale_total=self._stale,
        )

    def _verdict(self, block: int, chunk: Chunk) -> Reuse:
        if not 0 <= block < self.blocks or not self._registered[block]:
            return Reuse.STALE
        if self._kv_versions[block] != chunk.kv_version or not np.array_equal(self._digests[block], chunk.digest):
            return Reuse.STALE
        same = (
            np.array_equal(self._tokens[block], chunk.tokens)
            and np.array_equal(self._parents[block], chunk.parent)
            and self._namespaces[block] == self._namespace_ids.get(chunk.namespace, -1)
        )
        return Reuse.OK if same else Reuse.MISMATCH

    def _retire(self, block: int) -> None:
        if self._registered[block]:
            self._link_newest(block)
        else:
            self._free[self._free_count] = block
            self._free_count += 1

    def _evict_oldest(self) -> int:
        block = int(self._next[self.blocks])
        self._unlink(block)
        self._registered[block] = False
        self._evicted += 1
        return block

    def _link_newest(self, block: int) -> None:
        newest = self._prev[self.blocks]
        self._next[newest] = block
        self._prev[block] = newest
        self._next[block] = self.blocks
        self._prev[self.blocks] = block
        self._cached_count += 1

    def _unlink(self, block: int) -> None:
        older, newer = self._prev[block], self._next[block]
        self._next[older] = newer
        self._prev[newer] = older
        self._cached_count -= 1
