"""Which requests run this step, how many tokens each brings, and who gives way when the KV pool is full.

Owns the queue, the running set and their KV blocks, no tokens. A request starts with blocks for its text and takes more
as it grows, so the pool holds what is used and not what might be. Where it is full the worst ranked request is
preempted: its blocks go back, it waits with its text and computes its KV again (recompute, vLLM 2023), much of it found
in the prefix cache. Rank is the time of arrival, `PRIORITY_S` earlier a priority level: time is on everybody's side, so
nobody starves, and the best ranked request is never preempted, so somebody always ends. Decoding requests run every
step, prefill takes what is left of the step's token budget (chunked prefill, Sarathi-Serve 2024).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass

from flashnest.record import CHUNK_TOKENS, U32Array
from flashnest.runtime.kv_pool import BlockPool
from flashnest.runtime.prefix_cache import Lineage, Probe
from flashnest.runtime.request import Phase, Request
from flashnest.runtime.stopping import StopScanner

PRIORITY_S = 30.0
"""How much earlier a request counts as arrived for each level of its priority."""


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

    @property
    def rank(self) -> tuple[float, int]:
        """Who comes first: the lower. Never changes."""
        return self.request.arrived_s - PRIORITY_S * self.request.priority, self.request.id


@dataclass(frozen=True, slots=True)
class Slice:
    """A sequence's share of a step: its next `count` uncomputed tokens.

    `scored`: they reach its last token, so this step yields its next; `prefill`: they are prompt, or text of one that
    was preempted.
    """

    sequence: Sequence
    count: int
    scored: bool
    prefill: bool


class Scheduler:
    """Ranked admission, preemption and a token budget a step. Not thread-safe: the engine's thread owns it.

    `waiting` and `running` are in order of rank. `max_draft_tokens`: blocks are taken that much ahead where the pool
    can spare them.
    """

    def __init__(self, pool: BlockPool, *, max_requests: int, max_step_tokens: int, max_draft_tokens: int) -> None:
        self._pool = pool
        self._max_requests = max_requests
        self._max_step_tokens = max(max_step_tokens, max_requests)
        self._max_draft_tokens = max_draft_tokens
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._preempted: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence by its rank."""
        insort(self.waiting, sequence, key=_rank)

    def next_waiting(self) -> Sequence | None:
        """Move the best ranked waiting sequence into the running set if there is a free seat.

        One of a lower priority that is ranked after it gives its seat up.
        """
        if not self.waiting:
            return None
        if len(self.running) >= self._max_requests and not self._displace(self.waiting[0]):
            return None
        sequence = self.waiting.pop(0)
        insort(self.running, sequence, key=_rank)
        return sequence

    def take_preempted(self) -> list[Sequence]:
        """Return those that were preempted since the last call."""
        preempted, self._preempted = self._preempted, []
        return preempted

    def has_room(self, sequence: Sequence, shared: int) -> bool:
        """Return whether the pool has blocks for the sequence's text, less `shared` ones that others hold.

        And one more for each running request that still grows: who starts must not push out a neighbour a step later.
        Requests of a lower priority that are ranked after it give way.
        """
        growing = sum(0 < len(s.request.blocks) < s.request.total_blocks for s in self.running)
        needed = _blocks_to_start(sequence.request) - shared + growing
        spare = sum(len(s.request.blocks) for s in self._displaceable(sequence))
        if needed > self._pool.available + spare:
            return False
        while needed > self._pool.available and self._displace(sequence):
            pass
        return needed <= self._pool.available

    def reserve(self, sequence: Sequence) -> bool:
        """Give the sequence the KV blocks that its text and next token need; False while the pool cannot."""
        request = sequence.request
        blocks = self._pool.allocate(_blocks_to_start(request) - len(request.blocks))
        if blocks is None:
            return False
        request.blocks.extend(blocks)
        request.phase = Phase.PREFILL
        return True

    def slices(self) -> list[Slice]:
        """Share out the step: every decoding sequence, then prefills in order of rank."""
        for sequence in list(self.running):
            if sequence.request.phase is Phase.DECODE:
                self._grow(sequence)
        ready = [s for s in self.running if s.request.phase in (Phase.PREFILL, Phase.DECODE)]
        taken = [Slice(s, 1, scored=True, prefill=False) for s in ready if s.request.phase is Phase.DECODE]
        budget = self._max_step_tokens - len(taken)
        for sequence in ready:
            if sequence.request.phase is Phase.PREFILL and budget > 0:
                count = min(sequence.uncomputed, budget)
                taken.append(Slice(sequence, count, scored=count == sequence.uncomputed, prefill=True))
                budget -= count
        for piece in taken:
            if piece.scored:
                self._grow_ahead(piece.sequence)
        return taken

    def retire(self, sequence: Sequence) -> None:
        """Take a finished sequence out and let go of its blocks; published ones stay reusable."""
        self._unseat(sequence)
        sequence.request.phase = Phase.DONE

    def _grow(self, sequence: Sequence) -> None:
        """Give a decoding sequence the block that its last token needs, from the worst ranked where none is free."""
        request = sequence.request
        while len(request.blocks) < request.blocks_needed(request.length) and request.phase is Phase.DECODE:
            if (block := self._pool.allocate(1)) is not None:
                request.blocks.extend(block)
            else:
                self._preempt(next(s for s in reversed(self.running) if s.request.blocks))

    def _grow_ahead(self, sequence: Sequence) -> None:
        """Take the block that a draft would need early, while the pool can spare one for each running request."""
        request = sequence.request
        ahead = request.blocks_needed(min(request.length + self._max_draft_tokens, len(request.tokens)))
        if ahead > len(request.blocks) and self._pool.available > len(self.running):
            request.blocks.extend(self._pool.allocate(ahead - len(request.blocks)) or [])

    def _displace(self, urgent: Sequence) -> bool:
        """Preempt the worst ranked running sequence that `urgent` may displace; False where there is none."""
        victim = next(self._displaceable(urgent), None)
        if victim is None:
            return False
        self._preempt(victim)
        return True

    def _displaceable(self, urgent: Sequence) -> Iterator[Sequence]:
        """Yield running sequences of a lower priority and a worse rank, the worst first."""
        for sequence in reversed(self.running):
            # Answers of a probe that is still out would be taken for those of the next one.
            asking = sequence.probe is not None and sequence.probe.pending
            if sequence.request.priority < urgent.request.priority and sequence.rank > urgent.rank and not asking:
                yield sequence

    def _preempt(self, sequence: Sequence) -> None:
        request = sequence.request
        self._unseat(sequence)
        request.preemptions += bool(request.computed)
        request.computed = 0
        request.phase = Phase.WAITING
        sequence.probe = sequence.late = None
        self.add(sequence)
        self._preempted.append(sequence)

    def _unseat(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._pool.release(sequence.request.blocks)
        sequence.request.blocks = []


def draft_room(sequence: Sequence) -> int:
    """Return how many draft tokens fit the blocks that the sequence holds."""
    return len(sequence.request.blocks) * CHUNK_TOKENS - sequence.request.length


def _rank(sequence: Sequence) -> tuple[float, int]:
    return sequence.rank


def _blocks_to_start(request: Request) -> int:
    """Return the blocks of the text and of the token said after it, which its next step computes."""
    return request.blocks_needed(min(request.length + 1, len(request.tokens)))
