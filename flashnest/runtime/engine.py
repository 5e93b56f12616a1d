"""The decode loop. `Engine.step` reads as its steps: drain, admit, draft, forward, commit, learn, sweep.

The engine owns the requests' progress and nothing else: tokens are computed by a `Model`, records live behind a
`Router`, blocks are counted by a `BlockPool`. A cold record never makes a step wait: its answer is drained later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flashnest.errors import ModelError
from flashnest.record import CHUNK_TOKENS, NGRAM_LENGTHS, I32Array, I64Array, namespace_salt, row_words
from flashnest.runtime.admission import Admission
from flashnest.runtime.commit import Committer
from flashnest.runtime.drafter import Drafter
from flashnest.runtime.events import StepEvent
from flashnest.runtime.forward import Model, Scores
from flashnest.runtime.forward_cost import ForwardCost, ForwardShape
from flashnest.runtime.governor import Governor
from flashnest.runtime.kv_pool import BlockPool
from flashnest.runtime.late import complete_probes
from flashnest.runtime.lookup_counts import LookupCounter
from flashnest.runtime.packing import Packed, Shares, base_shape, draft_caps, pack
from flashnest.runtime.prefix_cache import PrefixCache
from flashnest.runtime.request import Finish, Phase, Prompt, Request, check_prompt
from flashnest.runtime.row_kernels import load_row_kernels
from flashnest.runtime.rows import Rows
from flashnest.runtime.scheduler import Scheduler
from flashnest.runtime.sequence import Sequence
from flashnest.runtime.stopping import Detokenise, StopScanner
from flashnest.storage.router import Router

COLD_WAIT_S = 0.001
"""Longest sleep of a step in which every request still waits for cold answers; nothing else could run meanwhile."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """How much runs at once. `max_draft_tokens` 0 switches drafting off; learning goes on.

    `fixed_draft_tokens`: drafts get this length whatever they cost, None weighs them; `sweep_budget_s`: time after each
    step for moving records between tiers.
    """

    max_requests: int
    max_step_tokens: int = 512
    max_draft_tokens: int = 8
    ngram_lengths: tuple[int, ...] = NGRAM_LENGTHS
    chain_words: int = 8
    sweep_budget_s: float = 500e-6
    fixed_draft_tokens: int | None = None


class Engine:
    """Runs requests to their end, many at a time. Not thread-safe: one thread submits, steps and closes."""

    def __init__(
        self,
        model: Model,
        router: Router,
        pool: BlockPool,
        limits: EngineLimits,
        *,
        detokenise: Detokenise | None = None,
        cost: ForwardCost | None = None,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        spec = model.spec
        self._model, self._router, self._pool, self._limits = model, router, pool, limits
        self._detokenise, self._clock_s = detokenise, clock_s
        self._room = min(spec.max_context_tokens, pool.blocks * CHUNK_TOKENS)
        self._rows = Rows.allocate(limits.max_requests, self._room)
        load_row_kernels(self._rows)
        self._scheduler = Scheduler(
            pool,
            self._rows,
            max_step_tokens=limits.max_step_tokens,
            max_draft_tokens=limits.max_draft_tokens,
        )
        self._cache = PrefixCache(
            router,
            pool,
            kv_version=spec.kv_version,
            max_chunks=-(-spec.max_context_tokens // CHUNK_TOKENS),
            words=row_words(limits.chain_words),
        )
        self._drafter = Drafter(
            router,
            rows=limits.max_requests,
            ngram_lengths=limits.ngram_lengths,
            chain_words=limits.chain_words,
            max_draft_tokens=max(1, limits.max_draft_tokens),
        )
        self._governor = Governor(
            max_draft_tokens=limits.max_draft_tokens, fixed_tokens=limits.fixed_draft_tokens, cost=cost
        )
        self._committer = Committer(self._rows, self._drafter, self._governor, spec.eos_ids)
        self._sequences: dict[int, Sequence] = {}
        self._next_id = 1
        self._lookups = LookupCounter()
        self._admission = Admission(self._scheduler, self._cache, self._rows, self._lookups)
        self._sweep_s = 0.0

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self._sequences

    def submit(self, prompt: Prompt, *, arrived_s: float | None = None) -> Request:
        """Queue a prompt and return its request, which fills as steps run; `samples` has all where n is above 1.

        Raises WorkloadError for a prompt or sampling that nothing can serve, ModelError where prompt and answer
        together pass the model's context or the whole KV pool.
        """
        check_prompt(prompt, self._model.spec.vocab_size, has_text=self._detokenise is not None)
        _check_size(prompt, self._room)
        arrived_s = self._clock_s() if arrived_s is None else arrived_s
        requests = tuple(self._queue(p, arrived_s) for p in prompt.samples())
        requests[0].samples = requests
        return requests[0]

    def _queue(self, prompt: Prompt, arrived_s: float) -> Request:
        request = Request(self._next_id, prompt, arrived_s)
        self._next_id += 1
        lineage = self._cache.lineage(namespace_salt(prompt.namespace))
        scanner = StopScanner(prompt.sampling, self._model.spec.eos_ids, self._detokenise)
        sequence = Sequence(request, lineage, scanner if prompt.sampling.stop else None)
        self._sequences[request.id] = sequence
        self._scheduler.add(sequence)
        return request

    def cancel(self, request: Request) -> None:
        """End a request now; its tokens so far stay in `request.output`. Ended ones are left alone."""
        sequence = self._sequences.get(request.id)
        if sequence is None:
            return
        request.finish = Finish.CANCELLED
        if sequence in self._scheduler.running:
            self._retire(sequence)
        else:
            self._scheduler.waiting.remove(sequence)
            request.phase = Phase.DONE
            del self._sequences[request.id]

    def cancel_all(self) -> StepEvent:
        """End every request now, as `cancel` does; the event names them."""
        started_s = self._clock_s()
        requests = tuple(s.request for s in self._sequences.values())
        for request in requests:
            self.cancel(request)
        return self._event(started_s, 0.0, 0, None, 0, requests)

    def step(self) -> StepEvent:
        """Run one step and say what happened."""
        started_s = self._clock_s()
        self._drain()
        for sequence in self._admission.seat():
            self._drafter.begin(sequence.request.row)
        self._admission.start()
        shares = self._scheduler.shares()
        self._admission.forget_preempted()
        if not len(shares.rows):
            self._router.submit()
            self._sweep()
            self._router.wait(COLD_WAIT_S)
            return self._event(started_s, 0.0, 0, None, 0, ())
        computed = self._rows.computed[shares.rows]
        packed = self._draft(shares)
        self._router.submit()
        scores, forward_s = self._forward(packed)
        committed = self._commit(shares, packed, scores)
        self._learn(shares, packed.scored, computed)
        ended = [s for s in packed.scored if s.request.finish is not None]
        for sequence in ended:
            self._retire(sequence)
        self._sweep()
        return self._event(
            started_s,
            forward_s,
            int(shares.counts[shares.prefill].sum()),
            packed,
            committed,
            tuple(s.request for s in ended),
        )

    def close(self) -> None:
        """Hand what was learnt to the table and give the model's memory back. The router is its owner's to close."""
        self._model.close()

    def _drain(self) -> None:
        """Take in the cold answers that have come since the last step."""
        answers, state = self._router.drain(), self._rows
        complete_probes(answers, self._sequences)
        self._drafter.late.take(answers, state.tokens, state.lengths, state.request_ids)

    def _draft(self, shares: Shares) -> Packed:
        rows = shares.rows[shares.scored]
        scored = self._scheduler.sequences(rows)
        drafts = self._drafter.drafts
        if self._limits.max_draft_tokens and scored:
            self._propose(rows)
        else:
            drafts.clear(len(scored))
        caps = np.minimum(draft_caps(self._rows, rows), drafts.known_tokens(len(scored), self._model.spec.vocab_size))
        waiting = self._drafter.waiting(len(scored)) if self._limits.max_draft_tokens else None
        lengths = self._governor.choose(drafts, caps, *base_shape(self._rows, shares), waiting)
        return pack(self._rows, shares, scored, drafts.tokens, lengths)

    def _propose(self, rows: I64Array) -> None:
        state = self._rows
        self._drafter.propose(state.tokens, rows, state.lengths, state.salts, state.request_ids)
        self._lookups.add_ngrams(self._drafter.answers(len(rows))[0])

    def _forward(self, packed: Packed) -> tuple[Scores, float]:
        before_s = self._clock_s()
        scores = self._model.forward(packed.batch)
        seconds = self._clock_s() - before_s
        self._governor.record_forward(ForwardShape.of(packed.batch), seconds)
        return scores, seconds

    def _commit(self, shares: Shares, packed: Packed, scores: Scores) -> int:
        self._rows.computed[shares.rows] += shares.counts
        return self._committer.commit(packed, scores, self._clock_s())

    def _learn(self, shares: Shares, scored: list[Sequence], computed: I32Array) -> None:
        """Publish the chunks that were completed since computed int32 (n,), learn what was said."""
        rows, state = shares.rows, self._rows
        full = state.computed[rows] // CHUNK_TOKENS > computed // CHUNK_TOKENS
        self._cache.publish((s.request, s.lineage) for s in self._scheduler.sequences(rows[full]))
        finals = np.zeros(len(rows), np.bool_)
        finals[shares.scored] = [s.request.finish is not None for s in scored]
        self._drafter.learn(state.tokens, rows, state.learned, state.lengths, state.salts, state.namespaces, finals)

    def _sweep(self) -> None:
        """Let the policy move records for as long as its budget allows."""
        before_s = self._clock_s()
        self._router.sweep(self._limits.sweep_budget_s)
        self._sweep_s = self._clock_s() - before_s

    def _retire(self, sequence: Sequence) -> None:
        self._scheduler.retire(sequence)
        self._cache.pending.drop(sequence.request.id)
        del self._sequences[sequence.request.id]

    def _event(
        self,
        started_s: float,
        forward_s: float,
        prefill_tokens: int,
        packed: Packed | None,
        committed: int,
        finished: tuple[Request, ...],
    ) -> StepEvent:
        return StepEvent(
            started_s=started_s,
            duration_s=self._clock_s() - started_s,
            forward_s=forward_s,
            forward_tokens=0 if packed is None else len(packed.batch.token_ids),
            prefill_tokens=prefill_tokens,
            scored=0 if packed is None else len(packed.scored),
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            committed=committed,
            drafts=self._committer.take_draft_counts(),
            no_draft=self._governor.take_no_draft_counts(),
            lookups=self._lookups.take(self._router.lookup_totals),
            sweep_s=self._sweep_s,
            finished=finished,
        )


def _check_size(prompt: Prompt, room: int) -> None:
    count, longest = len(prompt.tokens), prompt.sampling.max_tokens
    if count == 0 or count + longest > room:
        raise ModelError(
            f"a prompt of {count} tokens and an answer of {longest} do not fit",
            why=f"at least 1 and at most {room} tokens fit the model's context and the KV pool",
            fix="shorten the prompt, ask for fewer tokens, or raise decode.kv_pool",
        )
