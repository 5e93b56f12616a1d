"""Write JSON lines whose answers are text with a given share of repeated fragments: a trace for `flash-nest simulate`.

    python docs/policy-tools/repeats.py 0.5 200 > repeats.jsonl

A fragment is 115 words, about 160 tokens: the middle of the 64 to 256 tokens of research/tiering.md 0. A prompt is only
the first eight words, so that every position behind them is a question, as it was measured there.
"""

from __future__ import annotations

import json
import sys

from flashnest.workload.prompts import repeat_prompts, words_needed
from flashnest.workload.text import load_corpus

FRAGMENT_WORDS = 115
PROMPT_WORDS = 8
CORPUS_PROMPTS = 400
"""Prompts that the built-in text is loaded for, so that fewer prompts are taken from the same text."""


def lines(share: float, count: int, seed: int = 7) -> list[str]:
    """Return `count` lines of `{"prompt": ..., "answer": ...}` with `share` (0..1) of the fragments repeated."""
    corpus = load_corpus(min_words=words_needed(CORPUS_PROMPTS, fragment_words=FRAGMENT_WORDS))
    made = repeat_prompts(
        corpus,
        count=count,
        repeat_share=share,
        output_tokens=1,
        fragment_words=FRAGMENT_WORDS,
        instruction="",
        seed=seed,
    )
    return [_line(prompt.text.split()) for prompt in made.prompts]


def _line(words: list[str]) -> str:
    return json.dumps({"prompt": " ".join(words[:PROMPT_WORDS]), "answer": " " + " ".join(words[PROMPT_WORDS:])})


if __name__ == "__main__":
    print("\n".join(lines(float(sys.argv[1]), int(sys.argv[2]))))
