"""What a `StepEvent` says is what happened: counted again from the forward batches and the outputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_setup import (
    NOTHING,
    Clock,
    FromTokens,
    Rig,
    Tiers,
    emulated_model,
    emulated_rig,
    open_tiers,
    repetitive_prompts,
    text,
)

from flashnest.record import Tier
from flashnest.runtime.drafter import Source
from flashnest.runtime.emulated import EmulatedModel
from flashnest.runtime.forward import ForwardBatch, Scores
from flashnest.runtime.request import Finish, Phase, Prompt, SamplingParams


class Watched(EmulatedModel):
    """An emulated model that keeps what it was asked."""

    def forward(self, batch: ForwardBatch) -> Scores:
        self.batches = [*getattr(self, "batches", []), batch]
        return super().forward(batch)


@contextmanager
def watched_rig(tiers: Tiers, **options: Any) -> Iterator[tuple[Rig, Watched]]:
    clock = Clock()
    model = emulated_model(clock, Watched)
    assert isinstance(model, Watched)
    with Rig(model, tiers, clock=clock, **options) as rig:
        yield rig, model


def prompts_with_answers(count: int, *, answer: int = 20) -> list[Prompt]:
    sampling = SamplingParams(max_tokens=answer, ignore_eos=True)
    prompts = repetitive_prompts(count)
    return [Prompt(p.tokens, reference=text(answer, 100 + i % 3), sampling=sampling) for i, p in enumerate(prompts)]


@pytest.mark.parametrize("max_step_tokens", [24, 512])
def test_counts_are_those_of_the_batches_and_outputs(max_step_tokens: int) -> None:
    prompts = prompts_with_answers(10)
    with open_tiers() as tiers, watched_rig(tiers, max_requests=4, max_step_tokens=max_step_tokens) as (rig, model):
        requests = [rig.submit(prompt) for prompt in prompts * 2]
        seen = {r.id: 0 for r in requests}
        while not rig.engine.idle:
            event = rig.step()
            batch = model.batches[-1]
            assert event.forward_tokens == len(batch.token_ids)
            lengths = {r.id: len(r.output) for r in requests}
            assert event.committed == sum(lengths.values()) - sum(seen.values())
            first_tokens = sum(1 for r in requests if lengths[r.id] and not seen[r.id])
            drafted = int(event.drafts[:, 1].sum())
            decoding = event.scored - first_tokens
            assert event.forward_tokens == event.prefill_tokens + decoding + drafted
            assert len(batch.score_rows) == event.scored + drafted
            ends = {r.id: len(r.tokens) for r in requests}  # the last token of an answer is never computed
            assert all(n < ends[i] for i, n in zip(batch.request_ids.tolist(), batch.context_lens, strict=True))
            assert event.committed == event.scored + int(event.drafts[:, 2].sum())
            assert event.drafts[:, 0].sum() <= event.scored
            assert event.prefill_tokens <= max_step_tokens
            assert event.running == sum(r.phase is not Phase.WAITING and r.finish is None for r in requests)
            assert event.waiting == sum(r.phase is Phase.WAITING for r in requests)
            seen = lengths
        assert sum(e.prefill_tokens for e in rig.events) == sum(r.prompt_length - r.reused_tokens for r in requests)
        finished = [r for e in rig.events for r in e.finished]
        assert sorted(r.id for r in finished) == [r.id for r in requests]
        assert all(r.finish is Finish.LENGTH and len(r.token_times_s) == 20 for r in requests)
        assert all(r.token_times_s == sorted(r.token_times_s) for r in requests)
        assert rig.drafts()[Source.DRAM, 2] > 0


def test_times_are_the_clocks() -> None:
    with open_tiers() as tiers, emulated_rig(tiers, max_requests=4) as rig:
        requests = rig.serve(prompts_with_answers(4))
        ends = [e.started_s + e.duration_s for e in rig.events]
        assert sum(e.forward_s for e in rig.events) == pytest.approx(rig.clock.now_s - 100.0)
        assert all(e.duration_s == pytest.approx(e.forward_s) for e in rig.events)
        assert {t for r in requests for t in r.token_times_s} <= set(ends)


def test_drafts_are_counted_under_their_source() -> None:
    """The answer repeats the prompt: own text first, the table on the second pass."""
    tokens = text(40, 1)
    prompt = Prompt(
        np.concatenate([tokens, tokens[:8]]), reference=tokens[8:40], sampling=SamplingParams(max_tokens=32)
    )
    with open_tiers() as tiers, emulated_rig(tiers) as rig:
        rig.serve([prompt])
        first = rig.drafts()
        assert first[Source.OWN, 2] > 16
        rig.serve([prompt])
        second = rig.drafts() - first
        assert second[Source.DRAM, 2] > 16
        assert not (first + second)[[Source.NONE, Source.NVME]].any()


def test_lookups_are_one_a_sequence_and_one_a_chunk() -> None:
    prompts = prompts_with_answers(6)
    with open_tiers() as tiers, emulated_rig(tiers, max_requests=3) as rig:
        for _ in range(2):
            del rig.events[:]
            requests = rig.serve(prompts)
            chunks = sum((r.prompt_length - 1) // 32 for r in requests)
            assert sum(e.lookups.queries for e in rig.events) == chunks + sum(e.scored for e in rig.events)
            keys = chunks + 4 * sum(e.scored for e in rig.events)
            assert sum(e.lookups.keys for e in rig.events) == keys
        hits = sum(e.lookups.hits for e in rig.events)
        assert hits == chunks + sum(e.scored for e in rig.events)  # all of it was served before
        assert all(0 <= e.lookups.hits <= e.lookups.queries for e in rig.events)


@pytest.mark.parametrize("pump_every", [1, 2])
def test_a_cold_answer_counts_once_where_it_arrives(tmp_path: Path, pump_every: int) -> None:
    prompts = prompts_with_answers(6)
    with open_tiers(tmp_path, dram_from=NOTHING) as tiers, emulated_rig(tiers) as rig:
        rig.serve(prompts)
    with open_tiers(tmp_path, dram_from=NOTHING, pump_every=pump_every) as tiers, emulated_rig(tiers) as rig:
        requests = rig.serve(prompts)
        chunks = sum((r.prompt_length - 1) // 32 for r in requests)
        scored = sum(e.scored for e in rig.events)
        hits = sum(e.lookups.hits for e in rig.events)
        assert sum(e.lookups.queries for e in rig.events) == chunks + scored
        assert chunks < hits <= chunks + scored  # every chunk is on disk, and n-grams come on top
        assert all(0 <= e.lookups.hits <= e.lookups.queries for e in rig.events)
        assert rig.drafts()[Source.NVME, 0] <= hits - chunks
        assert rig.drafts()[Source.NVME, 2] > 0


def test_a_late_answer_that_betters_a_hit_is_one_hit(tmp_path: Path) -> None:
    """4-grams answer from DRAM at once, longer ones from NVMe a step later: a query is still a hit or none."""
    short_in_dram = FromTokens(8, chains=((Tier.NVME,), (Tier.DRAM,)))
    with open_tiers(tmp_path, placement=short_in_dram) as tiers, emulated_rig(tiers, max_draft_tokens=2) as rig:
        rig.serve(prompts_with_answers(3))
        tiers.router.flush()
        del rig.events[:]
        rig.serve(prompts_with_answers(3))
        assert rig.drafts()[Source.NVME, 2] > 0  # the longer match was taken
        assert all(e.lookups.hits <= e.lookups.queries for e in rig.events)


def test_switched_off_drafts_ask_the_table_for_chunks_alone() -> None:
    prompts = prompts_with_answers(4)
    with open_tiers() as tiers, emulated_rig(tiers, max_draft_tokens=0) as rig:
        for _ in range(2):
            requests = rig.serve(prompts)
        chunks = sum((r.prompt_length - 1) // 32 for r in requests)
        assert sum(e.lookups.queries for e in rig.events) == 2 * chunks
        assert not rig.drafts().any()
        assert len(tiers.dram) > 4 * 4 * 60  # learning goes on
