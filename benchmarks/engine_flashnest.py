"""The process that runs flashnest for `benchmarks.engines`: what `python -m flashnest` would build, asked directly.

A fresh job means closing everything and building it anew, weights included, as another start of the program would.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.engine_jobs import WARM_UP_TOKENS, EngineSetup, Job, Pass, answer_jobs, keep_in_flight
from flashnest.app.build import App, build
from flashnest.cli.arguments import parse_command
from flashnest.cli.compose import Composer
from flashnest.cli.run import run_from
from flashnest.config import RunConfig
from flashnest.runtime.request import Prompt, Request, SamplingParams

NO_DRAFTS: Final = "none"
WARM_UP_NAMESPACE: Final = "warm-up"
"""What the warm-up teaches is not found by the prompts that are measured."""
WARM_UP_PROMPTS: Final = 4
"""Answered twice, together, before a process's first job: every kernel is compiled then, drafts are verified."""


def run_of(setup: EngineSetup) -> RunConfig:
    """Return the run as the command line would compose it: hot/cold tiering on this machine, defaults otherwise."""
    overrides = [
        "+platform=local",
        "+tiering=hotcold",
        "workload=smoke",
        f"model.source={setup.model}",
        f"model.dtype={setup.dtype}",
        f"decode.max_requests={setup.max_requests}",
        f"decode.kv_pool={setup.kv_bytes}",
        f"decode.drafts.enabled={str(setup.mode != NO_DRAFTS).lower()}",
        "progress=false",
    ]
    composer = Composer(parse_command(overrides))
    return run_from(composer.compose(composer.complete()))


class FlashnestSteps:
    """The built app's engine as the shared loop steps it, and what its steps said."""

    def __init__(self, app: App, namespace: str = "default") -> None:
        self._app, self._namespace = app, namespace
        self.requests: list[Request] = []
        self.accepted = self.drafts = 0

    def add(self, prompt: Sequence[int], output_tokens: int) -> None:
        """Queue a request for exactly `output_tokens` greedy tokens."""
        sampling = SamplingParams(max_tokens=output_tokens, ignore_eos=True)
        tokens = np.array(prompt, np.int32)
        self.requests.append(self._app.engine.submit(Prompt(tokens, namespace=self._namespace, sampling=sampling)))

    def step(self) -> tuple[int, int]:
        """Run one step; returns the requests that ended and the tokens that all kept."""
        event = self._app.engine.step()
        drafts, _, accepted = event.drafts.sum(axis=0).tolist()
        self.drafts += drafts
        self.accepted += accepted
        return len(event.finished), event.committed


class FlashnestServer:
    """Answers jobs over one app, rebuilt where a job is fresh."""

    def __init__(self, setup: EngineSetup) -> None:
        self._setup, self._run = setup, run_of(setup)
        self._folder = tempfile.TemporaryDirectory(prefix="flashnest-bench-")
        self._builds = 0
        self._app: App | None = None

    def serve(self, job: Job) -> list[Pass]:
        """Answer one job, after a warm-up request in a namespace of its own."""
        app = self._rebuilt() if job.fresh or self._app is None else self._app
        prompts = job.token_ids()
        app.pool.release(app.pool.allocate(app.pool.available) or [])  # whoever takes all blocks evicts what they held
        warm_up = FlashnestSteps(app, WARM_UP_NAMESPACE)
        if self._builds == 1:
            keep_in_flight(
                warm_up, replace(job, concurrency=WARM_UP_PROMPTS), 2 * prompts[:WARM_UP_PROMPTS], batches=True
            )
        keep_in_flight(warm_up, job, [range(WARM_UP_TOKENS)], batches=False)
        return [self._pass(app, job, prompts) for _ in range(job.passes)]

    def _rebuilt(self) -> App:
        if self._app is not None:
            self._app.close()
        self._builds += 1
        folder = Path(self._folder.name) / str(self._builds)
        folder.mkdir()
        self._app = build(self._run, folder)
        return self._app

    def _pass(self, app: App, job: Job, prompts: list[list[int]]) -> Pass:
        steps = FlashnestSteps(app)
        done = keep_in_flight(steps, job, prompts, batches=self._setup.batches)
        waits_s = [r.token_times_s[0] - r.arrived_s for r in steps.requests]
        return Pass(
            done.seconds,
            done.tokens,
            accept_length=1 + steps.accepted / steps.drafts if steps.drafts else None,
            reused_tokens=sum(r.reused_tokens for r in steps.requests),
            p99_ttft_s=float(np.percentile(waits_s, 99)),
        )


def start(setup: EngineSetup) -> Callable[[Job], list[Pass]]:
    """Return what answers a job."""
    return FlashnestServer(setup).serve


if __name__ == "__main__":
    answer_jobs(start)
