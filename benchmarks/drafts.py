"""Drafters beside each other on recorded token streams, without a model: what is accepted, what a step costs.

    python -m benchmarks.drafts --suffix-python /path/to/vllm/bin/python --json drafts.json

accept_length    tokens committed a step and request, the model's own included, on a first and a second pass
accepted_share   accepted tokens of those drafted
step_us          median us of a step: propose, learn and feedback for all rows
bytes_per_token  bytes kept for a token of prompts and answers seen
propose_us, learn_us, feedback_us   flashnest's step with 128 requests, the router's calls included
goodput          tokens a second under the governor, forwards taking `--forward-ms`; the reference is no drafts

Streams are greedy answers of SmolLM2-135M to prompts of the given repeat share, recorded once into `outputs/drafts`
(about 2 minutes a workload). Drafters: flashnest; own_text: the request's own text alone; dictionary: `dict` over all
texts; suffix: arctic-inference's tree as vLLM drives it, where `--suffix-python` names a Python that has it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.draft_flashnest import Flashnest, Texts
from benchmarks.draft_goodput import goodput
from benchmarks.draft_replay import Dictionary, Replayed, Stream, Tokens, read_streams, replay
from benchmarks.harness import Fact, Result, show, write_json
from benchmarks.token_streams import streams_file
from flashnest.runtime.drafts import DraftParts, Drafts
from flashnest.runtime.own_text import OwnText

WORKLOADS = ("repeat_00", "repeat_50", "repeat_80")
FORWARD_MS = "1:18,8:22,32:50,128:146,2048:2066"
"""SmolLM2-135M in bfloat16 on 2 cores, 2026-12-07: measured up to 32 packed tokens, 1 ms a token beyond."""
DRAFTERS = ("flashnest", "own_text", "dictionary", "suffix")
_DECODE_ROWS = 128


class OwnTextOnly:
    """The index of the request's own text alone."""

    def __init__(self, rows: int, width: int) -> None:
        self._texts, self._index = Texts(rows), OwnText(rows)
        self._drafts, self._parts = Drafts.allocate(rows, width), DraftParts.allocate(rows, 1)

    def start(self, row: int, prompt: Tokens) -> None:
        """See `Replayed`."""
        self._index.begin(row)
        self._texts.put(row, prompt)

    def propose(self, rows: Sequence[int]) -> list[Tokens]:
        """See `Replayed`."""
        texts, drafts, at = self._texts, self._drafts, np.array(rows, np.int64)
        drafts.clear(len(rows))
        self._index.read(texts.tokens, at, texts.lengths)
        self._index.offer(texts.tokens, at, texts.lengths, drafts, self._parts)
        return [drafts.tokens[i, : drafts.lengths[i]].copy() for i in range(len(rows))]

    def take(self, rows: Sequence[int], said: Sequence[Tokens], ended: Sequence[bool]) -> None:
        """See `Replayed`."""
        self._texts.add(rows, said)

    def history_bytes(self) -> int:
        """Return 0: nothing is kept of an ended request."""
        return 0


MAKERS: dict[str, Callable[[int, int], Replayed]] = {
    "flashnest": Flashnest,
    "own_text": OwnTextOnly,
    "dictionary": Dictionary,
}


def compared(workload: str, names: Sequence[str], file: Path, args: argparse.Namespace) -> list[Result]:
    """Replay one workload through every drafter at every draft length."""
    results = []
    for width in args.draft_tokens:
        done = {name: _replayed(name, file, width, args) for name in names}
        for name, figures in done.items():
            results += _rows(name, figures, done.get("suffix"), {"workload": workload, "draft_tokens": width})
    return results


def _replayed(name: str, file: Path, width: int, args: argparse.Namespace) -> dict[str, Any]:
    if name != "suffix":
        return replay(MAKERS[name](args.rows, width), read_streams(file), rows=args.rows, passes=2)
    command = [args.suffix_python, "-m", "benchmarks.suffix_replay", file, "--rows", args.rows]
    command += ["--draft-tokens", width, "--passes", 2, "--depth", args.depth]
    said = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout
    figures: dict[str, Any] = json.loads(said.splitlines()[-1])
    return figures


def _rows(
    name: str, figures: dict[str, Any], suffix: dict[str, Any] | None, parameters: dict[str, Fact]
) -> list[Result]:
    rows = []
    units = {"accept_length": "tokens", "accepted_share": "of 1", "step_us": "us"}
    for at, one in enumerate(figures["passes"]):
        for case, unit in units.items():
            theirs = None if suffix is None else suffix["passes"][at][case]
            facts = {"drafter": name, **parameters, "pass": at + 1}
            rows.append(Result(case, facts, one[case], unit, None if suffix is None else "suffix", theirs))
    rows.append(Result("bytes_per_token", {"drafter": name, **parameters}, figures["bytes_per_token"], "B"))
    return rows


