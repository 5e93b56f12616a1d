"""The process that runs Hugging Face `generate` for `benchmarks.engines`, plain or with prompt lookup.

It keeps nothing between prompts, so a second pass says nothing new: one pass is made, whatever the job asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.engine_jobs import EngineSetup, Job, Pass, answer_jobs
from flashnest.record import I64Array

LOOKUP_TOKENS = 8
LOOKUP_MODE = "pld"


def left_padded(prompts: list[list[int]], pad: int) -> tuple[I64Array, I64Array]:
    """Return token ids and attention mask, int64 (prompts, longest)."""
    width = max(len(p) for p in prompts)
    ids = np.full((len(prompts), width), pad, np.int64)
    mask = np.zeros((len(prompts), width), np.int64)
    for row, tokens in enumerate(prompts):
        ids[row, width - len(tokens) :] = tokens
        mask[row, width - len(tokens) :] = 1
    return ids, mask


def start(setup: EngineSetup) -> Callable[[Job], list[Pass]]:
    """Load the module and return what answers a job: `concurrency` prompts at a time as one left-padded batch."""
    import torch
    from transformers import AutoModelForCausalLM

    module: Any = AutoModelForCausalLM.from_pretrained(setup.model, dtype=getattr(torch, setup.dtype)).eval()
    pad = module.config.pad_token_id or 0
    options: dict[str, Any] = {"prompt_lookup_num_tokens": LOOKUP_TOKENS} if setup.mode == LOOKUP_MODE else {}

    def generate(prompts: list[list[int]], output_tokens: int) -> int:
        ids, mask = left_padded(prompts, pad)
        out = module.generate(
            input_ids=torch.from_numpy(ids),
            attention_mask=torch.from_numpy(mask),
            max_new_tokens=output_tokens,
            min_new_tokens=output_tokens,
            do_sample=False,
            **options,
        )
        return int((out.shape[1] - ids.shape[1]) * out.shape[0])

    def serve(job: Job) -> list[Pass]:
        prompts = job.token_ids()
        with torch.inference_mode():
            generate(prompts[:1], job.output_tokens)
            started_s = time.perf_counter()
            starts = range(0, len(prompts), job.concurrency)
            tokens = sum(generate(prompts[at : at + job.concurrency], job.output_tokens) for at in starts)
            return [Pass(time.perf_counter() - started_s, tokens)]

    return serve


if __name__ == "__main__":
    answer_jobs(start)
