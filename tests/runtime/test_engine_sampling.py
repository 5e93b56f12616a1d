"""Sampled output follows the model's own distribution, drafts or not: by seed, and by chi-square against the model."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest
import torch
from engine_setup import Rig, open_tiers, repetitive_prompts, text, tiny_model
from sampling_reference import draw, position_uniforms

from flashnest.record import F64Array, I32Array, I64Array
from flashnest.runtime import choosing, commit
from flashnest.runtime.drafter import Source
from flashnest.runtime.packing import Packed
from flashnest.runtime.request import Prompt, SamplingParams
from flashnest.runtime.sampler import target_probs
from flashnest.runtime.weights import tiny_qwen3

pytestmark = pytest.mark.usefixtures("one_thread")

VOCAB = 32
SHAPE = {"vocab": VOCAB, "layers": 1, "hidden": 32}
SEED = 8
TEMPERATURE = 1.0
TOP_P = 0.9
SAMPLES = 1600
PROMPT = np.tile(text(6, 42, VOCAB), 4)
"""Its own text proposes what followed before; the model gives that token 0.52."""


# The same seed, the same tokens


def sampled(count: int) -> list[Prompt]:
    """Return prompts with sampling of all sorts, each with its own seed; every fourth is greedy."""
    prompts = []
    for i, prompt in enumerate(repetitive_prompts(count)):
        temperature, top_p = (0.0, 1.0) if i % 4 == 3 else (0.3 + 0.2 * (i % 3), (1.0, 0.8)[i % 2])
        sampling = SamplingParams(24, temperature, top_p, seed=i * 7919 - 5, ignore_eos=True)
        prompts.append(Prompt(prompt.tokens, sampling=sampling))
    return prompts


@pytest.fixture(scope="module")
def said(one_thread: None) -> list[list[int]]:
    with open_tiers() as tiers, Rig(tiny_model(), tiers, max_requests=1, max_draft_tokens=0) as rig:
        return rig.say(sampled(8))


@pytest.mark.parametrize("max_requests", [1, 3, 8])
def test_a_seed_gives_the_same_tokens_with_drafts_on_and_off(said: list[list[int]], max_requests: int) -> None:
    with open_tiers() as tiers, Rig(tiny_model(), tiers, max_requests=max_requests, max_step_tokens=64) as rig:
        assert rig.say(sampled(8)) == said
        before = rig.drafts()
        assert rig.say(sampled(8)) == said
        _, drafted, kept = (rig.drafts() - before)[Source.DRAM]
        assert 8 * 24 // 2 < kept <= drafted  # the table knows what each seed will say


def test_other_seeds_say_other_things() -> None:
    prompt = sampled(1)[0]
    with open_tiers() as tiers, Rig(tiny_model(), tiers) as rig:
        outputs = [rig.say([Prompt(prompt.tokens, sampling=SamplingParams(24, 0.8, seed=s))])[0] for s in range(4)]
    assert len({tuple(output) for output in outputs}) == 4


def test_mixed_batches_do_not_touch_one_another(said: list[list[int]]) -> None:
    """Requests come and go while others run; each says what it says alone."""
    prompts = sampled(8)
    with open_tiers() as tiers, Rig(tiny_model(), tiers, max_requests=3) as rig:
        requests = []
        for prompt in [*prompts, *reversed(prompts)]:
            requests.append(rig.submit(prompt))
            rig.step()
        rig.finish()
        assert [r.output.tolist() for r in requests] == [*said, *reversed(said)]


# The distribution


@cache
def exact() -> F64Array:
    """Return the probability of each pair of next tokens after PROMPT, float64 (VOCAB, VOCAB), from plain forwards."""
    module = tiny_qwen3(SEED, **SHAPE)
    with torch.inference_mode():
        first = target_probs(module(torch.tensor(PROMPT[None].astype(np.int64))).logits[0, -1:], TEMPERATURE, TOP_P)[0]
        texts = np.concatenate([np.tile(PROMPT, (VOCAB, 1)), np.arange(VOCAB)[:, None]], axis=1).astype(np.int64)
        second = target_probs(module(torch.tensor(texts)).logits[:, -1], TEMPERATURE, TOP_P)
    pairs: F64Array = first[:, None] * second
    return pairs


def p_value(counts: I64Array, probs: F64Array) -> float:
    """Return the chance that draws from `probs` differ from it as much as `counts`; cells below 5 are merged."""
    expected = probs.ravel() * counts.sum()
    seen = counts.ravel()
    large = expected >= 5
    expected = np.append(expected[large], expected[~large].sum())
    seen = np.append(seen[large], seen[~large].sum())
    used = expected > 0
    assert not seen[~used].any()  # nothing that cannot be drawn was drawn
    statistic = ((seen - expected)[used] ** 2 / expected[used]).sum()
    freedom = int(used.sum()) - 1
    return float(torch.special.gammaincc(torch.tensor(freedom / 2.0).double(), torch.tensor(statistic / 2.0).double()))


def draw_pairs(max_draft_tokens: int, first_seed: int) -> tuple[I64Array, float]:
    """Sample SAMPLES answers, with a seed each; returns counts of their first two tokens, int64 (VOCAB, VOCAB),
    and the share of drafted tokens that was accepted.
    """
    prompts = [
        Prompt(PROMPT, sampling=SamplingParams(3, TEMPERATURE, TOP_P, seed=first_seed + i, ignore_eos=True))
        for i in range(SAMPLES)
    ]
    counts = np.zeros((VOCAB, VOCAB), np.int64)
    fixed = max_draft_tokens or None
    options = {"max_requests": 64, "max_draft_tokens": max_draft_tokens, "fixed_draft_tokens": fixed, "blocks": 128}
    with open_tiers() as tiers, Rig(tiny_model(SEED, **SHAPE), tiers, **options) as rig:
        for request in rig.serve(prompts):
            counts[request.output[0], request.output[1]] += 1
        drafts, drafted, accepted = rig.drafts().sum(axis=0)
    assert drafts >= SAMPLES if max_draft_tokens else not drafts  # each answer is drafted from its first token on
    return counts, accepted / max(1, drafted)


def lenient(draft: I32Array, probs: F64Array, uniforms: F64Array) -> I32Array:
    """Accept what is likely enough, as Medusa's typical acceptance does: fast, and another distribution."""
    said = []
    for i, (row, uniform) in enumerate(zip(probs, uniforms, strict=True)):
        kept = i < len(draft) and row[draft[i]] > 0.1
        said.append(draft[i] if kept else draw(row, uniform))
        if not kept:
            break
    return np.array(said, np.int32)


