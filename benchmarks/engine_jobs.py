"""What `benchmarks.engines` and its engine processes say to each other, and the loop that keeps requests in flight.

One JSON line on standard input says what the process is to be, then one line a job; each is answered by one line. Only
the standard library is imported, because vLLM's process runs in another Python.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """What an engine process is told once. `model` is a folder of safetensors, `gguf` the same weights for llama.cpp.

    `mode`: the engine's own way of drafting. `max_requests` and `kv_bytes` bound what is in flight and its KV.
    `batches`: the next requests start only when all before have ended, instead of each when another ends.
    """

    model: str
    gguf: str | None
    dtype: str
    mode: str
    max_requests: int
    kv_bytes: int
    max_context_tokens: int
    batches: bool


@dataclass(frozen=True, slots=True)
class Job:
    """Answer the first `count` prompts of a file, `passes` times over, `concurrency` in flight.

    `prompts`: a JSON file, a list of lists of token ids. No KV of an earlier job is reused; `fresh`: nor is any text of
    an earlier job drafted from. Without it, a job finds what the ones before it taught.
    """

    prompts: str
    count: int
    concurrency: int
    output_tokens: int
    passes: int
    fresh: bool

    def token_ids(self) -> list[list[int]]:
        """Return the prompts."""
        prompts: list[list[int]] = json.loads(Path(self.prompts).read_text())
        return prompts[: self.count]


@dataclass(frozen=True, slots=True)
class Pass:
    """One way through all prompts. What an engine does not say is None."""

    seconds: float
    tokens: int
    accept_length: float | None = None
    reused_tokens: int | None = None
    p99_ttft_s: float | None = None

    @property
    def tok_per_s(self) -> float:
        """Output tokens per second, prefill included."""
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Answer:
    """What a process says of a job. `rss_bytes`: the most memory it has held so far."""

    passes: list[Pass]
    rss_bytes: int

    @classmethod
    def parse(cls, line: str) -> Answer:
        """Read an answer's JSON line."""
        fields = json.loads(line)
        return cls([Pass(**one) for one in fields["passes"]], fields["rss_bytes"])


class StepEngine(Protocol):
    """An engine that is stepped: flashnest and vLLM."""

    def add(self, prompt: Sequence[int], output_tokens: int) -> None:
        """Queue a request."""

    def step(self) -> tuple[int, int]:
        """Run one step; returns how many requests ended and how many tokens they or all said in it."""


def keep_in_flight(engine: StepEngine, job: Job, prompts: Sequence[Sequence[int]], *, batches: bool) -> Pass:
    """Answer all prompts with `job.concurrency` in flight; returns the seconds and tokens."""
    waiting: Iterator[Sequence[int]] = iter(prompts)
    flying = tokens = 0
    started_s = time.perf_counter()
    while True:
        if not (batches and flying):
            while flying < job.concurrency and (prompt := next(waiting, None)) is not None:
                engine.add(prompt, job.output_tokens)
                flying += 1
        if not flying:
            return Pass(time.perf_counter() - started_s, tokens)
        ended, said = engine.step()
        flying -= ended
        tokens += said


def answer_jobs(start: Callable[[EngineSetup], Callable[[Job], list[Pass]]]) -> None:
    """Be an engine process: start what the first line says, answer each further line until input ends.

    Whatever the engine prints goes to standard error; the answers have the former standard output to themselves.
    """
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(2, 1)
        serve = start(EngineSetup(**json.loads(sys.stdin.readline())))
        _reply(replies, {"ready": True})
        for line in sys.stdin:
            passes = serve(Job(**json.loads(line)))
            rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            _reply(replies, asdict(Answer(passes, rss_bytes)))


def _reply(replies: Any, fields: dict[str, Any]) -> None:
    print(json.dumps(fields), file=replies, flush=True)
