"""Where a request ends inside a draft: output, times, counts and KV are those of a run without drafts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_setup import Rig, Tiers, emulated_rig, generate, open_tiers, text, tiny_model

from flashnest.record import ACCEPTED, DRAFTED, I32Array
from flashnest.runtime.request import Finish, Prompt, Request, SamplingParams

pytestmark = pytest.mark.usefixtures("one_thread")

EOS = 2
PROMPT = text(30, seed=1)
ANSWER = text(30, seed=2)


def letters(tokens: list[int]) -> str:
    """Return three letters a token, so that a stop string may start and end inside one."""
    return "".join(chr(97 + token % 23) + chr(97 + token // 23 % 23) + chr(97 + token // 529) for token in tokens)


def learn(tiers: Tiers, reference: I32Array) -> None:
    """Fill the table with the whole reference, whatever ends in it."""
    sampling = SamplingParams(max_tokens=len(reference), ignore_eos=True)
    with emulated_rig(tiers) as rig:
        rig.serve([Prompt(PROMPT, reference=reference, sampling=sampling)])


def end(tiers: Tiers, reference: I32Array, sampling: SamplingParams, max_draft_tokens: int) -> tuple[Rig, Request]:
    with emulated_rig(tiers, max_draft_tokens=max_draft_tokens, detokenise=letters) as rig:
        request = rig.serve([Prompt(PROMPT, reference=reference, sampling=sampling)])[0]
        return rig, request


def check_equal(reference: I32Array, sampling: SamplingParams) -> Request:
    """Serve with and without drafts; returns the request that was served with them."""
    with open_tiers() as tiers:
        learn(tiers, reference)
        rig, request = end(tiers, reference, sampling, 8)
        plain_rig, plain = end(tiers, reference, sampling, 0)
    assert request.output.tolist() == plain.output.tolist()
    assert (request.finish, request.stop_text) == (plain.finish, plain.stop_text)
    for one, served in ((rig, request), (plain_rig, plain)):
        said = len(served.output)
        assert len(served.token_times_s) == said
        assert sum(event.committed for event in one.events) == said
        assert one.pool.stats().cached <= (len(PROMPT) + said) // 32 or served.finish is Finish.STOP
        taken_back = -(-max(map(len, sampling.stop), default=0) // 3) + 1 if served.finish is Finish.STOP else 0
        assert one.drafts()[:, 2].sum() <= said + taken_back
    assert len(rig.events) < len(plain_rig.events) or len(plain_rig.events) <= 2
    return request


@pytest.mark.parametrize("place", range(12))
def test_eos_inside_a_draft_ends_the_request_there(place: int) -> None:
    reference = ANSWER.copy()
    reference[place] = EOS
    request = check_equal(reference, SamplingParams(max_tokens=30))
    assert request.finish is Finish.EOS
    assert request.output.tolist() == ANSWER[:place].tolist()


@pytest.mark.parametrize("place", [1, 5])
def test_ignored_eos_is_said_and_not_the_end(place: int) -> None:
    reference = ANSWER.copy()
    reference[place] = EOS
    request = check_equal(reference, SamplingParams(max_tokens=30, ignore_eos=True))
    assert request.finish is Finish.LENGTH
    assert request.output.tolist() == reference.tolist()


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 8, 9, 10, 11, 17, 18, 19, 29])
def test_the_limit_inside_a_draft_ends_the_request_there(max_tokens: int) -> None:
    request = check_equal(ANSWER, SamplingParams(max_tokens=max_tokens))
    assert request.finish is Finish.LENGTH
    assert request.output.tolist() == ANSWER[:max_tokens].tolist()


@pytest.mark.parametrize("start", range(0, 14, 2))
@pytest.mark.parametrize("letters_long", [1, 2, 9, 30])
def test_stop_strings_end_the_request_at_the_same_letter(start: int, letters_long: int) -> None:
    """Strings of up to ten tokens span a draft's end, and with it steps, at every offset."""
    said = letters(ANSWER.tolist())
    stop = said[3 * start + 1 : 3 * start + 1 + letters_long]
    at = said.find(stop)
    request = check_equal(ANSWER, SamplingParams(max_tokens=30, stop=("never said", stop)))
    assert request.finish is Finish.STOP
    assert request.stop_text == said[:at]
    assert request.output.tolist() == ANSWER[: at // 3].tolist()


def test_eos_before_a_stop_string_wins_and_the_other_way_round() -> None:
    reference = ANSWER.copy()
    reference[4] = EOS
    after, before = letters(ANSWER[6:8].tolist()), letters(ANSWER[2:4].tolist())
    assert check_equal(reference, SamplingParams(stop=(after,))).finish is Finish.EOS
    assert check_equal(reference, SamplingParams(stop=(before,))).finish is Finish.STOP


@pytest.mark.parametrize("place", [0, 3, 6])
def test_kv_past_the_end_is_not_published(place: int) -> None:
    """Prompt and draft together fill a chunk, prompt and answer do not: nothing is to be reused."""
    reference = ANSWER.copy()
    reference[place] = EOS
    prompt = Prompt(PROMPT[: 32 - place - 1], reference=reference)
    with open_tiers() as tiers:
        with emulated_rig(tiers) as rig:
            rig.serve([Prompt(prompt.tokens, reference=reference, sampling=SamplingParams(ignore_eos=True))])
        with emulated_rig(tiers, fixed_draft_tokens=8) as rig:
            assert len(rig.serve([prompt])[0].output) == place
            assert rig.drafts()[:, 1].sum() > place  # the end was inside a draft
            assert rig.pool.stats().cached == 0


def test_the_end_of_one_request_does_not_touch_those_beside_it() -> None:
    """Six requests end at different places of their drafts in the same steps."""
    references = [text(30, seed=10 + i) for i in range(6)]
    for i, reference in enumerate(references):
        reference[2 + 3 * i] = EOS
    prompts = [Prompt(text(30, seed=20 + i), reference=r) for i, r in enumerate(references)]
    endless = [replace(p, sampling=SamplingParams(max_tokens=30, ignore_eos=True)) for p in prompts]
    with open_tiers() as tiers, emulated_rig(tiers) as rig:
        rig.serve(endless)
        before = rig.drafts()
        said = rig.say(prompts)
        assert said == [r[: 2 + 3 * i].tolist() for i, r in enumerate(references)]
        assert (rig.drafts() - before)[:, 2].sum() > sum(map(len, said)) // 2


@pytest.mark.parametrize("place", [0, 1, 5, 11])
def test_eos_ends_a_real_model_where_it_ends_generate(place: int) -> None:
    """The token that the tiny model says at `place` becomes its EOS; drafts know the text that would have followed."""
    prompt = text(50, seed=3)
    endless = generate(prompt, 24)
    eos = endless[place]
    model = tiny_model()
    model._spec = replace(model.spec, eos_ids=(eos,))
    with open_tiers() as tiers, Rig(model, tiers) as rig:
        rig.serve([Prompt(prompt, sampling=SamplingParams(max_tokens=24, ignore_eos=True))])
        request = rig.serve([Prompt(prompt, sampling=SamplingParams(max_tokens=24))])[0]
        expected = generate(prompt, 24, eos=eos)
        assert [*request.output.tolist(), eos] == expected
        assert request.finish is Finish.EOS


@pytest.mark.parametrize("learnt_eos", [True, False])
def test_records_are_judged_by_what_was_said(learnt_eos: bool) -> None:
    """Tokens after a drafted EOS count for nobody; a draft that went on where the model says EOS was refused there."""
    reference = ANSWER.copy()
    reference[5] = EOS
    with open_tiers() as tiers:
        learn(tiers, reference if learnt_eos else ANSWER)
        _, request = end(tiers, reference, SamplingParams(), 8)
        rows = np.concatenate([rows for _, rows in tiers.dram.scan()])
    assert request.output.tolist() == ANSWER[:5].tolist()
    assert rows[:, ACCEPTED].sum() == 5
    assert rows[:, DRAFTED].sum() == (5 if learnt_eos else 6)
