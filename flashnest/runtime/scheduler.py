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

import numpy as np

from flashnest.record import I64Array
from flashnest.runtime.kv_pool import BlockPool
from flashnest.runtime.packing import Shares
from flashnest.runtime.request import Phase, Request
from flashnest.runtime.rows import NOBODY, Rows
from flashnest.runtime.sequence import Sequence


class Scheduler:
    """Ranked admission, preemption and a token budget a step. Not thread-safe: the engine's thread owns it.

    `waiting` and `running` are in order of rank; a running request has one of `rows`. `max_draft_tokens`: blocks are
    taken that much ahead where the pool can spare them.
    """

    def __init__(self, pool: BlockPool, rows: Rows, *, max_step_tokens: int, max_draft_tokens: int) -> None:
        self._pool, self._rows = pool, rows
        seats = len(rows.lengths)
        self._max_step_tokens = max(max_step_tokens, seats)
        self._max_draft_tokens = max_draft_tokens
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._free_rows = list(range(seats - 1, -1, -1))
        self._by_row: list[Sequence | None] = [None] * seats
        self._order = np.zeros(0, np.int64)
        """Rows of `running`, in its order."""
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
        if not self._free_rows and not self._displace(self.waiting[0]):
            return None
        sequence = self.waiting.pop(0)
        row = self._free_rows.pop()
        sequence.request.move(self._rows, row)
        self._by_row[row] = sequence
        insort(self.running, sequence, key=_rank)
        self._reorder()
        return sequence

    def sequences(self, rows: I64Array) -> list[Sequence]:
        """Return who has each of rows int64 (n,)."""
        return [s for row in rows.tolist() if (s := self._by_row[row]) is not None]

    def take_preempted(self) -> list[Sequence]:
        """Return those that were preempted since the last call."""
        preempted, self._preempted = self._preempted, []
        return preempted

    def has_room(self, sequence: Sequence, shared: int) -> bool:
        """Return whether the pool has blocks for the sequence's text, less `shared` ones that others hold.

        And one more for each running request that still grows: who starts must not push out a neighbour a step later.
        Requests of a lower priority that are ranked after it give way.
        """
        growing = sum(0 < s.request.block_count < s.request.total_blocks for s in self.running)
        needed = _blocks_to_start(sequence.request) - shared + growing
        spare = sum(s.request.block_count for s in self._displaceable(sequence))
        if needed > self._pool.available + spare:
            return False
        while needed > self._pool.available and self._displace(sequence):
            pass
        return needed <= self._pool.available

    def reserve(self, sequence: Sequence) -> bool:
        """Give the sequence the KV blocks that its text and next token need; False while the pool cannot."""
        request = sequence.request
        blocks = self._pool.allocate(_blocks_to_start(request) - request.block_count)
        if blocks is None:
            return False
        request.add_blocks(blocks)
        request.phase = Phase.PREFILL
        return True

    def shares(self) -> Shares:
        """Share out the step: every decoding sequence, then prefills in order of rank."""
        rows = self._rows
        self._grow(self._in_phase(Phase.DECODE))
        decoding = self._in_phase(Phase.DECODE)
        budget = self._max_step_tokens - len(decoding)
        prefilling, counts = [], []
        for row in self._in_phase(Phase.PREFILL).tolist():
            if budget <= 0:
                break
            prefilling.append(row)
            counts.append(min(int(rows.lengths[row] - rows.computed[row]), budget))
            budget -= counts[-1]
        shares = Shares.of(rows, decoding, np.array(prefilling, np.int64), np.array(counts, np.int32))
        self._grow_ahead(shares.rows[shares.scored])
        return shares

    def retire(self, sequence: Sequence) -> None:
        """Take a finished sequence out and let go of its blocks; published ones stay reusable."""
        self._unseat(sequence)
        sequence.request.phase = Phase.DONE

    def _in_phase(self, phase: Phase) -> I64Array:
        rows: I64Array = self._order[self._rows.phases[self._order] == phase]
        return rows

    def _grow(self, decoding: I64Array) -> None:
        """Give decoding rows the block that their last token needs, from the worst ranked where none is free."""
        short = self._rows.short_of(decoding, self._rows.lengths[decoding])
        if not len(short):
            return
        if (blocks := self._pool.allocate(len(short))) is not None:
            self._rows.add_block(short, blocks)
            return
        for sequence in self.sequences(short):
            while sequence.request.phase is Phase.DECODE:
                if (block := self._pool.allocate(1)) is not None:
                    sequence.request.add_blocks(block)
                    break
                self._preempt(next(s for s in reversed(self.running) if s.request.block_count))

    def _grow_ahead(self, scored: I64Array) -> None:
        """Take the block that a draft would need early, while the pool can spare one for each running request."""
        rows = self._rows
        ahead = np.minimum(rows.lengths[scored] + self._max_draft_tokens, rows.limits[scored])
        short = rows.short_of(scored, ahead)[: max(0, self._pool.available - len(self.running))]
        if len(short) and (blocks := self._pool.allocate(len(short))) is not None:
            rows.add_block(short, blocks)

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
        sequence.probe = None
        self.add(sequence)
        self._preempted.append(sequence)

    def _unseat(self, sequence: Sequence) -> None:
        request = sequence.request
        self.running.remove(sequence)
        self._reorder()
        self._pool.release(request.take_blocks())
        self._by_row[request.row] = None
        self._free_rows.append(request.row)
        row = request.row
        request.leave()
        self._rows.request_ids[row] = NOBODY

    def _reorder(self) -> None:
        self._order = np.array([s.request.row for s in self.running], np.int64)


def _rank(sequence: Sequence) -> tuple[float, int]:
    return sequence.rank


def _blocks_to_start(request: Request) -> int:
    """Return the blocks of the text and of the token said after it, which its next step computes."""
    return request.blocks_needed(min(request.length + 1, request.limit))
