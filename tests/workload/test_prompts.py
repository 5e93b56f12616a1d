"""Repeat shares come out as asked, references quote as asked, and a seed fixes everything."""

from __future__ import annotations

import pytest

from flashnest.errors import WorkloadError
from flashnest.workload.prompts import INSTRUCTION, Workload, given_prompts, repeat_prompts, words_needed
from flashnest.workload.text import Corpus, load_corpus, split_sentences


def _corpus(fragments: int = 800) -> Corpus:
    """Return text whose every sentence of eight words is unique."""
    sentences = (" ".join(f"w{i}x{j}" for j in range(8)) + "." for i in range(6 * fragments))
    return Corpus("made up", (" ".join(sentences),))


def _repeat(share: float, count: int = 100, seed: int = 7, echo_share: float = 0.5) -> Workload:
    return repeat_prompts(
        _corpus(), count=count, repeat_share=share, output_tokens=64, seed=seed, echo_share=echo_share
    )


def test_prompt_has_its_fragments_then_the_instruction() -> None:
    text = _repeat(0.5).prompts[3].text
    body, _, instruction = text.partition("\n\n")
    assert instruction == INSTRUCTION
    assert [len(line.split()) for line in body.splitlines()] == [48] * 5


def test_no_share_means_no_repeat_at_all() -> None:
    workload = _repeat(0.0)
    assert workload.measured_repeat_share == 0.0
    assert workload.measured_prefix_share == 0.0


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_measured_share_is_near_the_asked_one_and_is_a_prefix_for_some(share: float) -> None:
    workload = _repeat(share, count=200)
    assert workload.repeat_share == share
    assert workload.measured_repeat_share == pytest.approx(share, abs=0.06)
    assert 0.3 * share < workload.measured_prefix_share <= workload.measured_repeat_share + 0.1


def test_all_repeats_draw_from_the_hot_set_only() -> None:
    workload = _repeat(1.0, count=48)
    lines = {line for p in workload.prompts for line in p.text.partition("\n\n")[0].splitlines()}
    assert len(lines) == 12


def test_prompt_never_repeats_within_itself() -> None:
    workload = repeat_prompts(_corpus(), count=20, repeat_share=1.0, output_tokens=8, fragments=5, hot_fragments=3)
    for prompt in workload.prompts:
        lines = prompt.text.partition("\n\n")[0].splitlines()
        assert len(set(lines)) == len(lines) == 5


def test_same_seed_same_prompts_another_seed_others() -> None:
    assert _repeat(0.5, seed=1) == _repeat(0.5, seed=1)
    assert _repeat(0.5, seed=1).prompts != _repeat(0.5, seed=2).prompts


@pytest.mark.parametrize("echo_share", [0.0, 0.25, 0.5, 1.0])
def test_reference_is_long_enough_and_quotes_the_asked_share(echo_share: float) -> None:
    workload = _repeat(0.5, echo_share=echo_share)
    assert workload.measured_echo_share == pytest.approx(echo_share, abs=0.05)
    for prompt in workload.prompts:
        assert len(prompt.reference_text.split()) >= 64
        quoted = [s for s in split_sentences(prompt.reference_text) if s in prompt.text]
        quoted_words = sum(len(s.split()) for s in quoted)
        assert quoted_words / len(prompt.reference_text.split()) == pytest.approx(echo_share, abs=0.15)


def test_fresh_reference_text_is_not_said_twice() -> None:
    workload = _repeat(0.0, count=40, echo_share=0.0)
    spans = [s for p in workload.prompts for s in split_sentences(p.reference_text)]
    assert len(set(spans)) == len(spans)


def test_namespaces_are_dealt_in_turn_and_share_no_prefix() -> None:
    one = repeat_prompts(_corpus(), count=24, repeat_share=1.0, output_tokens=8, namespaces=("a",))
    two = repeat_prompts(_corpus(), count=24, repeat_share=1.0, output_tokens=8, namespaces=("a", "b", "c", "d", "e"))
    assert [p.namespace for p in two.prompts[:6]] == ["a", "b", "c", "d", "e", "a"]
    assert two.measured_prefix_share < one.measured_prefix_share


def test_corpus_that_runs_out_is_used_again_and_says_so() -> None:
    workload = repeat_prompts(_corpus(fragments=40), count=50, repeat_share=0.0, output_tokens=8)
    assert workload.measured_repeat_share > 0.5


def test_words_needed_of_builtin_text_make_prompts_without_a_repeat() -> None:
    corpus = load_corpus(min_words=words_needed(30))
    workload = repeat_prompts(corpus, count=30, repeat_share=0.0, output_tokens=16)
    assert workload.measured_repeat_share == 0.0


def test_too_short_text_says_how_much_is_needed() -> None:
    with pytest.raises(WorkloadError) as caught:
        repeat_prompts(Corpus("mine.txt", ("too short",)), count=1, repeat_share=0.5, output_tokens=8)
    assert "mine.txt is too short" in caught.value.what
    assert "816 words" in caught.value.fix


@pytest.mark.parametrize(
    ("count", "share", "output_tokens", "namespaces", "named"),
    [
        (0, 0.5, 8, ("a",), "0 prompts"),
        (1, 0.5, 0, ("a",), "0 output tokens"),
        (1, 0.5, 8, (), "0 namespaces"),
        (1, 1.5, 8, ("a",), "repeat_share is 1.5"),
    ],
)
def test_bad_argument_is_a_workload_error(
    count: int, share: float, output_tokens: int, namespaces: tuple[str, ...], named: str
) -> None:
    with pytest.raises(WorkloadError, match=named):
        repeat_prompts(_corpus(40), count=count, repeat_share=share, output_tokens=output_tokens, namespaces=namespaces)


def test_given_prompts_stand_as_they_are_and_begin_again() -> None:
    workload = given_prompts(Corpus("mine.jsonl", ("Say one thing.", "Say two things.")), count=3, output_tokens=8)
    assert [p.text for p in workload.prompts] == ["Say one thing.", "Say two things.", "Say one thing."]
    assert workload.repeat_share is None
    assert workload.measured_repeat_share == pytest.approx(1 / 3)
