"""128 requests of a thousand tokens in a pool that holds a third of them: all end, shared starts are computed once."""

from __future__ import annotations

from itertools import count

import numpy as np
from engine_setup import emulated_rig, open_tiers, text

from flashnest.record import CHUNK_TOKENS, I32Array
from flashnest.runtime.request import Prompt, SamplingParams
from flashnest.workload.prompts import repeat_prompts
from flashnest.workload.text import Corpus

REQUESTS = 128
ANSWER = text(48, 1)


def prompts() -> list[Prompt]:
    """Return `repeat_80` with fragments of 195 words, a token a word."""
    corpus = Corpus("numbers", tuple(" ".join(f"w{i}" for i in range(at, at + 1000)) for at in range(0, 200_000, 1000)))
    load = repeat_prompts(
        corpus, count=REQUESTS, repeat_share=0.8, output_tokens=48, fragments=5, fragment_words=195, hot_fragments=12
    )
    ids: dict[str, int] = {}
    numbers = count(3)
    sampling = SamplingParams(max_tokens=len(ANSWER), ignore_eos=True)
    made = []
    for prompt in load.prompts:
        words = [ids.setdefault(word, next(numbers)) % 997 + 3 for word in prompt.text.split()]
        made.append(Prompt(np.array(words, np.int32), reference=ANSWER, sampling=sampling))
    return made


def skippable_tokens(texts: list[I32Array]) -> int:
    """Return how many tokens lie in full chunks that an earlier prompt began with; the last token is never skipped."""
    seen: set[bytes] = set()
    skippable = 0
    for tokens in texts:
        ends = range(CHUNK_TOKENS, len(tokens), CHUNK_TOKENS)
        starts = [tokens[:end].tobytes() for end in ends]
        skippable += CHUNK_TOKENS * sum(start in seen for start in starts)
        seen.update(starts)
    return skippable


def test_a_full_house_ends_within_its_pool_and_computes_shared_starts_once() -> None:
    asked = prompts()
    blocks = REQUESTS * 33 // 3
    options = {"blocks": blocks, "max_requests": REQUESTS, "max_step_tokens": 2048, "max_draft_tokens": 0}
    with open_tiers() as tiers, emulated_rig(tiers, **options) as rig:
        requests = [rig.submit(prompt) for prompt in asked]
        most_running = 0
        while not rig.engine.idle:
            most_running = max(most_running, rig.step().running)
            assert rig.pool.stats().allocated <= blocks
        assert all(r.output.tolist() == ANSWER.tolist() for r in requests)
        assert most_running == REQUESTS
        skippable = skippable_tokens([p.tokens for p in asked])
        assert skippable > 0.5 * sum(len(p.tokens) for p in asked)
        assert sum(r.reused_tokens for r in requests) >= 0.6 * skippable
        starts_s = [r.token_times_s[0] for r in requests]
        assert max(starts_s) < max(
            r.token_times_s[-1] for r in requests[:64]
        )  # the last do not wait for all the others
