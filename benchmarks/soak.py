"""Mixed load at full budgets: does memory stay flat, does a file outgrow its tier, does the sweep stall steps?

    python -m benchmarks.soak --minutes 10 --engine slots --json soak.json

rss_growth        median resident memory of the last tenth / of the first tenth, once every tier is full
rss_range         largest / smallest in that time
anonymous_range   likewise, of the part that belongs to no file: LMDB's pages come and go with the page cache
file_share        largest size of the tier's files / capacity (blocks that the file system gave them)
step_max          longest step / median step, and how many steps passed 3 times the median
sweep_max         longest sweep of a step, ms, and how many of the steps above would have stayed below without it
moved             records moved by each rule of the policy

The engine, router, policy and tiers are those of a run, compute is emulated, 128 requests are in flight. Half of each
prompt is taken from a set of hot fragments, half is new, so that records come for ever: the tiers are small enough to
be full after the first part of the run, and promotions, demotions and evictions go on all the time.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.harness import Result, show, write_json
from benchmarks.steps import run_config
from flashnest.app.build import App, build
from flashnest.record import I32Array, Tier
from flashnest.runtime.request import Prompt, SamplingParams

VOCAB = 100_000
FRAGMENT_TOKENS = 64
FULL_SHARE = 0.95
"""A tier counts as full from here: what comes later takes no more memory. At 0.7 the NVMe tier's filter still grew."""


