"""Greedy output is what `generate` says, token by token: whatever is drafted, batched, reused, or read cold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engine_setup import Clock, Rig, emulated_rig, generate, open_tiers, repetitive_prompts, spoil, text, tiny_model

from flashnest.record import U32Array
from flashnest.runtime.drafter import Source
from flashnest.runtime.request import Prompt, SamplingParams

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = repetitive_prompts(9)
ANSWER = 24


@pytest.fixture(scope="module")
def expected(one_thread: None) -> list[list[int]]:
    answers = [generate(prompt.tokens, ANSWER) for prompt in PROMPTS]
    assert min(len(set(answer)) for answer in answers) > 8  # answers that repeat one token would prove little
    return answers


def accepted(rig: Rig) -> int:
    return int(rig.drafts()[:, 2].sum())


@pytest.mark.parametrize("max_step_tokens", [512, 40])
@pytest.mark.parametrize("max_requests", [1, 3, 8])
def test_output_is_what_generate_says(expected: list[list[int]], max_requests: int, max_step_tokens: int) -> None:
    with open_tiers() as tiers:
        options = {"max_requests": max_requests, "max_step_tokens": max_step_tokens}
        with Rig(tiny_model(), tiers, **options) as rig:
            assert rig.say(PROMPTS) == expected
            cold_steps = len(rig.events)
            again = rig.serve(PROMPTS)
            assert [r.output.tolist() for r in again] == expected
            assert all(r.reused_tokens >= 32 for r in again)
            assert accepted(rig) > len(PROMPTS) * ANSWER // 2
            assert len(rig.events) - cold_steps < cold_steps * 2 // 3
        with Rig(tiny_model(), tiers, **options) as rig:  # a fresh pool: records name blocks that are not there
            assert rig.say(PROMPTS) == expected
            assert rig.pool.stats().stale_total > 0


@pytest.mark.parametrize("max_requests", [1, 8])
def test_output_without_drafts_is_what_generate_says(expected: list[list[int]], max_requests: int) -> None:
    with open_tiers() as tiers, Rig(tiny_model(), tiers, max_requests=max_requests, max_draft_tokens=0) as rig:
        assert rig.say(PROMPTS) == expected
        assert not rig.drafts().any()


@pytest.mark.parametrize("seed", [1, 2])
def test_ragged_drafts_change_nothing(expected: list[list[int]], seed: int) -> None:
    """Forward times at random have the governor choose lengths at random, row by row."""
    clock = Clock(tick_s=1e-3, random=np.random.default_rng(seed))
    with open_tiers() as tiers:
        with Rig(tiny_model(), tiers, max_step_tokens=64) as rig:
            assert rig.say(PROMPTS) == expected
        with Rig(tiny_model(), tiers, max_step_tokens=64, clock=clock) as rig:
            for _ in range(3):
                assert rig.say(PROMPTS) == expected
            drafts, drafted, kept = rig.drafts().sum(axis=0)
            assert 0 < drafted < 8 * drafts
            assert kept > 0


def wrong_from(place: int, seed: int, top: int = 512) -> object:
    """Return a mend that keeps the first `place` tokens of each chain and makes up the rest."""

    def mend(chains: U32Array) -> U32Array:
        chains[:, place:] = np.random.default_rng(seed).integers(0, top, chains[:, place:].shape)
        return chains

    return mend


@pytest.mark.parametrize("place", [0, 3])
def test_wrong_drafts_change_nothing(expected: list[list[int]], place: int) -> None:
    with open_tiers() as tiers, Rig(tiny_model(), tiers) as rig:
        assert rig.say(PROMPTS) == expected
        assert spoil(tiers, wrong_from(place, seed=1)) > 1000
        before = rig.drafts()
        assert rig.say(PROMPTS) == expected
        _, drafted, kept = (rig.drafts() - before)[Source.DRAM]
        assert kept < drafted  # some were refused


def test_drafts_that_the_model_has_no_tokens_for_are_cut(expected: list[list[int]]) -> None:
    """A record of another vocabulary, or a damaged one, costs nothing but itself."""
    with open_tiers() as tiers, Rig(tiny_model(), tiers) as rig:
        rig.say(PROMPTS)
        spoil(tiers, wrong_from(2, seed=1, top=1 << 32))
        before = rig.drafts()
        assert rig.say(PROMPTS) == expected
        assert (rig.drafts() - before)[Source.DRAM, 2] > 0  # the good heads are still used


@pytest.mark.parametrize("dram_from", [256, 32], ids=["nvme_only", "hotcold"])
@pytest.mark.parametrize("pump_every", [1, 3])
def test_cold_drafts_change_nothing(expected: list[list[int]], tmp_path: Path, dram_from: int, pump_every: int) -> None:
    with open_tiers(tmp_path, dram_from=dram_from, pump_every=pump_every) as tiers:
        with Rig(tiny_model(), tiers, max_requests=3) as rig:
            assert rig.say(PROMPTS) == expected
        tiers.router.flush()
        with Rig(tiny_model(), tiers, max_requests=3) as rig:
            assert rig.say(PROMPTS) == expected
            tiers.router.flush()
            reused = rig.serve(PROMPTS)
            assert [r.output.tolist() for r in reused] == expected
            assert accepted(rig) > 0
            assert all(r.reused_tokens >= 32 for r in reused)
    # The next process: the same file, no DRAM, no KV.
    with open_tiers(tmp_path, dram_from=dram_from, pump_every=pump_every) as tiers, Rig(tiny_model(), tiers) as rig:
        assert rig.say(PROMPTS) == expected
        assert rig.drafts()[Source.NVME, 2] > 0
        again = rig.serve(PROMPTS)
        assert [r.output.tolist() for r in again] == expected
        assert all(r.reused_tokens >= 32 for r in again)


def test_cold_reads_on_their_own_thread_change_nothing(expected: list[list[int]], tmp_path: Path) -> None:
    """As in a real run: answers come when the disk has them."""
    for _ in range(2):
        with open_tiers(tmp_path, dram_from=16, threaded=True) as tiers, Rig(tiny_model(), tiers) as rig:
            assert rig.say(PROMPTS) == expected
            tiers.router.flush()
            again = rig.serve(PROMPTS)
            assert [r.output.tolist() for r in again] == expected
            assert all(r.reused_tokens >= 32 for r in again)


def test_namespaces_share_neither_kv_nor_drafts(expected: list[list[int]]) -> None:
    """Drafts of a fixed length: what the governor learns from one tenant is no secret of his."""

    def of(namespace: str) -> list[Prompt]:
        return [Prompt(p.tokens, namespace, sampling=p.sampling) for p in PROMPTS]

    def lone(namespace: str) -> tuple[np.ndarray, int]:
        with open_tiers() as tiers, Rig(tiny_model(), tiers, max_requests=3, fixed_draft_tokens=8) as rig:
            requests = rig.serve(of(namespace))
            return rig.drafts(), sum(r.reused_tokens for r in requests)

    drafts_alone, reused_alone = lone("other")
    with open_tiers() as tiers, Rig(tiny_model(), tiers, max_requests=3, fixed_draft_tokens=8) as rig:
        assert rig.say(of("acme")) == expected
        before = rig.drafts()
        requests = rig.serve(of("other"))
        assert [r.output.tolist() for r in requests] == expected
        assert (rig.drafts() - before).tolist() == drafts_alone.tolist()
        assert sum(r.reused_tokens for r in requests) == reused_alone
        assert rig.pool.stats().hash_mismatch_total == 0


@pytest.mark.parametrize("order", [("acme", "other"), ("other", "acme")])
def test_tenants_in_one_batch_draft_from_their_own_records(order: tuple[str, str]) -> None:
    """Only acme has heard this answer before; the other, beside it in each step, gets a token a step."""
    prompt, answer = text(70, 1), text(20, 2)
    sampling = SamplingParams(max_tokens=20, ignore_eos=True)
    with open_tiers() as tiers, emulated_rig(tiers) as rig:
        rig.serve([Prompt(prompt, "acme", answer, sampling)])
        requests = {r.prompt.namespace: r for r in rig.serve([Prompt(prompt, n, answer, sampling) for n in order])}
        assert len(set(requests["acme"].token_times_s)) < 5
        assert len(set(requests["other"].token_times_s)) == 20
        assert requests["acme"].reused_tokens == 64
        assert requests["other"].reused_tokens == 0


def test_a_request_leaves_nothing_behind_for_the_next(expected: list[list[int]]) -> None:
    """A is cancelled in mid-draft, its late answers and half a prompt pending; B says what it says alone."""
    with open_tiers() as tiers, Rig(tiny_model(), tiers, max_requests=2, max_step_tokens=64) as rig:
        rig.say(PROMPTS)
        for steps in range(1, 5):
            first = rig.submit(PROMPTS[0])
            for _ in range(steps):
                rig.step()
            rig.engine.cancel(first)
            assert rig.say(PROMPTS[1:3]) == expected[1:3]


def test_a_prompt_within_another_answer_is_served_right() -> None:
    """B's prompt is A's prompt and answer, so B reuses KV that A's decoding and drafts wrote."""
    first = PROMPTS[0].tokens
    long = SamplingParams(max_tokens=70, ignore_eos=True)
    with open_tiers() as tiers, Rig(tiny_model(), tiers) as rig:
        for _ in range(2):  # the second time through drafts
            said = rig.serve([Prompt(first, sampling=long)])[0].output
        prompt = np.concatenate([first, said])
        request = rig.serve([Prompt(prompt, sampling=SamplingParams(max_tokens=12, ignore_eos=True))])[0]
        assert request.reused_tokens == (len(prompt) - 1) // 32 * 32
        assert request.output.tolist() == generate(prompt, 12)


def test_equal_prompts_at_once_agree(expected: list[list[int]]) -> None:
    with open_tiers() as tiers, Rig(tiny_model(), tiers) as rig:
        assert rig.say([PROMPTS[1]] * 5) == [expected[1]] * 5


@pytest.mark.parametrize("count", [1, 3, 31, 32, 33, 64, 65])
def test_prompts_of_any_length_are_served(count: int) -> None:
    tokens = text(count, seed=count)
    prompt = Prompt(tokens, sampling=SamplingParams(max_tokens=6, ignore_eos=True))
    with open_tiers() as tiers, Rig(tiny_model(), tiers) as rig:
        assert rig.say([prompt, prompt]) == [generate(tokens, 6)] * 2
        assert rig.say([prompt]) == [generate(tokens, 6)]
