"""Decode steps over a cold table beside the same steps over DRAM: does a cold record ever make a step wait?

    python -m benchmarks.steps --rounds 8 --json steps.json

step_p50, step_p99    ms of `Engine.step`, all steps with every stream running, prefill of newcomers included
decode_p50, decode_p99   the same of steps without prefill
host_p50, host_p99    ms of a step that are not the forward pass: drain, admit, draft, commit, learn, sweep
tokens_per_step       tokens committed in a step of all streams

Compute is emulated (a platform's roofline, 128 streams), tables, files and reads are this machine's own. Each case has
an engine and tiers of its own; blocks of steps are interleaved case by case, and what a block left to write is flushed
before the next case's turn. The reference of every case is `dram_only` in the same run.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.harness import Result, show, write_json
from flashnest.app.build import App, build
from flashnest.cli.arguments import parse_command
from flashnest.cli.compose import Composer
from flashnest.cli.run import run_from
from flashnest.config import RunConfig
from flashnest.runtime.events import StepEvent
from flashnest.runtime.request import Prompt

REFERENCE = "dram_only"
CASES: dict[str, tuple[str, ...]] = {
    REFERENCE: ("+tiering=dram_only",),
    "lmdb async": ("+tiering=nvme_only", "tiering.tiers.nvme.engine=lmdb"),
    "slots async": ("+tiering=nvme_only", "tiering.tiers.nvme.engine=slots"),
    "hotcold": ("+tiering=hotcold",),
    "slots blocking": (
        "+tiering=nvme_only",
        "tiering.tiers.nvme.engine=slots",
        "tiering.tiers.nvme.cold_reads=blocking",
    ),
}


def run_config(overrides: Sequence[str]) -> RunConfig:
    """Compose and check a run as the command line does."""
    composer = Composer(parse_command(list(overrides)))
    return run_from(composer.compose(composer.complete()))


@dataclass(slots=True)
class Stream:
    """One case: its app, its endless prompts, and what its steps took."""

    name: str
    app: App
    prompts: Iterator[Prompt]
    steps: list[StepEvent] = field(default_factory=list)

    def start(self) -> None:
        """Put all streams in flight."""
        for _ in range(self.app.concurrency):
            self._submit()

    def _submit(self) -> None:
        self.app.compute.admit(self.app.engine.submit(next(self.prompts)))

    def run(self, steps: int, *, keep: bool) -> None:
        """Run `steps` steps in a closed loop, then let the tiers finish their writes."""
        for _ in range(steps):
            event = self.app.engine.step()
            for request in event.finished:
                self.app.compute.forget(request)
                self._submit()
            if keep and event.running + len(event.finished) == self.app.concurrency and event.forward_tokens:
                self.steps.append(event)
        self.app.router.flush()

    def figures(self) -> dict[str, float]:
        """Return the case's figures, times in ms."""
        whole = np.array([e.duration_s for e in self.steps]) * 1e3
        host = whole - np.array([e.forward_s for e in self.steps]) * 1e3
        decode = whole[[e.prefill_tokens == 0 for e in self.steps]]
        named = {"step": whole, "decode": decode, "host": host}
        found = {f"{name}_p{p}": float(np.percentile(ms, p)) for name, ms in named.items() if len(ms) for p in (50, 99)}
        return found | {"tokens_per_step": statistics.fmean(e.committed for e in self.steps)}


def open_stream(name: str, common: Sequence[str], folder: Path) -> Stream:
    """Build a case's app in a folder of its own."""
    place = folder / name.replace(" ", "-")
    place.mkdir()
    app = build(run_config([*common, *CASES[name]]), place)
    return Stream(name, app, itertools.cycle(app.prompts))


def measure(names: Sequence[str], common: Sequence[str], *, rounds: int, block: int, warm: int) -> list[Result]:
    """Run the cases in turn, `rounds` times `block` steps each after `warm` steps each."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flashnest-steps-")))
        streams = []
        for name in names:
            stream = open_stream(name, common, folder)
            stack.callback(stream.app.close)
            stream.start()
            stream.run(warm, keep=False)
            streams.append(stream)
        for _ in range(rounds):
            for stream in streams:
                time.sleep(0.05)  # what the case before left on the CPU settles
                stream.run(block, keep=True)
        figures = {stream.name: stream.figures() for stream in streams}
    reference = figures[REFERENCE]
    return [
        Result(
            case,
            {"tiering": name},
            value,
            unit_of(case),
            REFERENCE,
            reference[case],
        )
        for name, found in figures.items()
        for case, value in found.items()
        if case in reference
    ]


def unit_of(case: str) -> str:
    """Return the unit of a figure."""
    return "tokens" if case == "tokens_per_step" else "ms"


def main() -> None:
    """Run the cases and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="cases, comma-separated; dram_only is always one")
    parser.add_argument("--platform", default="rtx4090", help="whose compute is emulated")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each case")
    parser.add_argument("--block", type=int, default=150, help="steps a turn")
    parser.add_argument("--warm", type=int, default=300, help="steps of each case before the first turn")
    parser.add_argument("--dram", default="1GiB", help="DRAM table of each case that has one")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="more overrides, for all cases")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    names = list(dict.fromkeys([REFERENCE, *options.cases.split(",")]))
    common = [
        f"+platform={options.platform}",
        *(f"platform.table.dram={options.dram}", "platform.table.nvme=512MiB", "workload.requests=512"),
        *options.set,
    ]
    results = measure(names, common, rounds=options.rounds, block=options.block, warm=options.warm)
    show("Decode steps, emulated compute, real storage", results)
    if options.json:
        write_json(options.json, results)


if __name__ == "__main__":
    main()
