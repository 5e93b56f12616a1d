"""`n` answers to one prompt: sampled apart, its KV computed once and shared."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_setup import Rig, emulated_rig, open_tiers, repetitive_prompts, text, tiny_model

from flashnest.errors import WorkloadError
from flashnest.runtime.request import MAX_SAMPLES, Finish, Prompt, SamplingParams


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("max_requests", [1, 8])
def test_each_sample_says_what_its_seed_says_alone(max_requests: int) -> None:
    sampling = SamplingParams(max_tokens=20, temperature=1.0, seed=11, ignore_eos=True, n=4)
    prompt = repetitive_prompts(2)[1]
    with open_tiers() as tiers, Rig(tiny_model(), tiers, max_requests=max_requests) as rig:
        first = rig.serve([replace(prompt, sampling=sampling)])[0]
        said = [r.output.tolist() for r in first.samples]
        alone = [rig.say([replace(prompt, sampling=replace(sampling, n=1, seed=11 + i))])[0] for i in range(4)]
    assert said == alone
    assert len({tuple(tokens) for tokens in said}) == 4
    assert first.samples[0] is first


def test_a_prompt_of_many_samples_is_computed_once() -> None:
    sampling = SamplingParams(max_tokens=40, ignore_eos=True, n=5)
    prompt = Prompt(text(330, 1), reference=text(40, 2), sampling=sampling)
    with open_tiers() as tiers, emulated_rig(tiers, blocks=32, max_step_tokens=64) as rig:
        requests = rig.submit(prompt).samples
        while not all(r.token_times_s for r in requests):
            rig.step()
        assert rig.pool.stats().allocated == 10 + sum(r.block_count - 10 for r in requests)
        assert len({tuple(r.blocks[:10]) for r in requests}) == 1
        rig.finish()
        assert sum(e.prefill_tokens for e in rig.events) == 330 + 4 * 10
        assert {r.id for e in rig.events for r in e.finished} == {r.id for r in requests}
        assert all(r.output.tolist() == prompt.reference.tolist() for r in requests)


def test_a_sample_can_be_cancelled_alone() -> None:
    sampling = SamplingParams(max_tokens=40, ignore_eos=True, n=3)
    prompt = Prompt(text(100, 1), reference=text(40, 2), sampling=sampling)
    with open_tiers() as tiers, emulated_rig(tiers, max_step_tokens=32) as rig:
        first, second, third = rig.submit(prompt).samples
        rig.step()
        rig.engine.cancel(first)
        rig.finish()
        assert [r.finish for r in (first, second, third)] == [Finish.CANCELLED, Finish.LENGTH, Finish.LENGTH]


@pytest.mark.parametrize("n", [0, -1, MAX_SAMPLES + 1])
def test_a_number_of_samples_that_makes_no_sense_is_refused(n: int) -> None:
    with open_tiers() as tiers, emulated_rig(tiers) as rig:
        with pytest.raises(WorkloadError, match="n is"):
            rig.submit(Prompt(text(10, 1), sampling=SamplingParams(n=n)))
        assert rig.engine.idle
