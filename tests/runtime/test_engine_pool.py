"""KV blocks under pressure, cancelling in every phase, and what is refused at the door. No block is ever lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine_setup import NOTHING, Rig, emulated_rig, open_tiers, text
from hypothesis import given, settings
from hypothesis import strategies as st

from flashnest.errors import ModelError, WorkloadError
from flashnest.record import I32Array
from flashnest.runtime.request import Finish, Phase, Prompt, Request, SamplingParams

ANSWER = text(64, 1)


def prompt_of(blocks: int, seed: int, *, answer: int = 16, namespace: str = "default") -> Prompt:
    """Return a prompt that, with its answer, takes exactly `blocks` KV blocks."""
    return of(text(32 * blocks - answer, seed), answer, namespace)


def of(tokens: I32Array, answer: int = 16, namespace: str = "default") -> Prompt:
    sampling = SamplingParams(max_tokens=answer, ignore_eos=True)
    return Prompt(tokens, namespace, reference=ANSWER[:answer], sampling=sampling)


def order_of_ends(rig: Rig) -> list[int]:
    return [request.id for event in rig.events for request in event.finished]


def said_all(requests: list[Request]) -> bool:
    return all(r.output.tolist() == r.prompt.reference.tolist() for r in requests)


@pytest.mark.parametrize("max_requests", [1, 4, 8])
def test_more_requests_than_blocks_all_end_in_order(max_requests: int) -> None:
    """20 requests of 3 to 10 blocks through a pool of 10."""
    sizes = np.random.default_rng(1).integers(3, 11, 20).tolist()
    options = {"blocks": 10, "max_requests": max_requests, "max_draft_tokens": 0}
    with open_tiers() as tiers, emulated_rig(tiers, **options) as rig:
        requests = rig.serve([prompt_of(n, seed=i) for i, n in enumerate(sizes)])
        assert said_all(requests)
        starts = [r.token_times_s[0] for r in requests]
        assert starts == sorted(starts)
        assert order_of_ends(rig) == [r.id for r in requests]  # equal answers, no drafts: first in, first out
        assert rig.pool.available == 10


def test_small_requests_do_not_overtake_a_large_one_that_waits_for_room() -> None:
    with open_tiers() as tiers, emulated_rig(tiers, blocks=10, max_requests=8) as rig:
        long = rig.submit(prompt_of(4, 1, answer=40))
        rig.step()
        large = rig.submit(prompt_of(8, 2))
        small = [rig.submit(prompt_of(2, 3 + i)) for i in range(4)]
        rig.finish()
        assert large.token_times_s[0] > long.token_times_s[-1]
        assert min(r.token_times_s[0] for r in small) >= large.token_times_s[0]


def test_two_that_wait_for_room_do_not_hold_what_the_other_needs(tmp_path: Path) -> None:
    """`second` finds its chunks in the write buffer at once, `first` waits for the disk: when its answer comes, `first`
    is next in line for the whole pool. Were `second` to keep its reused blocks meanwhile, both would wait for ever.
    """
    first_prompt, second_prompt = prompt_of(10, 1), prompt_of(9, 2)
    with (
        open_tiers(tmp_path, dram_from=NOTHING, pump_every=10**9) as tiers,
        emulated_rig(tiers, blocks=10, max_requests=4) as rig,
    ):
        rig.serve([first_prompt])
        tiers.router.flush()
        rig.serve([of(second_prompt.tokens[:200])])
        holder = rig.submit(prompt_of(2, 3, answer=30))
        rig.step()
        first, second = rig.submit(first_prompt), rig.submit(second_prompt)
        rig.step()
        assert first.phase is second.phase is Phase.PROBING
        assert first.blocks == second.blocks == []
        tiers.cold.pump()
        tiers.pump_every = 1
        rig.finish()
        assert said_all([holder, first, second])
        assert order_of_ends(rig)[-2:] == [first.id, second.id]


def test_blocks_that_only_seemed_shared_are_given_back() -> None:
    """The table names two blocks of the prompt that another request has by now. Counting on them, the pool seems to
    have room; once they prove stale, the three good ones go back and the stale ones are not tried again.
    """
    with open_tiers() as tiers, emulated_rig(tiers, blocks=10, max_requests=4, max_draft_tokens=0) as rig:
        prompt = prompt_of(6, 1)
        rig.serve([prompt])  # five chunks stay cached
        short = rig.submit(prompt_of(1, 2))
        rig.step()
        long = rig.submit(prompt_of(6, 3, answer=40))  # takes four free blocks and the last two of the five
        while short.phase is not Phase.DONE:
            rig.step()
        waits = rig.submit(prompt)
        for _ in range(3):
            rig.step()
            assert (waits.phase, waits.blocks, waits.reused_tokens) == (Phase.PROBING, [], 0)
            assert rig.pool.available == 4
        assert rig.pool.stats().stale_total == 1
        rig.finish()
        assert said_all([short, long, waits])
        assert waits.reused_tokens == 96
        assert sum(event.lookups.hits for event in rig.events) == 5


def test_waiting_for_room_does_not_count_lookups_twice() -> None:
    shared = text(100, 5)
    with open_tiers() as tiers, emulated_rig(tiers, blocks=10, max_requests=4, max_draft_tokens=0) as rig:
        rig.serve([of(shared)])
        reused = rig.pool.stats().reused_total
        rig.submit(prompt_of(6, 6, answer=40))
        rig.step()
        before = len(rig.events)
        waits = rig.submit(of(np.concatenate([shared, text(100, 7)])))
        rig.finish()
        assert waits.reused_tokens == 96
        assert rig.pool.stats().reused_total == reused + 3
        assert sum(event.lookups.queries for event in rig.events[before:]) == len(waits.prompt.tokens) // 32
        assert sum(event.lookups.hits for event in rig.events[before:]) == 3


def test_reuse_lets_more_requests_run_than_blocks_alone_would() -> None:
    shared = text(6 * 32, 5)
    with open_tiers() as tiers, emulated_rig(tiers, blocks=10, max_requests=4) as rig:
        rig.serve([of(shared)])
        requests = [rig.submit(of(np.concatenate([shared, text(8, 20 + i)]))) for i in range(4)]
        rig.step()
        assert [r.phase for r in requests] == [Phase.DECODE] * 4  # 6 shared blocks and 4 x 1
        rig.finish()
        assert said_all(requests)


@pytest.mark.parametrize("blocks", [5, 10])
def test_what_can_never_fit_is_refused_at_once(blocks: int) -> None:
    with open_tiers() as tiers, emulated_rig(tiers, blocks=blocks) as rig:
        assert said_all(rig.serve([prompt_of(blocks, 1)]))
        for tokens in (text(32 * blocks - 15, 1), text(0, 1)):
            with pytest.raises(ModelError, match="do not fit"):
                rig.submit(of(tokens))
        assert rig.engine.idle


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"min_p": float("nan")}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"logprobs": 21}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"stop": ("a", "")}, "stop string"),
        ({"stop": ("a",)}, "tokenizer"),
    ],
)
def test_sampling_that_nothing_can_serve_is_refused(wrong: dict[str, object], says: str) -> None:
    """Found out in the middle of a step, it would end every request beside it."""
    with open_tiers() as tiers, emulated_rig(tiers) as rig:
        with pytest.raises(WorkloadError, match=says):
            rig.submit(replace(prompt_of(2, 1), sampling=SamplingParams(**wrong)))
        assert rig.engine.idle


@pytest.mark.parametrize("token", [-1, 1000, 2**31 - 1])
def test_token_ids_that_the_model_has_not_are_refused(token: int) -> None:
    with open_tiers() as tiers, emulated_rig(tiers) as rig:
        with pytest.raises(WorkloadError, match=r"0\.\.999"):
            rig.submit(of(np.array([5, token, 7], np.int32)))
        assert rig.engine.idle


def test_a_request_can_be_cancelled_in_every_phase(tmp_path: Path) -> None:
    with (
        open_tiers(tmp_path, dram_from=NOTHING, pump_every=10**9) as tiers,
        emulated_rig(tiers, blocks=12, max_requests=3, max_step_tokens=64) as rig,
    ):
        cold = prompt_of(4, 1)
        rig.serve([cold])
        tiers.router.flush()
        decoding = rig.submit(prompt_of(1, 2))
        rig.step()
        probing, prefilling, waiting = rig.submit(cold), rig.submit(prompt_of(6, 3)), rig.submit(prompt_of(2, 4))
        rig.step()
        requests = [decoding, probing, prefilling, waiting]
        assert [r.phase for r in requests] == [Phase.DECODE, Phase.PROBING, Phase.PREFILL, Phase.WAITING]
        said = decoding.output.tolist()
        for request in requests:
            rig.engine.cancel(request)
            rig.engine.cancel(request)  # a second time changes nothing
            assert (request.phase, request.finish, request.blocks) == (Phase.DONE, Finish.CANCELLED, [])
        assert decoding.output.tolist() == said == ANSWER[: len(said)].tolist()
        assert rig.engine.idle
        assert rig.pool.available == 12
        tiers.pump_every = 1
        assert said_all(rig.serve([cold, prompt_of(6, 3)]))  # the engine goes on, late answers and all


def test_cancel_all_ends_and_names_everyone() -> None:
    with open_tiers() as tiers, emulated_rig(tiers, blocks=10, max_requests=3, max_step_tokens=32) as rig:
        requests = [rig.submit(prompt_of(4, i)) for i in range(6)]
        for _ in range(5):
            rig.step()
        event = rig.engine.cancel_all()
        assert {r.id for r in event.finished} == {r.id for r in requests if r.finish is Finish.CANCELLED}
        assert (event.running, event.waiting, event.committed, event.forward_tokens) == (0, 0, 0, 0)
        assert rig.engine.idle
        assert rig.engine.cancel_all().finished == ()


def test_an_ended_request_cannot_be_cancelled() -> None:
    with open_tiers() as tiers, emulated_rig(tiers) as rig:
        request = rig.serve([prompt_of(2, 1)])[0]
        rig.engine.cancel(request)
        assert request.finish is Finish.LENGTH


requests_at_random = st.lists(
    st.tuples(st.integers(1, 200), st.integers(1, 40), st.integers(0, 3), st.sampled_from(["a", "b"])),
    min_size=1,
    max_size=10,
)


@settings(max_examples=25, deadline=None)
@given(requests_at_random, st.integers(8, 20), st.integers(1, 5), st.integers(1, 70), st.integers(0, 2**16))
def test_any_mix_ends_with_every_block_back(
    mix: list[tuple[int, int, int, str]], blocks: int, max_requests: int, max_step_tokens: int, cancels: int
) -> None:
    """Prompts share starts and tenants; some are cancelled on the way."""
    with open_tiers(dram_bytes=1 << 20) as tiers:
        options = {"blocks": blocks, "max_requests": max_requests, "max_step_tokens": max_step_tokens}
        with emulated_rig(tiers, **options) as rig:
            prompts = [of(text(200, 40 + seed)[:n], answer, name) for n, answer, seed, name in mix]
            requests = [rig.submit(p) for p in prompts]
            while not rig.engine.idle:
                rig.step()
                held = {block for r in requests for block in r.blocks}
                assert rig.pool.stats().allocated == len(held)
                if cancels >> len(rig.events) % 16 & 1 and len(rig.events) % 3 == 0:
                    rig.engine.cancel(requests[cancels % len(requests)])
            for r in requests:
                assert r.output.tolist() == r.prompt.reference[: len(r.output)].tolist()
                assert len(r.output) == len(r.prompt.reference) or r.finish is Finish.CANCELLED
