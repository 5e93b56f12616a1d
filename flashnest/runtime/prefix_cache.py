"""Prefix cache: finds a prompt's KV blocks through the table, verifies them, and publishes new ones.

A chunk's record only says where its block may be. Tokens, parent, namespace and kv_version are compared in the block
pool before a block is shared; anything else is a miss. Decides nothing about when a request runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from flashnest.hashing import ChunkKeys, chunk_digest, chunk_keys, chunk_seed
from flashnest.record import (
    CHUNK_BLOCK,
    CHUNK_DIGEST,
    CHUNK_KV_VERSION,
    CHUNK_TOKENS,
    META,
    NAMESPACE,
    BoolArray,
    I64Array,
    Kind,
    Tier,
    U32Array,
    U64Array,
    namespace_id,
    pack_meta,
    row_kinds,
)
from flashnest.runtime.kv_pool import BlockPool, Chunk, Reuse
from flashnest.runtime.prefill_sharing import PendingChunks
from flashnest.runtime.request import Request
from flashnest.runtime.tickets import chunk_ticket
from flashnest.storage.store import Found, State

_NO_PARENT = b"\0" * 16


class ChunkTable(Protocol):
    """What the prefix cache asks of a table; `flashnest.storage.router.Router` is one."""

    def lookup_many(self, keys: U64Array, tickets: I64Array, found: Found) -> None:
        """Answer a batch of keys; PENDING answers come back from a later drain under their tickets."""

    def insert_many(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """Insert records where the policy places them."""

    def feedback_many(self, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
        """Add to records how many of their tokens were tried and how many proved right."""


@dataclass(slots=True)
class Probe:
    """What is known of a prompt's chunks.

    blocks int64 (chunks,): block id by chunk, -1 where the table has none; pending: chunks whose cold answer is still
    to come; hits: records found, tier_hits: by the tier that had them.
    """

    keys: ChunkKeys
    blocks: I64Array
    pending: int
    tier_hits: list[int] = field(default_factory=lambda: [0] * len(Tier))

    @property
    def hits(self) -> int:
        """Records found."""
        return sum(self.tier_hits)

    def take(self, index: int, row: U32Array, tier: int) -> None:
        """Note the record (words,) that a tier had for a chunk."""
        self.blocks[index] = block_of(row)
        self.tier_hits[tier] += int(self.blocks[index] >= 0)


@dataclass(slots=True)
class Lineage:
    """How far a sequence's chunks are published, and the digest the next one chains from."""

    seed: int
    chunks: int = 0
    parent: bytes = field(default=_NO_PARENT)

    def advance(self, chunk: Chunk) -> None:
        """Chain the next chunk from `chunk`."""
        self.parent = chunk.digest.tobytes()
        self.chunks += 1


