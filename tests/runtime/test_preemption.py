"""Blocks as needed, preemption by recompute, priorities: outputs stay what they are, nobody starves."""

from __future__ import annotations

import numpy as np
import pytest
from engine_setup import Rig, emulated_rig, generate, open_tiers, repetitive_prompts, text, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from flashnest.errors import WorkloadError
from flashnest.runtime.request import MAX_PRIORITY, Finish, Phase, Prompt, Request, SamplingParams
from flashnest.runtime.sequence import PRIORITY_S

ANSWER = text(400, 1)


def prompt_of(tokens: int, seed: int, *, answer: int = 100, priority: int = 0) -> Prompt:
    sampling = SamplingParams(max_tokens=answer, ignore_eos=True)
    return Prompt(text(tokens, seed), reference=ANSWER[:answer], sampling=sampling, priority=priority)


def said_all(requests: list[Request]) -> bool:
    return all(r.output.tolist() == r.prompt.reference.tolist() for r in requests)


def test_a_request_takes_blocks_as_it_grows() -> None:
    with open_tiers() as tiers, emulated_rig(tiers, max_draft_tokens=0) as rig:
        request = rig.submit(prompt_of(40, 1, answer=200))
        held = []
        while not rig.engine.idle:
            rig.step()
            held.append(len(request.blocks))
            assert len(request.blocks) * 32 < request.length + 32 or request.phase is Phase.DONE
        assert held[0] == 2
        assert max(held) == 8


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("max_draft_tokens", [0, 8])
def test_output_is_the_same_when_requests_are_preempted(max_draft_tokens: int) -> None:
    sampling = SamplingParams(max_tokens=70, ignore_eos=True)
    prompts = repetitive_prompts(5, sampling=sampling)
    expected = [generate(p.tokens, 70) for p in prompts]
    with open_tiers() as tiers:
        for _ in range(2):
            options = {"blocks": 14, "max_step_tokens": 64, "max_draft_tokens": max_draft_tokens}
            with Rig(tiny_model(), tiers, **options) as rig:
                requests = rig.serve(prompts)
                assert [r.output.tolist() for r in requests] == expected
                assert sum(r.preemptions for r in requests) > 0
                assert all(len(r.token_times_s) == 70 for r in requests)


def test_sampled_output_is_the_same_when_requests_are_preempted() -> None:
    sampling = SamplingParams(max_tokens=60, temperature=1.0, seed=7, ignore_eos=True, logprobs=2)
    prompts = repetitive_prompts(4, sampling=sampling)
    with open_tiers() as tiers, Rig(tiny_model(), tiers) as rig:
        roomy = rig.serve(prompts)
    with open_tiers() as tiers, Rig(tiny_model(), tiers, blocks=11) as rig:
        tight = rig.serve(prompts)
    assert sum(r.preemptions for r in tight) > 0
    for a, b in zip(roomy, tight, strict=True):
        assert a.output.tolist() == b.output.tolist()
        assert len(b.logprobs) == 60
        assert [p.chosen for p in a.logprobs] == pytest.approx([p.chosen for p in b.logprobs], abs=1e-4)


def test_the_last_to_arrive_gives_way_and_finds_its_chunks_again() -> None:
    with open_tiers() as tiers, emulated_rig(tiers, blocks=16, max_draft_tokens=0) as rig:
        first, second = rig.serve([prompt_of(128, 1, answer=200), prompt_of(128, 2, answer=200)])
        assert said_all([first, second])
        assert first.preemptions == 0
        assert second.preemptions >= 1
        assert second.reused_tokens == 0  # finding one's own chunks again is no reuse
        lost = sum(e.prefill_tokens for e in rig.events) - 2 * 128
        assert lost < 128  # of the 280 tokens it had most were still there


def test_a_preempted_request_can_be_cancelled() -> None:
    with open_tiers() as tiers, emulated_rig(tiers, blocks=10, max_draft_tokens=0) as rig:
        first, second = (rig.submit(prompt_of(96, i, answer=150)) for i in (1, 2))
        while not second.preemptions:
            rig.step()
        assert (second.phase, second.blocks, second.computed) == (Phase.WAITING, [], 0)
        said = second.output.tolist()
        rig.engine.cancel(second)
        assert (second.phase, second.finish) == (Phase.DONE, Finish.CANCELLED)
        rig.finish()
        assert second.output.tolist() == said == ANSWER[: len(said)].tolist()
        assert said_all([first])


