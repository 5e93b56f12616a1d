"""KV reuse: only verified blocks are shared, the longest run from the start, never across tenants or weights."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from flashnest.record import CHUNK_TOKENS, BoolArray, I32Array, I64Array, Tier, U32Array, U64Array, namespace_salt
from flashnest.runtime.kv_pool import BlockPool
from flashnest.runtime.prefix_cache import Lineage, PrefixCache, block_of
from flashnest.runtime.request import Prompt, Request, SamplingParams
from flashnest.runtime.tickets import open_tickets
from flashnest.storage.store import Found, State
from flashnest.storage.table import DramTable

WORDS = 16


@dataclass
class ChunkTableOf:
    """A table that can be told to answer some tickets later."""

    table: DramTable
    pending_chunks: set[int] = field(default_factory=set)

    def lookup_many(self, keys: U64Array, tickets: I64Array, found: Found) -> None:
        self.table.lookup_many(keys, found)
        for i, place in enumerate(open_tickets(tickets).place.tolist()):
            if place in self.pending_chunks:
                found.state[i] = State.PENDING

    def insert_many(self, keys: U64Array, rows: U32Array) -> BoolArray:
        return self.table.insert_many(keys, rows)

    def feedback_many(self, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
        self.table.feedback_many(keys, drafted, accepted)


class Setup:
    """A pool, a table and a cache; `serve` computes a prompt to its end as the engine would."""

    def __init__(self, kv_version: int = 1) -> None:
        self.pool = BlockPool(64)
        self.table = ChunkTableOf(DramTable(1 << 20, words=WORDS, clock_s=lambda: 1, tier=Tier.DRAM))
        self.cache = self.cache_for(kv_version)
        self._next_id = 1

    def cache_for(self, kv_version: int) -> PrefixCache:
        return PrefixCache(self.table, self.pool, kv_version=kv_version, max_chunks=64, words=WORDS)

    def start(self, tokens: I32Array, namespace: str = "default", cache: PrefixCache | None = None) -> Request:
        cache = cache or self.cache
        request = Request(self._next_id, Prompt(tokens, namespace, sampling=SamplingParams(max_tokens=1)), 0.0)
        self._next_id += 1
        lineage = cache.lineage(namespace_salt(namespace))
        cache.reuse(request, cache.probe(request, lineage), lineage)
        return request

    def serve(self, tokens: I32Array, namespace: str = "default") -> Request:
        request = self.start(tokens, namespace)
        lineage = self._lineage_of(request)
        blocks = self.pool.allocate(request.blocks_needed(len(tokens)) - len(request.blocks))
        assert blocks is not None
        request.add_blocks(blocks)
        request.computed = len(tokens)
        self.cache.publish([(request, lineage)])
        return request

    def _lineage_of(self, request: Request) -> Lineage:
        lineage = self.cache.lineage(namespace_salt(request.prompt.namespace))
        if request.blocks:
            keys = self.cache.probe(request, lineage).keys
            lineage.chunks = len(request.blocks)
            lineage.parent = keys.digests[lineage.chunks - 1].tobytes()
        return lineage


def text(count: int, seed: int = 0) -> I32Array:
    return np.random.default_rng(seed).integers(0, 50_000, count).astype(np.int32)


def test_a_prompt_served_before_reuses_all_but_its_last_token() -> None:
    setup = Setup()
    tokens = text(5 * CHUNK_TOKENS)
    first = setup.serve(tokens)
    again = setup.start(tokens)
    assert again.blocks == first.blocks[:4]
    assert again.computed == again.reused_tokens == 4 * CHUNK_TOKENS


def test_a_shared_start_is_reused_up_to_where_prompts_part() -> None:
    setup = Setup()
    tokens = text(5 * CHUNK_TOKENS)
    setup.serve(tokens)
    other = tokens.copy()
    other[2 * CHUNK_TOKENS + 5] += 1
    assert setup.start(other).reused_tokens == 2 * CHUNK_TOKENS


def test_equal_chunks_after_different_starts_are_not_shared() -> None:
    """KV depends on all tokens before it: a content-only key would be wrong (research/peers.md, trap A)."""
    setup = Setup()
    tail = text(4 * CHUNK_TOKENS, seed=1)
    setup.serve(np.concatenate([text(CHUNK_TOKENS, seed=2), tail]))
    assert setup.start(np.concatenate([text(CHUNK_TOKENS, seed=3), tail])).reused_tokens == 0


def test_tenants_and_weights_share_nothing() -> None:
    setup = Setup()
    tokens = text(5 * CHUNK_TOKENS)
    setup.serve(tokens, "acme")
    assert setup.start(tokens, "other").reused_tokens == 0
    assert setup.start(tokens, "acme", setup.cache_for(kv_version=2)).reused_tokens == 0
    assert setup.start(tokens, "acme").reused_tokens == 4 * CHUNK_TOKENS


def test_a_record_that_points_at_the_wrong_block_is_a_counted_miss() -> None:
    setup = Setup()
    tokens = text(3 * CHUNK_TOKENS)
    first = setup.serve(tokens)
    setup.pool.release(first.blocks)
    evicted = setup.pool.allocate(64)
    assert evicted is not None
    assert setup.start(tokens).reused_tokens == 0
    assert setup.pool.stats().stale_total == 1


def test_pending_chunks_are_counted_and_completed_later() -> None:
    setup = Setup()
    tokens = text(4 * CHUNK_TOKENS)
    first = setup.serve(tokens)
    setup.table.pending_chunks = {1}
    request = Request(99, Prompt(tokens), 0.0)
    lineage = setup.cache.lineage(namespace_salt("default"))
    probe = setup.cache.probe(request, lineage)
    assert probe.pending == 1
    assert probe.blocks.tolist() == [first.blocks[0], -1, first.blocks[2]]
    probe.blocks[1] = first.blocks[1]
    setup.cache.reuse(request, probe, lineage)
    assert request.reused_tokens == 3 * CHUNK_TOKENS


@pytest.mark.parametrize("count", [1, 31, 32])
def test_a_short_prompt_asks_for_nothing(count: int) -> None:
    setup = Setup()
    request = Request(1, Prompt(text(count)), 0.0)
    assert len(setup.cache.probe(request, setup.cache.lineage(1)).keys) == 0


def test_an_ngram_row_names_no_block() -> None:
    assert block_of(np.zeros(WORDS, np.uint32)) == -1
