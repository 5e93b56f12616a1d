"""Which requests run this step and how many tokens each brings. Owns the queue and the running set, no tokens.

First come, first served. A request is admitted with room for its whole answer, so nothing is ever preempted; decoding
requests run every step, prefill takes what is left of the step's token budget (chunked prefill, Sarathi-Serve 2024).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from flashnest.record import U32Array
from flashnest.runtime.kv_pool import BlockPool
from flashnest.runtime.prefix_cache import Lineage, Probe
from flashnest.runtime.request import Phase, Request
from flashnest.runtime.stopping import StopScanner


@dataclass(frozen=True, slots=True)
class LateDraft:
    """A cold record that arrived after its step: row (words,), key, matched tokens, how many of its head to skip."""

    row: U32Array
    key: int
    matched: int
    skip: int


@dataclass(slots=True, eq=False)
class Sequence:
    """A request with what the engine keeps beside it while it is in flight."""

    request: Request
    salt: int
    namespace: int
    lineage: Lineage
    scanner: StopScanner
    probe: Probe | None = None
    learned: int = 0
    late: LateDraft | None = None

    @property
    def uncomputed(self) -> int:
        """Tokens whose KV is not in the pool yet; 1 while decoding."""
        return self.request.length - self.request.computed


@dataclass(frozen=True, slots=True)
class Slice:
    """A sequence's share of a step: its next `count` uncomputed tokens.

    `scored`: they reach its last token, so this step yields its next; `prefill`: they are prompt.
    """

    sequence: Sequence
    count: int
    scored: bool
    prefill: bool


class Scheduler:
    """FIFO admission and per-step token budget. Not thread-safe: the engine's thread owns it."""

    def __init__(self, pool: BlockPool, *, max_requests: int, max_step_tokens: int) -> None:
        self._pool = pool
        self._max_requests = max_requests
        self._max_step_tokens = max(max_step_tokens, max_requests)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def next_waiting(self) -> Sequence | None:
        """Move the oldest waiting sequence into the running set if there is a free seat."""
        if not self.waiting or len(self.running) >= self._max_requests:
            return None
        sequence = self.waiting.popleft()
        self.running.append(sequence)
        return sequence

    def has_room(self, request: Request, shared: int) -> bool:
        """Return whether the pool has the blocks for prompt and whole answer, less `shared` ones that others hold."""
        return request.total_blocks - shared <= self._pool.available

    def reserve(self, sequence: Sequence) -> bool:
        """Give the sequence the KV blocks that its prompt and whole answer need; False while the pool cannot."""
        request = sequence.request
        blocks = self._pool.allocate(request.total_blocks - len(request.blocks))
        if blocks is None:
            return False
        request.blocks.extend(blocks)
        request.phase = Phase.PREFILL
        return True

    def slices(self) -> list[Slice]:
        """Share out the step: every decoding sequence, then prefills in order of arrival."""
        ready = [s for s in self.running if s.request.phase in (Phase.PREFILL, Phase.DECODE)]
        decoding = [Slice(s, 1, scored=True, prefill=False) for s in ready if s.request.phase is Phase.DECODE]
        budget = self._max_step_tokens - len(decoding)
        taken = decoding
        for sequence in ready:
            if sequence.request.phase is Phase.PREFILL and budget > 0:
                count = min(sequence.uncomputed, budget)
                taken.append(Slice(sequence, count, scored=count == sequence.uncomputed, prefill=True))
                budget -= count
        return taken

    def retire(self, sequence: Sequence) -> None:
        """Take a finished sequence out and let go of its blocks; published ones stay reusable."""
        self.running.remove(sequence)
        self._pool.release(sequence.request.blocks)
        sequence.request.blocks = []
        sequence.request.phase = Phase.DONE
