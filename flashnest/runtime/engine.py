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
from flashnest.record import CHUNK_TOKENS, NGRAM_LENGTHS, Tier, namespace_id, namespace_salt, row_words
from flashnest.runtime.commit import Committer
from flashnest.runtime.drafter import Source
from flashnest.runtime.events import StepEvent
from flashnest.runtime.forward import Model, Scores
from flashnest.runtime.forward_cost import ForwardCost, ForwardShape
from flashnest.runtime.governor import Governor
from flashnest.runtime.kv_pool import BlockPool
from flashnest.runtime.late import LateAnswers
from flashnest.runtime.list_drafter import ListDrafter
from flashnest.runtime.lookup_counts import LookupCounter
from flashnest.runtime.packing import Packed, base_shape, draft_caps, pack
from flashnest.runtime.prefix_cache import PrefixCache, Probe
from flashnest.runtime.request import Finish, Phase, Prompt, Request, check_prompt
from flashnest.runtime.scheduler import Scheduler, Sequence, Slice
from flashnest.runtime.stopping import Detokenise, StopScanner
from flashnest.runtime.tickets import ngram_ticket
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
        self._scheduler = Scheduler(
            pool,
            max_requests=limits.max_requests,
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
        self._drafter = ListDrafter(
            router,
            rows=limits.max_requests,
            ngram_lengths=limits.ngram_lengths,
            chain_words=limits.chain_words,
            max_draft_tokens=max(1, limits.max_draft_tokens),
        )
        self._governor = Governor(
            max_draft_tokens=limits.max_draft_tokens, fixed_tokens=limits.fixed_draft_tokens, cost=cost
        )
        self._committer = Committer(self._drafter, self._governor)
        self._late = LateAnswers(self._drafter.ngram_lengths)
        self._sequences: dict[int, Sequence] = {}
        self._next_id = 1
        self._lookups = LookupCounter()
        self._sweep_s = 0.0

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self._sequences

    def submit(self, prompt: Prompt, *, arrived_s: float | None = None) -> Request:
        """Queue a prompt and return its request, which fills as steps run.

        Raises WorkloadError for a prompt or sampling that nothing can serve, ModelError where prompt and answer
        together pass the model's context or the whole KV pool.
        """
        check_prompt(prompt, self._model.spec.vocab_size, has_text=self._detokenise is not None)
        total = len(prompt.tokens) + prompt.sampling.max_tokens
        room = min(self._model.spec.max_context_tokens, self._pool.blocks * CHUNK_TOKENS)
        if len(prompt.tokens) == 0 or total > room:
            raise ModelError(
                f"a prompt of {len(prompt.tokens)} tokens and an answer of {prompt.sampling.max_tokens} do not fit",
                why=f"at least 1 and at most {room} tokens fit the model's context and the KV pool",
                fix="shorten the prompt, ask for fewer tokens, or raise decode.kv_pool",
            )
        request = Request(self._next_id, prompt, self._clock_s() if arrived_s is None else arrived_s)
        self._next_id += 1
        salt = namespace_salt(prompt.namespace)
        sequence = Sequence(
            request,
            salt,
            namespace_id(prompt.namespace),
            self._cache.lineage(salt),
            StopScanner(prompt.sampling, self._model.spec.eos_ids, self._detokenise),
        )
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
        return self._event(started_s, 0.0, [], None, 0, requests)

    def step(self) -> StepEvent:
        """Run one step and say what happened."""
        started_s = self._clock_s()
        self._late.take(self._router.drain(), self._sequences)
        self._admit()
        slices = self._scheduler.slices()
        self._forget_preempted()
        if not slices:
            self._router.submit()
            self._sweep()
            self._router.wait(COLD_WAIT_S)
            return self._event(started_s, 0.0, slices, None, 0, ())
        packed = self._draft(slices)
        self._router.submit()
        scores, forward_s = self._forward(packed)
        committed = self._commit(slices, packed, scores)
        self._learn(slices)
        ended = [s for s in packed.scored if s.request.finish is not None]
        for sequence in ended:
            self._retire(sequence)
        self._sweep()
        return self._event(started_s, forward_s, slices, packed, committed, tuple(s.request for s in ended))

    def close(self) -> None:
        """Hand what was learnt to the table and give the model's memory back. The router is its owner's to close."""
        self._drafter.flush_learned()
        self._model.close()

    def _admit(self) -> None:
        while (sequence := self._scheduler.next_waiting()) is not None:
            sequence.lineage = self._cache.lineage(sequence.salt)
            sequence.probe = self._cache.probe(sequence.request, sequence.lineage)
            sequence.request.phase = Phase.PROBING
        for sequence in list(self._scheduler.running):
            probe = sequence.probe
            if probe is None or probe.pending or self._cache.pending.waits(probe):
                continue
            if not self._start(sequence, probe):
                break  # by rank: those after it wait for the same blocks

    def _forget_preempted(self) -> None:
        """Let those who wait for chunks of a preempted request compute them."""
        for sequence in self._scheduler.take_preempted():
            self._cache.pending.drop(sequence.request.id)

    def _start(self, sequence: Sequence, probe: Probe) -> bool:
        """Give the sequence shared blocks and room for the rest, or False.

        While it waits for room it holds nothing: two that wait with half their blocks each would wait for ever.
        """
        request = sequence.request
        if not self._scheduler.has_room(sequence, self._cache.held_by_others(probe)):
            return False
        self._cache.reuse(request, probe, sequence.lineage)
        if not self._scheduler.reserve(sequence):
            self._cache.give_back(request, probe, sequence.lineage)
            return False
        self._cache.pending.claim(request.id, probe.keys.keys[sequence.lineage.chunks :])
        sequence.probe = None
        if not request.preemptions:
            sequence.learned = request.reused_tokens
        self._lookups.add_chunks(probe)
        return True

    def _draft(self, slices: list[Slice]) -> Packed:
        scored = [s.sequence for s in slices if s.scored]
        drafts = self._drafter.drafts
        if self._limits.max_draft_tokens and scored:
            self._propose(scored)
        else:
            drafts.clear(len(scored))
        caps = np.minimum(draft_caps(scored), drafts.known_tokens(len(scored), self._model.spec.vocab_size))
        waiting = self._drafter.waiting(len(scored)) if self._limits.max_draft_tokens else None
        lengths = self._governor.choose(drafts, caps, *base_shape(slices), waiting)
        return pack(slices, drafts.tokens, lengths)

    def _propose(self, scored: list[Sequence]) -> None:
        lengths = np.array([s.request.length for s in scored], np.int32)
        salts = np.array([s.salt for s in scored], np.uint64)
        tickets = np.array([ngram_ticket(s.request.id, s.request.length) for s in scored], np.int64)
        self._drafter.propose([s.request.tokens for s in scored], lengths, salts, tickets)
        tiers, at_once = self._drafter.answers(len(scored))
        for row, sequence in enumerate(scored):
            if (late := sequence.late) is not None:
                matched = late.matched + late.skip
                self._drafter.offer_row(row, late.row, late.key, matched, Source.NVME, late.skip)
                sequence.late = None
                if matched > at_once[row]:
                    tiers[row] = Tier.NVME
        self._lookups.add_ngrams(tiers)

    def _forward(self, packed: Packed) -> tuple[Scores, float]:
        before_s = self._clock_s()
        scores = self._model.forward(packed.batch)
        seconds = self._clock_s() - before_s
        self._governor.record_forward(ForwardShape.of(packed.batch), seconds)
        return scores, seconds

    def _commit(self, slices: list[Slice], packed: Packed, scores: Scores) -> int:
        for piece in slices:
            piece.sequence.request.computed += piece.count
        return self._committer.commit(packed, scores, self._clock_s())

    def _learn(self, slices: list[Slice]) -> None:
        for piece in slices:
            sequence = piece.sequence
            request = sequence.request
            self._cache.publish(request, sequence.lineage)
            sequence.learned = self._drafter.learn(
                request.tokens,
                sequence.learned,
                request.length,
                sequence.salt,
                sequence.namespace,
                final=request.finish is not None,
            )
        self._cache.flush_published()
        self._drafter.flush_learned()

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
        slices: list[Slice],
        packed: Packed | None,
        committed: int,
        finished: tuple[Request, ...],
    ) -> StepEvent:
        return StepEvent(
            started_s=started_s,
            duration_s=self._clock_s() - started_s,
            forward_s=forward_s,
            forward_tokens=0 if packed is None else len(packed.batch.token_ids),
            prefill_tokens=sum(s.count for s in slices if s.prefill),
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
