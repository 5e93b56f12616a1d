"""Prompts whose fragments repeat at a given share, and prompts taken as they stand from a file. Text only.

A prompt is a few fragments of real text (five of 48 words) and an instruction that makes a model summarise and quote.
A share of the fragments comes from a hot set (of twelve), and the repeats stand first: so a repeated share is also a
repeated prefix for some prompts (KV reuse) and a repeated span for all (drafts). Everything is drawn from one seed. The
share that came out is measured, never assumed. This module never tokenizes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Final

from flashnest.errors import WorkloadError
from flashnest.workload.text import Corpus, split_sentences

INSTRUCTION: Final = "Summarize the text above in one sentence, then repeat its last two sentences word for word."
FRAGMENT_WORDS: Final = 48
"""Words in a fragment unless the caller says otherwise: about 64 tokens, two 32-token chunks."""
MAX_SPAN_WORDS: Final = 40
"""A longer sentence is cut here, so that a short answer still alternates between quote and fresh text."""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """One request as text. `reference_text` is what an emulated model answers; real weights ignore it."""

    text: str
    reference_text: str
    namespace: str


@dataclass(frozen=True, slots=True)
class Workload:
    """The prompts of a run and what was measured of them.

    `repeat_share` is what was asked for (None for prompts taken as they stand); `measured_repeat_share` is the share of
    fragments that an earlier prompt held; `measured_prefix_share` is the share of words that continue a prefix which an
    earlier prompt of the same namespace began with: an upper bound of what KV reuse can save.
    `measured_echo_share` is the share of reference words that are quoted from their own prompt.
    """

    prompts: tuple[TextPrompt, ...]
    source: str
    repeat_share: float | None
    measured_repeat_share: float
    measured_prefix_share: float
    measured_echo_share: float


def repeat_prompts(
    corpus: Corpus,
    *,
    count: int,
    repeat_share: float,
    output_tokens: int,
    seed: int = 7,
    echo_share: float = 0.5,
    namespaces: Sequence[str] = ("default",),
    fragments: int = 5,
    fragment_words: int = FRAGMENT_WORDS,
    hot_fragments: int = 12,
    instruction: str = INSTRUCTION,
) -> Workload:
    """Return `count` prompts of which `repeat_share` (0..1) of the fragments come from the hot set.

    `output_tokens` and `echo_share` shape the reference texts: at least that many words (so at least that many tokens),
    that share of them quoted from the prompt. Namespaces are dealt round-robin. Where the corpus runs out of fresh
    fragments they are used again, and the measured share says so. Raises WorkloadError where an argument is out of
    range or the corpus is too short for even one prompt besides the hot set.
    """
    _check(count, output_tokens, namespaces, repeat_share=repeat_share, echo_share=echo_share)
    rng = _rng(f"{seed} {repeat_share}")
    hot, fresh = _hot_and_fresh(corpus, _rng(f"{seed}"), fragments, fragment_words, hot_fragments)
    picks = [_pick(i, fragments, repeat_share, rng, hot, fresh) for i in range(count)]
    texts = ["\n".join(parts) + "\n\n" + instruction for parts in picks]
    return _workload(corpus, texts, picks, repeat_share, output_tokens, echo_share, namespaces, rng)


def words_needed(
    count: int, *, fragments: int = 5, fragment_words: int = FRAGMENT_WORDS, hot_fragments: int = 12
) -> int:
    """Return the words of text that `count` prompts without any repeat take, and a fifth more for cut-off ends."""
    return (count * fragments + hot_fragments) * fragment_words * 6 // 5


def given_prompts(
    corpus: Corpus,
    *,
    count: int,
    output_tokens: int,
    seed: int = 7,
    echo_share: float = 0.5,
    namespaces: Sequence[str] = ("default",),
) -> Workload:
    """Return `count` prompts that are the corpus's documents, in order and from the start again where they run out."""
    _check(count, output_tokens, namespaces, echo_share=echo_share)
    texts = list(islice(cycle(corpus.documents), count))
    parts = [Corpus("", (text,)).fragments(FRAGMENT_WORDS) or [text] for text in texts]
    return _workload(corpus, texts, parts, None, output_tokens, echo_share, namespaces, _rng(f"{seed}"))


