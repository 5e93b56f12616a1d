"""What users of other engines reported of drafting, as tests: one a report, on a tiny model (research/peers.md 3).

    16  drafts change greedy output         here: batches of 1 to 32, ragged; also test_engine, test_engine_smollm
    17  an end inside an accepted draft     here: a real model, each place; test_engine_endings: every offset, emulated
    18  logprobs and penalties under drafts here: ragged; test_sampling_rules: each rule, batches of 1 to 32
    19  slower than without drafts          test_governor
    20  the proposer's cost grows           test_own_text
    21  stale drafts across requests        here: what A left; also test_engine, test_sampling_rules, test_drafter
    13  one tenant sees another's text      here: in one batch; also test_engine, test_kv_pool
    11  KV of former weights                test_kv_versions
    27  fork                                here; the stores: test_lmdb_store, test_slots_files

Draft lengths are drawn at random here, row by row and step by step, whatever the governor would choose.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from engine_setup import Rig, generate, open_tiers, repetitive_prompts, text, tiny_model

from flashnest.record import I32Array
from flashnest.runtime.drafter import Drafts
from flashnest.runtime.governor import Governor
from flashnest.runtime.request import Finish, Prompt, Request, SamplingParams

pytestmark = pytest.mark.usefixtures("one_thread")

ANSWER = 20
PROMPTS = repetitive_prompts(32, seed=3, sampling=SamplingParams(ANSWER, ignore_eos=True))
PROMPT = PROMPTS[1]


def offered(drafts: Drafts, caps: I32Array) -> I32Array:
    limits: I32Array = np.maximum(np.minimum(drafts.lengths[: len(caps)], caps), 0)
    return limits


@pytest.fixture
def ragged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each row draft any number of what it is offered, none included."""
    rng = np.random.default_rng(7)

    def choose(_: Governor, drafts: Drafts, caps: I32Array, *__: object) -> I32Array:
        return rng.integers(0, offered(drafts, caps) + 1).astype(np.int32)

    monkeypatch.setattr(Governor, "choose", choose)