def dealt(streams: Sequence[Stream], rows: int) -> list[Stream]:
    """Return the streams, over again until there are two for each row; with over 32 rows a text runs twice at once."""
    times = -(-2 * rows // len(streams))
    return list(streams) * max(1, times)


def show_passes(results: Sequence[Result]) -> None:
    """Print one line a drafter: first pass -> second pass."""
    cases = {"accept_length": ".2f", "accepted_share": ".2f", "step_us": ".0f", "bytes_per_token": ".0f"}
    lines: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for r in results:
        key = tuple(str(r.parameters[name]) for name in ("workload", "draft_tokens", "drafter"))
        lines.setdefault(key, {case: [] for case in cases})[r.case].append(format(r.value, cases[r.case]))
    table = Table(title="drafters on recorded streams, pass 1 -> pass 2", box=SIMPLE, padding=(0, 1))
    for name in ("repeat", "k", "drafter", "accept length", "accepted", "step us", "B/tok"):
        table.add_column(name, no_wrap=True)
    for key, figures in lines.items():
        table.add_row(key[0].removeprefix("repeat_"), *key[1:], *(" -> ".join(figures[case]) for case in cases))
    Console().print(table)


def step_costs(streams: Sequence[Stream], width: int) -> list[Result]:
    """Time a step's parts with 128 requests in flight; streams are dealt out again and again."""
    flashnest = Flashnest(_DECODE_ROWS, width)
    times: dict[str, list[float]] = {"propose_us": [], "feedback_us": [], "learn_us": []}
    rows = np.arange(_DECODE_ROWS, dtype=np.int64)
    dealt = [streams[row % len(streams)] for row in range(_DECODE_ROWS)]
    for row, stream in enumerate(dealt):
        flashnest.start(row, stream.prompt)
    for at in range(min(len(stream.answer) for stream in dealt) - 1):
        marks = [time.perf_counter_ns()]
        flashnest.ask(rows)
        marks.append(time.perf_counter_ns())
        flashnest.judge([stream.answer[at : at + 1] for stream in dealt])
        marks.append(time.perf_counter_ns())
        flashnest.texts.add(rows.tolist(), [stream.answer[at : at + 1] for stream in dealt])
        began = time.perf_counter_ns()
        flashnest.learn(rows, np.zeros(_DECODE_ROWS, np.bool_))
        spent = [marks[1] - marks[0], marks[2] - marks[1], time.perf_counter_ns() - began]
        for taken, ns in zip(times.values(), spent, strict=True):
            taken.append(ns / 1e3)
    facts: dict[str, Fact] = {"requests": _DECODE_ROWS, "draft_tokens": width}
    return [Result(case, facts, float(np.median(taken)), "us") for case, taken in times.items()]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default=",".join(WORKLOADS), help="repeat_XX, ...")
    parser.add_argument("--draft-tokens", default="8,16,24", help="longest drafts")
    parser.add_argument("--drafters", default=",".join(DRAFTERS))
    parser.add_argument("--rows", type=int, default=8, help="requests at once")
    parser.add_argument("--prompts", type=Path, help="folder with repeat_XX.jsonl; default: made by the package")
    parser.add_argument("--count", type=int, default=64, help="prompts of a workload")
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument(
        "--suffix-python", type=Path, help="a Python with arctic-inference; without, suffix is left out"
    )
    parser.add_argument("--depth", type=int, default=24, help="the suffix tree's depth, vLLM's default 24")
    parser.add_argument("--requests", default="1,8,32,128", help="requests at once for goodput")
    parser.add_argument("--forward-ms", default=FORWARD_MS, help="milliseconds of a forward by packed tokens")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    args.draft_tokens = [int(width) for width in args.draft_tokens.split(",")]
    names = [name for name in args.drafters.split(",") if name != "suffix" or args.suffix_python]
    if "suffix" in args.drafters and not args.suffix_python:
        print("suffix left out: no --suffix-python")
    forward_ms = {int(t): float(ms) for t, ms in (pair.split(":") for pair in args.forward_ms.split(","))}
    results: list[Result] = []
    for workload in args.workload.split(","):
        file = streams_file(workload, prompts=args.prompts, count=args.count, output_tokens=args.output_tokens)
        results += compared(workload, names, file, args)
        for rows in (int(rows) for rows in args.requests.split(",")):
            streams = dealt(read_streams(file), rows)
            results += goodput(workload, streams, forward_ms, rows=rows, width=max(args.draft_tokens))
    results += [r for width in args.draft_tokens for r in step_costs(read_streams(file), width)]
    show_passes([r for r in results if "drafter" in r.parameters])
    show("flashnest's step and goodput", [r for r in results if "drafter" not in r.parameters])
    if args.json:
        write_json(args.json, results)


if __name__ == "__main__":
    main()
