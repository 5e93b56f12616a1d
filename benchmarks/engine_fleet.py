"""The engines that can be measured, and their processes: started together, asked in turn, ended together.

A process that dies is left out of the rest of the run, with its last words; the others go on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from benchmarks.engine_jobs import Answer, EngineSetup, Job

LAST_WORDS: Final = 2000
"""Bytes of a dead process's standard error that are shown."""
ROOT: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Kind:
    """How an engine is started: the module of its process, its mode, and whether it takes one prompt at a time."""

    module: str
    mode: str
    single: bool = False


KINDS: Final = {
    "flashnest": Kind("engine_flashnest", "drafts"),
    "flashnest-nodraft": Kind("engine_flashnest", "none"),
    "hf": Kind("engine_hf", "plain"),
    "hf-pld": Kind("engine_hf", "pld", single=True),
    "llamacpp": Kind("engine_llamacpp", "none"),
    "llamacpp-ngram": Kind("engine_llamacpp", "ngram-simple"),
    "vllm": Kind("engine_vllm", "suffix"),
    "vllm-ngram": Kind("engine_vllm", "ngram"),
    "vllm-plain": Kind("engine_vllm", "none"),
}


class Fleet:
    """The processes of a run. Use as a context manager: leaving it ends them."""

    def __init__(self, names: Sequence[str], setup: EngineSetup, pythons: Mapping[str, str | None], logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, subprocess.Popen[str]] = {}
        for name in names:
            kind = KINDS[name]
            self._running[name] = self._start(name, pythons.get(kind.module) or sys.executable)
            _send(self._running[name], asdict(replace(setup, mode=kind.mode)))
        for name in names:  # they load side by side
            self._heard(name)

    def ask(self, job: Job) -> Iterator[tuple[str, Answer]]:
        """Have each engine in turn do the job; those that take one prompt at a time do no others."""
        for name in tuple(self._running):
            if KINDS[name].single and job.concurrency > 1:
                continue
            _send(self._running[name], asdict(job))
            if (line := self._heard(name)) is not None:
                yield name, Answer.parse(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            _close(process)

    def _start(self, name: str, python: str) -> subprocess.Popen[str]:
        # An engine of another Python finds `benchmarks` by its path and its own packages where they are.
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with self._log(name).open("w") as log:
            return subprocess.Popen(
                [python, "-m", f"benchmarks.{KINDS[name].module}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                cwd=self._logs,
            )

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def _heard(self, name: str) -> str | None:
        """Return the next line that the engine says, or None where it has died."""
        process = self._running[name]
        if line := _pipe(process.stdout).readline():
            return line
        del self._running[name]
        _close(process)
        words = self._log(name).read_bytes()[-LAST_WORDS:].decode(errors="replace")
        print(f"{name} is left out, its process ended with {process.returncode}:\n{words}", file=sys.stderr)
        return None


def _send(process: subprocess.Popen[str], fields: dict[str, Any]) -> None:
    pipe = _pipe(process.stdin)
    try:
        print(json.dumps(fields), file=pipe, flush=True)
    except BrokenPipeError:
        return  # it has died: the missing answer tells


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def _close(process: subprocess.Popen[str]) -> None:
    process.wait()
    for pipe in (process.stdin, process.stdout):
        try:
            _pipe(pipe).close()
        except BrokenPipeError:
            continue  # what was buffered for a dead process