@pytest.fixture
def all_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each row draft all that it is offered."""
    monkeypatch.setattr(Governor, "choose", lambda _, drafts, caps, *__: offered(drafts, caps))


@pytest.fixture(scope="module")
def expected(one_thread: None) -> list[list[int]]:
    return [generate(prompt.tokens, ANSWER) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def answer(expected: list[list[int]]) -> list[int]:
    """What PROMPT is answered; its tokens differ enough for an end to be found in one place."""
    assert len(set(expected[1])) > ANSWER // 2
    return expected[1]


def spell(tokens: list[int]) -> str:
    return "".join(f"<{token}>" for token in tokens)


def with_rules(prompt: Prompt, **rules: object) -> Prompt:
    return replace(prompt, sampling=replace(prompt.sampling, **rules))


# 16: speculation changes greedy output (vllm #41758, #5313, #11466; llama.cpp #4484; Arctic #99)


@pytest.mark.usefixtures("ragged")
@pytest.mark.parametrize("max_requests", [1, 2, 8, 32])
def test_ragged_drafts_say_what_generate_says(expected: list[list[int]], max_requests: int) -> None:
    with open_tiers() as tiers, Rig(tiny_model(), tiers, max_requests=max_requests, blocks=512) as rig:
        assert rig.say(PROMPTS) == expected
        assert rig.say(PROMPTS) == expected
        drafts, drafted, accepted = rig.drafts().sum(axis=0)
        assert drafted > 2 * drafts  # lengths of all sorts
        assert accepted > len(PROMPTS) * ANSWER // 4


# 17: EOS, a stop string or the limit inside an accepted draft (transformers #47912; vllm #47616; sglang #17260, #39826)


@pytest.fixture(params=["ragged", "all_offered"])
def rig(request: pytest.FixtureRequest, answer: list[int]) -> Iterator[Rig]:
    """Yield eight seats whose table knows the answer, to the end that it would have without EOS."""
    request.getfixturevalue(request.param)
    with open_tiers() as tiers, Rig(tiny_model(), tiers, blocks=512, detokenise=spell) as rig:
        assert rig.say([PROMPT] * 2) == [answer] * 2
        yield rig
        accepted = int(rig.drafts()[:, 2].sum())
        assert accepted > 3 * ANSWER


def check_books(rig: Rig, before: int, requests: list[Request]) -> None:
    """Tokens said are counted once each, with a time and a log-probability each."""
    said = sum(len(r.output) for r in requests)
    assert sum(event.committed for event in rig.events[before:]) == said
    assert all(len(r.token_times_s) == len(r.logprobs) == len(r.output) for r in requests)


def test_a_stop_string_ends_a_request_at_each_place_of_its_drafts(rig: Rig, answer: list[int]) -> None:
    """All places at once, eight in a batch, in the middle of tokens: `5><1` starts in one and ends in the next."""
    ends = []
    for place in range(ANSWER - 1):
        stop = spell(answer[place : place + 2])[2:-2]
        at = spell(answer).index(stop)
        ends.append((stop, at, spell(answer)[:at].count(">")))
    before = len(rig.events)
    requests = rig.serve([with_rules(PROMPT, stop=("never", stop), logprobs=1) for stop, *_ in ends])
    check_books(rig, before, requests)
    for request, (stop, at, whole) in zip(requests, ends, strict=True):
        assert request.finish is Finish.STOP, stop
        assert request.stop_text == spell(answer)[:at]
        assert request.output.tolist() == answer[:whole]


def test_eos_ends_a_request_at_each_place_of_its_drafts(rig: Rig, answer: list[int]) -> None:
    for place in range(ANSWER):
        rig.engine._committer._eos_ids = np.array([answer[place]])
        before = len(rig.events)
        requests = rig.serve([with_rules(PROMPT, ignore_eos=False, logprobs=0)] * 3)
        check_books(rig, before, requests)
        for request in requests:
            assert request.finish is Finish.EOS
            assert request.output.tolist() == answer[: answer.index(answer[place])]


def test_the_limit_ends_a_request_at_each_place_of_its_drafts(rig: Rig, answer: list[int]) -> None:
    before = len(rig.events)
    requests = rig.serve([with_rules(PROMPT, max_tokens=count, logprobs=2) for count in range(1, ANSWER + 1)])
    check_books(rig, before, requests)
    assert [r.output.tolist() for r in requests] == [answer[:count] for count in range(1, ANSWER + 1)]
    assert {r.finish for r in requests} == {Finish.LENGTH}


# 18: logprobs and penalties under speculation (vllm #9423, #17876; sglang #17576)


@pytest.mark.usefixtures("ragged")
@pytest.mark.parametrize("max_requests", [1, 2, 8, 32])
def test_rules_under_ragged_drafts_are_those_of_a_run_without(max_requests: int) -> None:
    rules = [
        {"repetition_penalty": 1.4, "logprobs": 2},
        {"temperature": 0.8, "top_k": 9, "presence_penalty": 0.6, "logprobs": 1},
        {"temperature": 0.7, "min_p": 0.05, "frequency_penalty": 0.3},
        {"logprobs": 4},
    ]
    prompts = [with_rules(p, seed=i, **rules[i % 4]) for i, p in enumerate(PROMPTS[:12])]
    with open_tiers() as tiers, Rig(tiny_model(), tiers, max_requests=1, max_draft_tokens=0) as rig:
        plain = rig.serve(prompts)
    with open_tiers() as tiers, Rig(tiny_model(), tiers, max_requests=max_requests, blocks=512) as rig:
        rig.serve(prompts)
        again = rig.serve(prompts)
        assert rig.drafts()[:, 2].sum() > 12 * ANSWER // 4
    for one, other in zip(plain, again, strict=True):
        assert one.output.tolist() == other.output.tolist()
        for a, b in zip(one.logprobs, other.logprobs, strict=True):
            assert a.chosen == pytest.approx(b.chosen, abs=1e-4)
            np.testing.assert_allclose(a.top, b.top, atol=1e-4)


# 21: stale drafts across requests (llama.cpp #27852: acceptance fell from 86 % to 11 % for the next conversation)


@pytest.mark.usefixtures("all_offered")
def test_a_request_drafts_as_well_after_another_as_alone(answer: list[int]) -> None:
    """One seat, so B sits where A sat; A is of another tenant, so that the table has nothing of it for B."""
    tokens = np.tile(text(9, 77), 6)  # its own text proposes
    second = Prompt(tokens, "b", sampling=SamplingParams(ANSWER, ignore_eos=True))
    with open_tiers() as tiers, Rig(tiny_model(), tiers, max_requests=1) as rig:
        alone, counts = rig.say([second]), rig.drafts().tolist()
        assert rig.drafts()[:, 1].sum() > 0
    for first in (PROMPT, Prompt(tokens[::-1].copy(), "a"), Prompt(tokens, "a")):
        with open_tiers() as tiers, Rig(tiny_model(), tiers, max_requests=1) as rig:
            rig.say([replace(first, namespace="a")])
            before = rig.drafts()
            assert rig.say([second]) == alone
            assert (rig.drafts() - before).tolist() == counts


# 13: one tenant's text in another's drafts or KV (CVE-2025-46570; vllm #16016, #17045)


@pytest.mark.usefixtures("ragged")
def test_tenants_with_one_prompt_share_nothing_in_a_batch(expected: list[list[int]]) -> None:
    """Nor do they slow one another down: each computes its whole prompt, and drafts as if it were alone."""
    tenants = [replace(p, namespace=name) for p in PROMPTS[:2] for name in ("a", "b", "c", "d")]
    with open_tiers() as tiers, Rig(tiny_model(), tiers, blocks=256) as rig:
        requests = rig.serve(tenants)
        assert [r.output.tolist() for r in requests] == [said for said in expected[:2] for _ in range(4)]
        assert {r.reused_tokens for r in requests} == {0}
        assert rig.pool.stats().hash_mismatch_total == 0


# 27: fork (vllm #54023, #8893; numba #7872)


def test_an_engine_goes_on_after_a_fork_that_it_did_not_notice(expected: list[list[int]]) -> None:
    """A child, as a careless host makes one in the middle of a run, ends; the parent's steps say what they would."""
    with open_tiers() as tiers, Rig(tiny_model(), tiers, blocks=512) as rig:
        requests = [rig.submit(prompt) for prompt in PROMPTS[:4]]
        while not rig.engine.idle:
            rig.step()
            child = os.fork()
            if child == 0:
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        assert [r.output.tolist() for r in requests] == expected[:4]