def _check(count: int, output_tokens: int, namespaces: Sequence[str], **shares: float) -> None:
    for name, share in shares.items():
        if not 0.0 <= share <= 1.0:
            raise WorkloadError(f"{name} is {share}", why="a share lies between 0 and 1", fix=f"set {name}=0.5")
    if count < 1 or output_tokens < 1 or not namespaces:
        raise WorkloadError(
            "the workload has no prompt to run",
            why=f"{count} prompts, {output_tokens} output tokens, {len(namespaces)} namespaces: each must be above 0",
            fix="raise the one that is 0",
        )


def _rng(seed: str) -> random.Random:
    return random.Random(seed)  # noqa: S311 - a workload must come out the same each time; nothing here is secret


def _hot_and_fresh(
    corpus: Corpus, rng: random.Random, per_prompt: int, words: int, hot: int
) -> tuple[list[str], Iterator[str]]:
    fragments = corpus.fragments(words)
    needed = hot + per_prompt
    if min(per_prompt, words, hot) < 1 or len(fragments) < needed:
        raise WorkloadError(
            f"{corpus.source} is too short for this workload",
            why=f"it gives {len(fragments)} distinct fragments of {words} words, at least {needed} are needed",
            fix=f"give at least {needed * words} words, or leave the file out and use the built-in text",
        )
    rng.shuffle(fragments)
    return fragments[:hot], cycle(fragments[hot:])


def _pick(index: int, count: int, share: float, rng: random.Random, hot: list[str], fresh: Iterator[str]) -> list[str]:
    """Return one prompt's fragments, the hot ones first and in ring order from `index`.

    So prompts a ring apart share a prefix. At most all hot fragments are taken once: a prompt never repeats itself.
    """
    repeats = min(sum(rng.random() < share for _ in range(count)), len(hot))
    picks = [hot[(index + j) % len(hot)] for j in range(repeats)]
    return picks + list(islice(fresh, count - repeats))


def _workload(
    corpus: Corpus,
    texts: list[str],
    fragments: list[list[str]],
    repeat_share: float | None,
    output_tokens: int,
    echo_share: float,
    namespaces: Sequence[str],
    rng: random.Random,
) -> Workload:
    sentences = [s for s in corpus.sentences() if len(s.split()) > 3] or list(corpus.documents)
    rng.shuffle(sentences)
    fresh = cycle(sentences)
    prompts: list[TextPrompt] = []
    quoted = total = 0
    for i, (text, parts) in enumerate(zip(texts, fragments, strict=True)):
        reference, quoted_words, words = _reference(parts, output_tokens, echo_share, fresh, rng)
        prompts.append(TextPrompt(text, reference, namespaces[i % len(namespaces)]))
        quoted += quoted_words
        total += words
    return Workload(
        prompts=tuple(prompts),
        source=corpus.source,
        repeat_share=repeat_share,
        measured_repeat_share=_repeat_share(fragments),
        measured_prefix_share=_prefix_share(prompts),
        measured_echo_share=quoted / total,
    )


def _reference(
    parts: Sequence[str], words_wanted: int, echo_share: float, fresh: Iterator[str], rng: random.Random
) -> tuple[str, int, int]:
    """Return a continuation in whole spans, its quoted words and all its words.

    The next span is a quote while the quoted share lags behind `echo_share`: after every span the share is off by
    less than one span, so also a cut reference keeps it.
    """
    quotable = [span for part in parts for span in split_sentences(part)]
    spans: list[str] = []
    quoted = total = 0
    while total < words_wanted:
        quote = quoted < echo_share * (total + 1)
        span = (rng.choice(quotable) if quote else next(fresh)).split()[:MAX_SPAN_WORDS]
        spans.append(" ".join(span))
        total += len(span)
        quoted += len(span) * quote
    return " " + " ".join(spans), quoted, total


def _repeat_share(fragments: list[list[str]]) -> float:
    """Return the share of fragments that an earlier prompt held."""
    seen: set[str] = set()
    repeats = 0
    for parts in fragments:
        repeats += sum(part in seen for part in parts)
        seen.update(parts)
    return repeats / sum(map(len, fragments))


def _prefix_share(prompts: list[TextPrompt]) -> float:
    """Return the share of words that lie in a prefix which an earlier prompt of the namespace has."""
    seen: set[int] = set()
    shared = total = 0
    for prompt in prompts:
        prefix = hash(prompt.namespace)
        for word in prompt.text.split():
            prefix = hash((prefix, word))
            shared += prefix in seen
            seen.add(prefix)
            total += 1
    return shared / total
