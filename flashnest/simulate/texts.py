"""Traces of text: prompts with answers, conversations, or a plain text that is read on as its own answer.

Text becomes tokens here and accesses in `decoding`. Reads no file but a tokenizer's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from flashnest.errors import WorkloadError
from flashnest.record import DEFAULT_CHAIN_WORDS, I32Array, record_bytes
from flashnest.simulate.decoding import STEP_MS, Serving, Spoken, decode
from flashnest.simulate.tokenizing import Encode, open_tokenizer
from flashnest.simulate.trace import Trace
from flashnest.workload.prompts import TextPrompt, repeat_prompts, words_needed
from flashnest.workload.text import load_corpus

PASSAGE_TOKENS: Final = 256
"""Prompt tokens of a plain text's passages."""

DEFAULT_LENGTHS: Final = (8, 16, 32)
DEFAULT_CONCURRENCY: Final = 32
DEFAULT_OUTPUT_TOKENS: Final = 128


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Turns of one conversation: each one's prompt holds all that was said before. As many answers as prompts."""

    prompts: tuple[str, ...]
    answers: tuple[str, ...]
    namespace: str = "default"


def text_trace(
    prompts: Sequence[TextPrompt],
    *,
    lengths: tuple[int, ...] = DEFAULT_LENGTHS,
    concurrency: int = DEFAULT_CONCURRENCY,
    output_tokens: int = DEFAULT_OUTPUT_TOKENS,
    prefill_tokens: int = 512,
    step_ms: float = STEP_MS,
    chain_tokens: int = DEFAULT_CHAIN_WORDS,
    chunks: bool = True,
    nbytes: int = record_bytes(),
    tokenizer: Path | str | None = None,
    name: str = "text",
    source: str = "prompts",
) -> Trace:
    """Return what serving the prompts would ask and teach; each answer is the first `output_tokens` of its reference.

    See `decoding` for what a step is; `chunks` False leaves the KV chunks out; `tokenizer`: a `tokenizer.json`, else
    pieces. Raises WorkloadError where there is no prompt, an option is out of range or the tokenizer cannot be read.
    """
    serving = Serving(lengths, concurrency, prefill_tokens, step_ms, chain_tokens, chunks, nbytes)
    serving.check()
    encode, how = open_tokenizer(tokenizer)
    dialogues = [Dialogue((p.text,), (p.reference_text,), p.namespace) for p in prompts]
    spoken = spoken_dialogues(dialogues, encode, output_tokens)
    return decode(spoken, serving, name=name, source=f"{source}, {len(spoken)} requests, tokens by {how}")


def generated_trace(
    repeat_share: float,
    *,
    requests: int = 256,
    output_tokens: int = DEFAULT_OUTPUT_TOKENS,
    lengths: tuple[int, ...] = DEFAULT_LENGTHS,
    concurrency: int = DEFAULT_CONCURRENCY,
    chunks: bool = True,
    hot_fragments: int = 12,
    seed: int = 7,
    text: Path | str | None = None,
) -> Trace:
    """Return the trace of prompts that are made here: `repeat_share` (0..1) of their fragments come from a hot set.

    The built-in text, or that of the file `text`; see `workload.prompts.repeat_prompts`. Raises WorkloadError.
    """
    fresh = math.ceil(requests * min(1.0, 1.1 - repeat_share))  # prompts' worth of text that is not repeated
    corpus = load_corpus(text, min_words=words_needed(max(1, fresh), hot_fragments=hot_fragments))
    workload = repeat_prompts(
        corpus,
        count=requests,
        repeat_share=repeat_share,
        output_tokens=output_tokens,
        hot_fragments=hot_fragments,
        seed=seed,
    )
    return text_trace(
        workload.prompts,
        lengths=lengths,
        concurrency=concurrency,
        output_tokens=output_tokens,
        chunks=chunks,
        name=f"repeat_{100 * repeat_share:.0f}",
        source=f"{workload.source}, {100 * workload.measured_repeat_share:.0f} % of the fragments repeated",
    )


def spoken_dialogues(
    dialogues: Sequence[Dialogue],
    encode: Encode,
    output_tokens: int,
    progress: Callable[[float], None] | None = None,
) -> list[Spoken]:
    """Return the requests of the dialogues, turn by turn. Raises WorkloadError where nothing is asked or answered."""
    if not dialogues or output_tokens < 1:
        raise WorkloadError(
            "there is nothing to make a trace of",
            why=f"{len(dialogues)} prompts, {output_tokens} output tokens: both must be above 0",
            fix="give at least one prompt and output_tokens=1",
        )
    spoken: list[Spoken] = []
    for i, dialogue in enumerate(dialogues):
        _speak(dialogue, encode, output_tokens, spoken)
        if progress is not None and i % 64 == 0:
            progress(i / len(dialogues))
    return spoken


def _speak(dialogue: Dialogue, encode: Encode, output_tokens: int, spoken: list[Spoken]) -> None:
    said = np.zeros(0, np.int32)
    for turn, (prompt, answer) in enumerate(zip(dialogue.prompts, dialogue.answers, strict=True)):
        said = np.concatenate([said, encode(prompt)])
        asked = len(said)
        said = np.concatenate([said, encode(answer)[:output_tokens]])
        if asked == 0 or asked == len(said):
            raise WorkloadError(
                f"the tokenizer makes no token of a prompt or an answer: {(answer if asked else prompt)[:40]!r}",
                fix="leave it out",
            )
        spoken.append(Spoken(said, asked, dialogue.namespace, follows=turn > 0))


def spoken_passages(tokens: I32Array, output_tokens: int) -> list[Spoken]:
    """Cut tokens (n,) into passages: `PASSAGE_TOKENS` are a prompt, and what follows in the text is its answer."""
    size = PASSAGE_TOKENS + output_tokens
    spoken = [
        Spoken(tokens[at : at + size], min(PASSAGE_TOKENS, len(tokens) - at - 1), "default")
        for at in range(0, len(tokens) - 1, size)
    ]
    if not spoken or output_tokens < 1:
        raise WorkloadError(
            "there is nothing to make a trace of",
            why=f"{len(tokens)} tokens of text, {output_tokens} output tokens: at least 2 and 1 are needed",
            fix="give a longer text",
        )
    return spoken