def coin(draft: I32Array, probs: F64Array, uniforms: F64Array, *, without: bool) -> I32Array:
    """Accept x by a coin of p(x), else draw again: right where the draw is `without` x, wrong where x may come back."""
    rng = np.random.default_rng((uniforms * 2.0**53).astype(np.uint64))
    said = []
    for i, row in enumerate(probs):
        kept = i < len(draft) and rng.random() < row[draft[i]]
        if kept:
            said.append(draft[i])
            continue
        rest = row.copy()
        if without and i < len(draft):
            rest[draft[i]] = 0.0
        said.append(draw(rest, rng.random()))
        break
    return np.array(said, np.int32)


def verify_by(monkeypatch: pytest.MonkeyPatch, rule: Callable[..., I32Array]) -> None:
    """Let `rule` say what each sequence commits, in place of drawing every row and comparing."""
    accepted: list[int] = []

    def tokens(packed: Packed, logits: torch.Tensor) -> I64Array:
        inputs = packed.batch.token_ids[packed.batch.score_rows]
        said = np.zeros(len(logits), np.int64)
        accepted.clear()
        for at, sequence in enumerate(packed.scored):
            start, drafted = int(packed.score_starts[at]), int(packed.draft_lengths[at])
            request, rows = sequence.request, slice(start, start + drafted + 1)
            probs = target_probs(logits[rows], TEMPERATURE, TOP_P)
            place = request.length - request.prompt_length
            uniforms = position_uniforms(request.prompt.sampling.seed, place, drafted + 1)
            committed = rule(inputs[start + 1 : rows.stop].astype(np.int32), probs, uniforms)
            said[start : start + len(committed)] = committed
            accepted.append(len(committed) - 1)
        return said

    monkeypatch.setattr(choosing, "logit_tokens", tokens)
    monkeypatch.setattr(commit, "accepted_counts", lambda *_: np.array(accepted, np.int32))


def test_the_next_tokens_follow_the_models_distribution() -> None:
    plain, _ = draw_pairs(0, first_seed=0)
    drafted, accepted_share = draw_pairs(8, first_seed=SAMPLES)
    assert 0.2 < accepted_share < 0.8  # both outcomes are common
    assert p_value(plain, exact()) > 0.01
    assert p_value(drafted, exact()) > 0.01


def test_accepting_by_a_coin_follows_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leviathan's rule is another way to the same distribution: the test judges distributions, not implementations."""
    verify_by(monkeypatch, partial(coin, without=True))
    assert p_value(draw_pairs(8, first_seed=0)[0], exact()) > 0.01


@pytest.mark.parametrize("wrong", [lenient, partial(coin, without=False)], ids=["lenient", "x_may_come_back"])
def test_wrong_verification_is_found_out(monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., I32Array]) -> None:
    verify_by(monkeypatch, wrong)
    assert p_value(draw_pairs(8, first_seed=0)[0], exact()) < 1e-12