class PrefixCache:
    """Reuses and publishes KV blocks by chunk. Not thread-safe: the engine's thread owns it."""

    def __init__(self, table: ChunkTable, pool: BlockPool, *, kv_version: int, max_chunks: int, words: int) -> None:
        self._table = table
        self._pool = pool
        self._kv_version = kv_version
        self._words = words
        self._found = Found.allocate(max_chunks, words)
        self.pending = PendingChunks()
        """The chunks that running prompts are about to compute."""

    def lineage(self, salt: int) -> Lineage:
        """Return a fresh sequence's lineage, seeded by its namespace's salt and the model's kv_version."""
        return Lineage(chunk_seed(salt, self._kv_version))

    def probe(self, request: Request, lineage: Lineage) -> Probe:
        """Ask the table for every full chunk of the request's text in one batch: its prompt, or more if preempted.

        The last token is never taken from a shared block: its score is needed, so its chunk is computed.
        """
        usable = (request.length - 1) // CHUNK_TOKENS
        keys = chunk_keys(request.tokens[: usable * CHUNK_TOKENS], lineage.seed)
        tickets = np.array([chunk_ticket(request.id, i) for i in range(usable)], np.int64)
        if usable:
            self._table.lookup_many(keys.keys, tickets, self._found)
        state = self._found.state[:usable]
        probe = Probe(keys, np.full(usable, -1, np.int64), int(np.count_nonzero(state == State.PENDING)))
        for i in np.flatnonzero(state == State.HIT).tolist():
            probe.take(i, self._found.rows[i], int(self._found.tier[i]))
        return probe

    def held_by_others(self, probe: Probe) -> int:
        """Return how many blocks of the probe's run are in use: at best sharing them takes nothing from the pool."""
        count = 0
        for block in probe.blocks.tolist():
            if not 0 <= block < self._pool.blocks:
                break
            count += self._pool.refs(block) > 0
        return count

    def reuse(self, request: Request, probe: Probe, lineage: Lineage) -> None:
        """Give the request the longest verified run of blocks from its start; sets `computed`.

        And `reused_tokens`, unless it was preempted: what it finds then is mostly its own.
        """
        for i, block in enumerate(probe.blocks.tolist()):
            if block < 0:
                break
            chunk = self._chunk(request, i, probe.keys.digests[i], lineage.parent)
            if self._pool.acquire(block, chunk) is not Reuse.OK:
                self._report_stale(probe, i)
                break
            request.add_blocks([block])
            lineage.advance(chunk)
        request.computed = lineage.chunks * CHUNK_TOKENS
        if not request.preemptions:
            request.reused_tokens = request.computed

    def give_back(self, request: Request, probe: Probe, lineage: Lineage) -> None:
        """Undo `reuse`; what did not prove reusable is not tried again."""
        probe.blocks[lineage.chunks :] = -1
        self._pool.release(request.take_blocks())
        request.computed = lineage.chunks = 0
        if not request.preemptions:
            request.reused_tokens = 0
        lineage.parent = _NO_PARENT

    def _report_stale(self, probe: Probe, start: int) -> None:
        """Tell the table that the records of chunks start.. point nowhere, as of a draft that failed.

        A cold tier writes a key that it has again only after that; these chunks are about to be computed anew.
        """
        keys = probe.keys.keys[start:][probe.blocks[start:] >= 0]
        self._table.feedback_many(keys, np.full(len(keys), CHUNK_TOKENS, np.uint32), np.zeros(len(keys), np.uint32))

    def publish(self, pieces: Iterable[tuple[Request, Lineage]]) -> None:
        """Register requests' newly completed chunks, whose KV is computed and final, and insert their records.

        One table call for all of a step's: a chunk costs 10 us, where a call each cost 50.
        """
        done = [(block, chunk) for request, lineage in pieces for block, chunk in self._completed(request, lineage)]
        if not done:
            return
        blocks = [block for block, _ in done]
        fresh = ChunkKeys.of(np.array([chunk.digest for _, chunk in done]))
        rows = np.zeros((len(done), self._words), np.uint32)
        rows[:, META] = pack_meta(Kind.CHUNK, CHUNK_TOKENS, 0)
        rows[:, NAMESPACE] = [namespace_id(chunk.namespace) for _, chunk in done]
        rows[:, CHUNK_KV_VERSION] = self._kv_version
        rows[:, CHUNK_DIGEST : CHUNK_DIGEST + 4] = fresh.digests
        rows[:, CHUNK_BLOCK] = blocks
        self._table.insert_many(fresh.keys, rows)
        self.pending.publish(fresh.keys, blocks)

    def _completed(self, request: Request, lineage: Lineage) -> Iterator[tuple[int, Chunk]]:
        """Register the chunks that the request has completed and yield them with their blocks."""
        tokens = request.tokens
        for block in request.blocks[lineage.chunks : request.computed // CHUNK_TOKENS]:
            start = lineage.chunks * CHUNK_TOKENS
            data = tokens[start : start + CHUNK_TOKENS].astype("<i4", copy=False).tobytes()
            digest = np.frombuffer(chunk_digest(data, lineage.seed, lineage.parent), np.uint32)
            chunk = self._chunk(request, lineage.chunks, digest, lineage.parent)
            self._pool.register(block, chunk)
            lineage.advance(chunk)
            yield block, chunk

    def _chunk(self, request: Request, index: int, digest: U32Array, parent: bytes) -> Chunk:
        return Chunk(
            digest=digest,
            parent=np.frombuffer(parent, np.uint32),
            tokens=request.tokens[index * CHUNK_TOKENS : (index + 1) * CHUNK_TOKENS],
            namespace=request.prompt.namespace,
            kv_version=self._kv_version,
        )


def block_of(row: U32Array) -> int:
    """Return the block id of a chunk row (words,), -1 where the row is not a chunk."""
    if row_kinds(row[None])[0] != Kind.CHUNK:
        return -1
    return int(row[CHUNK_BLOCK]) | int(row[CHUNK_BLOCK + 1]) << 32