def test_who_waits_for_a_preempted_prompt_computes_it() -> None:
    """`low` is preempted in mid-prompt; `twin` waited for its chunks."""
    with open_tiers() as tiers, emulated_rig(tiers, blocks=14, max_step_tokens=32, max_draft_tokens=0) as rig:
        low, twin = (rig.submit(prompt_of(256, 1, answer=20, priority=-1)) for _ in range(2))
        rig.step()
        rig.step()
        urgent = rig.submit(prompt_of(256, 2, answer=20))
        rig.finish()
        assert said_all([low, twin, urgent])
        assert low.preemptions == 1
        assert urgent.token_times_s[-1] < low.token_times_s[0]


def test_the_urgent_go_first() -> None:
    with open_tiers() as tiers, emulated_rig(tiers, max_requests=2) as rig:
        running = [rig.submit(prompt_of(40, i, answer=40)) for i in range(2)]
        rig.step()
        plain = rig.submit(prompt_of(40, 3, answer=20))
        urgent = rig.submit(prompt_of(40, 4, answer=20, priority=2))
        rig.step()
        assert (running[0].phase, running[1].phase, urgent.phase) == (Phase.DECODE, Phase.WAITING, Phase.DECODE)
        rig.finish()
        assert said_all([*running, plain, urgent])
        assert [r.preemptions for r in (*running, plain, urgent)] == [0, 1, 0, 0]
        assert urgent.token_times_s[0] < running[1].token_times_s[1] < plain.token_times_s[0]


@pytest.mark.parametrize(("waited_s", "first"), [(PRIORITY_S * 0.9, "urgent"), (PRIORITY_S * 1.1, "plain")])
def test_waiting_makes_up_for_a_lower_priority(waited_s: float, first: str) -> None:
    with open_tiers() as tiers, emulated_rig(tiers, max_requests=1) as rig:
        rig.submit(prompt_of(40, 1, answer=40, priority=2))
        rig.step()
        plain = rig.submit(prompt_of(40, 2, answer=20))
        rig.clock.now_s += waited_s
        urgent = rig.submit(prompt_of(40, 3, answer=20, priority=1))
        rig.finish()
        assert (urgent.token_times_s[0] < plain.token_times_s[0]) == (first == "urgent")


def test_equal_priorities_never_displace_one_another() -> None:
    with open_tiers() as tiers, emulated_rig(tiers, blocks=12, max_requests=2) as rig:
        requests = rig.serve([prompt_of(64, i, answer=40) for i in range(6)])
        assert said_all(requests)
        assert not any(r.preemptions for r in requests)


@pytest.mark.parametrize("priority", [MAX_PRIORITY + 1, -MAX_PRIORITY - 1])
def test_a_priority_without_bounds_is_refused(priority: int) -> None:
    with open_tiers() as tiers, emulated_rig(tiers) as rig, pytest.raises(WorkloadError, match="priority"):
        rig.submit(prompt_of(40, 1, priority=priority))


mixes = st.lists(
    st.tuples(st.integers(1, 150), st.integers(1, 150), st.integers(-2, 2), st.integers(0, 3)), min_size=2, max_size=10
)


@settings(max_examples=30, deadline=None)
@given(mixes, st.integers(10, 24), st.integers(1, 6), st.integers(16, 200), st.integers(0, 2**16))
def test_any_mix_of_priorities_ends_in_a_pool_too_small_for_it(
    mix: list[tuple[int, int, int, int]], blocks: int, max_requests: int, max_step_tokens: int, cancels: int
) -> None:
    """Prompts share starts, arrive over time, some are cancelled; no block is lost, every output is whole."""
    with open_tiers(dram_bytes=1 << 20) as tiers:
        options = {"blocks": blocks, "max_requests": max_requests, "max_step_tokens": max_step_tokens}
        with emulated_rig(tiers, **options) as rig:
            requests = []
            for n, answer, priority, seed in mix:
                sampling = SamplingParams(max_tokens=answer, ignore_eos=True)
                shared = text(150, 40 + seed)[:n]
                requests.append(rig.submit(Prompt(shared, "a", ANSWER[:answer], sampling, priority)))
                rig.step()
                held = {block for r in requests for block in r.blocks}
                assert rig.pool.stats().allocated == len(held)
                if cancels >> len(requests) & 1:
                    rig.engine.cancel(requests[cancels % len(requests)])
            rig.finish()
            for r in requests:
                assert r.output.tolist() == r.prompt.reference[: len(r.output)].tolist()
                assert len(r.output) == len(r.prompt.reference) or r.finish is Finish.CANCELLED
                assert len(r.token_times_s) == len(r.output)
                assert np.all(np.diff(r.token_times_s) >= 0)