def prompts(seed: int, *, hot: int, fragments: int, output_tokens: int) -> Iterator[Prompt]:
    """Yield prompts for ever: fragments by turns from a hot set (drawn by Zipf's law) and new; so is the answer."""
    rng = np.random.default_rng(seed)
    hot_set = rng.integers(10, VOCAB, (hot, FRAGMENT_TOKENS), dtype=np.int32)

    def piece(index: int) -> I32Array:
        if index % 2:
            return rng.integers(10, VOCAB, FRAGMENT_TOKENS, dtype=np.int32)
        taken: I32Array = hot_set[min(int(rng.zipf(1.3)) - 1, hot - 1)]
        return taken

    for _ in itertools.count():
        tokens = np.concatenate([piece(i) for i in range(fragments)])
        reference = np.concatenate([piece(i) for i in range(-(-output_tokens // FRAGMENT_TOKENS))])[:output_tokens]
        yield Prompt(tokens, reference=reference, sampling=SamplingParams(max_tokens=output_tokens, ignore_eos=True))


@dataclass(slots=True)
class Log:
    """What was seen: a step's seconds and its sweep's; a second's resident bytes, file bytes and fill of each tier."""

    steps_s: list[float] = field(default_factory=list)
    sweeps_s: list[float] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    rss_bytes: list[int] = field(default_factory=list)
    anonymous_bytes: list[int] = field(default_factory=list)
    file_bytes: list[int] = field(default_factory=list)
    fills: list[tuple[float, ...]] = field(default_factory=list)
    full_from: int | None = None
    """Index of the first sample at which every tier was full."""


def files_bytes(folder: Path) -> int:
    """Return what the file system gave to the files under `folder`."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def status_bytes(name: str) -> int:
    """Return a line of this process's status: VmRSS, resident memory; RssAnon, that which belongs to no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(name)))


def load(app: App, stream: Iterator[Prompt], folder: Path, minutes: float) -> Log:
    """Run for `minutes` once the tiers are full, at most four times that in all."""
    log = Log()
    started = next_sample = time.monotonic()
    end = started + 4 * 60 * minutes

    def submit() -> None:
        app.compute.admit(app.engine.submit(next(stream)))

    for _ in range(app.concurrency):
        submit()
    while (now := time.monotonic()) < end:
        event = app.engine.step()
        for request in event.finished:
            app.compute.forget(request)
            submit()
        if event.forward_tokens:
            log.steps_s.append(event.duration_s)
            log.sweeps_s.append(event.sweep_s)
        if now >= next_sample:
            next_sample += 1.0
            sample(log, app, folder, now - started)
            if log.full_from is None and min(log.fills[-1]) >= FULL_SHARE:
                log.full_from = len(log.fills) - 1
                end = now + 60 * minutes
                log.steps_s.clear()
                log.sweeps_s.clear()
    return log


def sample(log: Log, app: App, folder: Path, at_s: float) -> None:
    """Note this second."""
    tiers = app.router.stats().tiers
    log.at_s.append(at_s)
    log.rss_bytes.append(status_bytes("VmRSS"))
    log.anonymous_bytes.append(status_bytes("RssAnon"))
    log.file_bytes.append(files_bytes(folder))
    log.fills.append(tuple(tiers[t].fill for t in sorted(tiers) if t.name.lower() in app.open_tiers))


def results(log: Log, app: App, parameters: dict[str, str | int | float | None]) -> list[Result]:
    """Turn the log into rows."""
    steps, sweeps = np.array(log.steps_s), np.array(log.sweeps_s)
    median = float(np.median(steps))
    long = steps > 3 * median
    by_sweep = int(np.count_nonzero(long & (steps - sweeps <= 3 * median)))
    rss, anonymous = (np.array(of[log.full_from :]) for of in (log.rss_bytes, log.anonymous_bytes))
    capacity = app.router.stats().tiers[Tier.NVME].bytes_budget
    seconds = log.at_s[-1] - (0.0 if log.full_from is None else log.at_s[log.full_from])
    base = {**parameters, "seconds": round(seconds), "full": str(log.full_from is not None)}
    tenth = max(1, len(rss) // 10)
    first, last = float(np.median(rss[:tenth])), float(np.median(rss[-tenth:]))
    rows = [
        Result("rss_growth", base, last, "bytes", "first tenth", first),
        Result("rss_range", base, float(rss.max()), "bytes", "smallest", float(rss.min())),
        Result("anonymous_range", base, float(anonymous.max()), "bytes", "smallest", float(anonymous.min())),
        Result("file_share", base, float(max(log.file_bytes)), "bytes", "capacity", float(capacity)),
        Result("step_p99", base, float(np.percentile(steps, 99)) * 1e3, "ms", "median", median * 1e3),
        Result(
            "step_max", {**base, "above_3x": int(long.sum())}, float(steps.max()) * 1e3, "ms", "median", median * 1e3
        ),
        Result("sweep_p99", base, float(np.percentile(sweeps, 99)) * 1e3, "ms", "median step", median * 1e3),
        Result(
            "sweep_max", {**base, "steps_made_long": by_sweep}, sweeps.max() * 1e3, "ms", "median step", median * 1e3
        ),
    ]
    moves = app.router.stats().moves
    return rows + [Result("moved", {"rule": rule.text}, float(rule.moved), "records") for rule in moves]


def main() -> None:
    """Run the load and print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to go on once the tiers are full")
    parser.add_argument("--engine", default="slots", choices=("lmdb", "slots"))
    parser.add_argument("--tiering", default="hotcold")
    parser.add_argument("--dram", default="64MiB", help="capacity of the DRAM tier")
    parser.add_argument("--nvme", default="256MiB", help="capacity of the NVMe tier")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="more overrides")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    run = run_config(
        [
            *("+platform=rtx4090", f"+tiering={options.tiering}", f"platform.table.dram={options.dram}"),
            *(f"platform.table.nvme={options.nvme}", f"tiering.tiers.nvme.engine={options.engine}"),
            *options.set,
        ]
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flashnest-soak-")))
        app = build(run, folder)
        stack.callback(app.close)
        stream = prompts(1, hot=2000, fragments=6, output_tokens=run.workload.output_tokens)
        log = load(app, stream, folder, options.minutes)
        found = results(
            log, app, {"engine": options.engine, "dram": options.dram, "nvme": options.nvme, "streams": app.concurrency}
        )
    show("Mixed load at full budgets, emulated compute, real storage", found)
    if options.json:
        write_json(options.json, found)


if __name__ == "__main__":
    main()
