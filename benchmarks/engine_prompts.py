"""The prompts of `benchmarks.engines` as token ids: `repeat_XX` made by `flashnest.workload`, or read from a folder."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from flashnest.errors import WorkloadError
from flashnest.workload.prompts import repeat_prompts, words_needed
from flashnest.workload.text import load_corpus


def write_prompts(file: Path, workload: str, model: str, count: int, args: argparse.Namespace) -> None:
    """Write a JSON list of lists of token ids, each one prompt as the model's chat template has it.

    `model` is a folder or hub id. Of `args`: prompts (a folder or None), text, seed, output_tokens. Raises
    WorkloadError where the prompts cannot be had.
    """
    from flashnest.runtime.weights import load_tokenizer

    tokenizer = load_tokenizer(model)
    texts = _made(workload, count, args) if args.prompts is None else _read(args.prompts / f"{workload}.jsonl")
    chats = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True)
        for text in texts[:count]
    ]
    file.write_text(json.dumps([tokenizer.encode(chat, add_special_tokens=False) for chat in chats]))


def _made(workload: str, count: int, args: argparse.Namespace) -> list[str]:
    share = re.fullmatch(r"repeat_(\d{1,2}|100)", workload)
    if share is None:
        raise WorkloadError(
            f"no workload {workload!r}",
            why="prompts are made for a share of repeated fragments in percent",
            fix="say repeat_00, repeat_50 or repeat_80, or give --prompts a folder that has it",
        )
    corpus = load_corpus(args.text, min_words=words_needed(count))
    made = repeat_prompts(
        corpus, count=count, repeat_share=int(share[1]) / 100, output_tokens=args.output_tokens, seed=args.seed
    )
    return [prompt.text for prompt in made.prompts]


def _read(path: Path) -> list[str]:
    try:
        lines = path.read_text().splitlines()
        return [json.loads(line)["prompt"] for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WorkloadError(
            f"cannot read prompts from {path}",
            why=f"{type(error).__name__}: {error}",
            fix='give --prompts a folder of WORKLOAD.jsonl files whose lines are {"prompt": "..."}',
        ) from error
