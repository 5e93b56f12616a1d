"""The block pool against a plain model of sets and lists, and the verification of every reuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flashnest.runtime.kv_pool import BlockPool, Chunk, Reuse

BLOCKS = 6


def chunk(number: int) -> Chunk:
    """Return a chunk that differs from every other number's in all its parts."""
    return Chunk(
        digest=np.full(4, number, np.uint32),
        parent=np.full(4, number + 1000, np.uint32),
        tokens=np.full(32, number, np.int32),
        namespace="a",
        kv_version=7,
    )


def cached_block(pool: BlockPool, held: Chunk) -> int:
    ids = pool.allocate(1)
    assert ids is not None
    pool.register(ids[0], held)
    pool.release(ids)
    return ids[0]


def test_allocate_gives_distinct_blocks_until_none_are_left() -> None:
    pool = BlockPool(4)
    ids = pool.allocate(3)
    assert ids is not None
    assert len(set(ids)) == 3
    assert pool.allocate(2) is None
    assert pool.available == 1  # a refused allocation takes nothing
    assert pool.allocate(1) is not None
    assert pool.stats().allocated == 4


def test_acquire_takes_a_cached_block_off_the_eviction_list() -> None:
    pool = BlockPool(2)
    block = cached_block(pool, chunk(1))
    assert pool.acquire(block, chunk(1)) is Reuse.OK
    assert pool.allocate(2) is None
    assert pool.allocate(1) != [block]
    assert pool.refs(block) == 1


def test_acquire_shares_a_block_in_use() -> None:
    pool = BlockPool(2)
    block = cached_block(pool, chunk(1))
    assert [pool.acquire(block, chunk(1)) for _ in range(3)] == [Reuse.OK] * 3
    assert pool.refs(block) == 3
    pool.release([block, block])
    assert pool.refs(block) == 1
    assert pool.stats().cached == 0


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"tokens": np.append(np.full(31, 1), 2).astype(np.int32)}, Reuse.MISMATCH),
        ({"parent": np.zeros(4, np.uint32)}, Reuse.MISMATCH),
        ({"namespace": "b"}, Reuse.MISMATCH),
        ({"kv_version": 8}, Reuse.STALE),
        ({"digest": np.array([1, 1, 1, 2], np.uint32)}, Reuse.STALE),
    ],
)
def test_acquire_refuses_whatever_differs(change: dict[str, object], verdict: Reuse) -> None:
    pool = BlockPool(2)
    block = cached_block(pool, chunk(1))
    assert pool.acquire(block, replace(chunk(1), **change)) is verdict
    assert pool.refs(block) == 0
    stats = pool.stats()
    assert (stats.hash_mismatch_total, stats.stale_total) == (
        int(verdict is Reuse.MISMATCH),
        int(verdict is Reuse.STALE),
    )


def test_a_known_namespace_that_is_not_the_blocks_is_a_mismatch() -> None:
    pool = BlockPool(2)
    cached_block(pool, replace(chunk(2), namespace="b"))
    block = cached_block(pool, chunk(1))
    assert pool.acquire(block, replace(chunk(1), namespace="b")) is Reuse.MISMATCH


@pytest.mark.parametrize("block", [-1, 2, 2**40])
def test_acquire_of_a_block_that_does_not_exist_is_stale(block: int) -> None:
    """Block ids come out of records that may be damaged or from another run."""
    assert BlockPool(2).acquire(block, chunk(1)) is Reuse.STALE


def test_an_evicted_block_is_stale() -> None:
    pool = BlockPool(1)
    block = cached_block(pool, chunk(1))
    assert pool.allocate(1) == [block]
    assert pool.acquire(block, chunk(1)) is Reuse.STALE
    assert pool.stats().evicted_total == 1


def test_release_keeps_a_sequences_head_longer_than_its_tail() -> None:
    pool = BlockPool(3)
    ids = pool.allocate(3)
    assert ids is not None
    for number, block in enumerate(ids):
        pool.register(block, chunk(number))
    pool.release(ids)
    assert pool.allocate(3) == ids[::-1]


def test_release_of_a_free_block_is_an_error() -> None:
    with pytest.raises(ValueError, match="block 0 was released"):
        BlockPool(1).release([0])


def test_register_of_a_free_block_is_an_error() -> None:
    with pytest.raises(ValueError, match="block 0 is nobody's"):
        BlockPool(1).register(0, chunk(1))


class PoolMachine(RuleBasedStateMachine):
    """Random histories, compared with dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS)
        self.refs = dict.fromkeys(range(BLOCKS), 0)
        self.held: dict[int, int] = {}
        """Registered chunk number by block."""
        self.lru: list[int] = []
        """Cached blocks, oldest first."""

    @rule(count=st.integers(1, 3))
    def allocate(self, count: int) -> None:
        blank = [b for b in self.refs if self.refs[b] == 0 and b not in self.held]
        ids = self.pool.allocate(count)
        if count > len(blank) + len(self.lru):
            assert ids is None
            return
        assert ids is not None
        evicted = self.lru[: max(0, count - len(blank))]
        assert ids[len(ids) - len(evicted) :] == evicted
        assert set(ids[: len(ids) - len(evicted)]) <= set(blank)
        assert len(set(ids)) == count
        for block in evicted:
            self.lru.remove(block)
            del self.held[block]
        for block in ids:
            self.refs[block] = 1

    @precondition(lambda self: any(self.refs.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from([b for b, n in self.refs.items() if n]))
        self.pool.release([block])
        self.refs[block] -= 1
        if self.refs[block] == 0 and block in self.held:
            self.lru.append(block)

    @precondition(lambda self: any(self.refs.values()))
    @rule(data=st.data(), number=st.integers(0, 3))
    def register(self, data: st.DataObject, number: int) -> None:
        block = data.draw(st.sampled_from([b for b, n in self.refs.items() if n]))
        self.pool.register(block, chunk(number))
        self.held[block] = number

    @rule(block=st.integers(0, BLOCKS - 1), number=st.integers(0, 3))
    def acquire(self, block: int, number: int) -> None:
        verdict = self.pool.acquire(block, chunk(number))
        assert verdict is (Reuse.OK if self.held.get(block) == number else Reuse.STALE)
        if verdict is Reuse.OK:
            if self.refs[block] == 0:
                self.lru.remove(block)
            self.refs[block] += 1

    @invariant()
    def agrees(self) -> None:
        stats = self.pool.stats()
        assert [self.pool.refs(b) for b in range(BLOCKS)] == list(self.refs.values())
        assert stats.allocated == sum(n > 0 for n in self.refs.values())
        assert stats.cached == len(self.lru)
        assert self.pool.available == BLOCKS - stats.allocated


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
