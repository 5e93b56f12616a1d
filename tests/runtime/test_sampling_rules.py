"""top_k, min_p, penalties and logprobs: by hand, and through the engine with drafts against without."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_setup import Rig, open_tiers, repetitive_prompts, tiny_model
from sampling_reference import draw

from flashnest.runtime.penalties import penalise
from flashnest.runtime.request import Prompt, Request, SamplingParams
from flashnest.runtime.sampler import target_probs
from flashnest.runtime.verify import draw_many

pytestmark = pytest.mark.usefixtures("one_thread")

SHARES = np.array([0.1, 0.2, 0.3, 0.4])
LOGITS = torch.tensor(np.log(SHARES), dtype=torch.float32)[None]


@pytest.mark.parametrize(("top_k", "kept"), [(1, [3]), (2, [2, 3]), (4, [0, 1, 2, 3]), (9, [0, 1, 2, 3])])
def test_top_k_keeps_the_likeliest(top_k: int, kept: list[int]) -> None:
    assert np.flatnonzero(target_probs(LOGITS, 1.0, top_k=top_k)[0]).tolist() == kept


@pytest.mark.parametrize(("min_p", "kept"), [(0.2, [0, 1, 2, 3]), (0.4, [1, 2, 3]), (0.6, [2, 3]), (1.0, [3])])
def test_min_p_drops_what_is_less_likely_than_its_share_of_the_best(min_p: float, kept: list[int]) -> None:
    probs = target_probs(LOGITS, 1.0, min_p=min_p)[0]
    assert np.flatnonzero(probs).tolist() == kept
    np.testing.assert_allclose(probs[kept], SHARES[kept] / SHARES[kept].sum(), rtol=1e-6)


def test_rows_of_a_batch_do_not_touch_one_another() -> None:
    """Bit for bit, a flat row beside it that needs the full sort included."""
    logits = (
        torch.randn(6, 5000, generator=torch.Generator().manual_seed(3)) * torch.tensor([8, 0.01, 1, 8, 2, 8])[:, None]
    )
    logits[0, 40:80] = logits[0, 7]  # ties
    rules = [
        np.array(r)
        for r in ([0.7, 1, 1, 2, 0.5, 1], [0.8, 0.9, 1, 0.7, 0.99, 1], [0, 0, 9, 50, 0, 3], [0, 0, 0, 0, 0.1, 0.2])
    ]
    together = target_probs(logits, *rules)
    for i in range(6):
        np.testing.assert_array_equal(target_probs(logits[i : i + 1], *(r[i : i + 1] for r in rules))[0], together[i])


def test_draw_many_is_draw_of_each_row() -> None:
    rng = np.random.default_rng(1)
    probs = rng.dirichlet(np.full(50, 0.1), size=200)
    probs[::3, 40:] = 0.0
    uniforms = rng.random(200)
    uniforms[:5] = 1.0 - 2**-53
    assert draw_many(probs, uniforms).tolist() == [draw(p, u) for p, u in zip(probs, uniforms, strict=True)]


def test_penalties_count_the_draft_before_each_row() -> None:
    sampling = SamplingParams(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    request = Request(1, Prompt(np.array([0, 1], np.int32), sampling=sampling), 0.0)
    request.tokens[2], request.length = 2, 3
    logits = torch.tensor([[4.0, -4.0, 1.0, 1.0]] * 3)
    penalise(logits, request, np.array([3, 2]))
    expected = [[2, -8, 0.5 - 0.75, 1], [2, -8, 0.5 - 0.75, 0.5 - 0.75], [2, -8, 0.5 - 1.0, 0.5 - 0.75]]
    np.testing.assert_allclose(logits.numpy(), expected)


def ruled(count: int) -> list[Prompt]:
    """Return prompts with every rule in turn, greedy and sampled."""
    kinds = [
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(temperature=0.7, top_k=5, frequency_penalty=0.4),
        SamplingParams(temperature=0.9, min_p=0.1, presence_penalty=-0.5),
        SamplingParams(logprobs=3),
        SamplingParams(temperature=0.6, top_p=0.9, logprobs=0),
        SamplingParams(),
    ]
    return [
        replace(p, sampling=replace(kinds[i % 6], max_tokens=24, seed=i, ignore_eos=True))
        for i, p in enumerate(repetitive_prompts(count))
    ]


@pytest.mark.parametrize("max_requests", [1, 2, 8, 32])
def test_rules_give_the_same_output_with_drafts_as_without(max_requests: int) -> None:
    with open_tiers() as tiers, Rig(tiny_model(), tiers, max_requests=1, max_draft_tokens=0) as rig:
        plain = rig.serve(ruled(12))
    with open_tiers() as tiers, Rig(tiny_model(), tiers, max_requests=max_requests, blocks=512) as rig:
        for _ in range(2):
            drafted = rig.serve(ruled(12))
            assert [r.output.tolist() for r in drafted] == [r.output.tolist() for r in plain]
        assert rig.drafts().sum(axis=0)[2] > 24  # drafts were accepted
    for one, other in zip(plain, drafted, strict=True):
        count = one.prompt.sampling.logprobs
        assert len(one.logprobs) == len(other.logprobs) == (0 if count is None else 24)
        for a, b in zip(one.logprobs, other.logprobs, strict=True):
            assert a.chosen == pytest.approx(b.chosen, abs=1e-4)
            assert len(a.top) == len(a.top_ids) == count
            np.testing.assert_allclose(a.top, b.top, atol=1e-4)
            if one.prompt.sampling.greedy:
                assert a.chosen == pytest.approx(float(a.top[0]), abs=1e-6)


@pytest.mark.parametrize("stop_at", range(1, 24, 3))
def test_logprobs_end_with_the_output_inside_a_draft(stop_at: int) -> None:
    def spell(tokens: list[int]) -> str:
        return "".join(f"<{token}>" for token in tokens)

    prompt = replace(repetitive_prompts(1)[0], sampling=SamplingParams(24, ignore_eos=True, logprobs=2))
    with open_tiers() as tiers, Rig(tiny_model(), tiers, detokenise=spell) as rig:
        said = rig.say([prompt])[0]
        stop = spell(said[stop_at - 1 : stop_at + 1])
        request = rig.serve([replace(prompt, sampling=replace(prompt.sampling, stop=(stop,)))])[0]
        assert len(request.logprobs) == len(request.output) < 24


def test_request_b_after_a_leaves_no_state() -> None:
    """A penalised, sampled A between two runs of B changes nothing of B."""
    first, second = ruled(2)
    with open_tiers() as tiers, Rig(tiny_model(), tiers, max_requests=1) as rig:
        alone = rig.say([second])[0]
        rig.say([first])
        assert rig.say([second])[0] == alone
