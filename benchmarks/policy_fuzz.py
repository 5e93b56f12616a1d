"""Fuzz the policy language and compare what it compiles with a naive interpreter, by the million. Run by hand.

    nice -n 10 python -m benchmarks.policy_fuzz --inputs 1M --pairs 1M --jobs 2 --json fuzz.json

inputs   texts and tiering files of the grammar and mutated bytes, through parser, checker, tests and fmt; only errors
         of the policy family may come out
pairs    (policy, record): compiled placement and moves, and the findings that stop a policy, against the naive
         interpreter of `tests/policy/naive.py`

The same seed makes the same inputs whatever the number of jobs. What fails is printed with its seed, and the exit code
is 1. It runs from a checkout: the generators are those of the tests.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from itertools import count as count_up
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.harness import Result, show, write_json
from benchmarks.table import count_of

TESTS = Path(__file__).parents[1] / "tests" / "policy"
RECORDS_A_POLICY = 100
_POOL = 20_000
_SHOWN = 10


@dataclass(slots=True)
class Tally:
    """What one share of the work found. `slowest` is (seconds, input)."""

    done: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")

    def add(self, other: Tally) -> None:
        """Take another share in."""
        self.done += other.done
        self.outcomes += other.outcomes
        self.failures += other.failures
        self.slowest = max(self.slowest, other.slowest)


@cache
def generator(name: str) -> Any:
    """Import a module of the tests."""
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
    return importlib.import_module(name)


def fuzz(seed: int, count: int) -> Tally:
    """Put `count` inputs through the tools."""
    fuzzing, random, tally = generator("fuzzing"), Random(seed), Tally()
    for _ in range(count):
        one = fuzzing.drawn(random)
        started = time.process_time()
        try:
            found = fuzzing.outcome(one)
        except Exception:
            found = "not a policy error"
            tally.failures.append(f"seed {seed}: {one}\n{traceback.format_exc(limit=-3)}")
        tally.done += 1
        tally.outcomes[f"{one.tool} {found}"] += 1
        tally.slowest = max(tally.slowest, (time.process_time() - started, repr(one)[:300]))
    return tally


def compare(seed: int, count: int) -> Tally:
    """Compare `count` pairs: policies of places and of moves in turn, `RECORDS_A_POLICY` records each."""
    policies, agreeing = generator("random_policies"), generator("agreeing")
    random, numbers, tally = Random(seed), np.random.default_rng(seed), Tally()
    pool = policies.pool(_POOL, seed)
    for turn in count_up():
        if tally.done >= count:
            break
        kind, text_of = (("places", policies.place_text), ("moves", policies.move_text))[turn % 2]
        text, told = text_of(random), Counter[str]()
        index = numbers.integers(0, _POOL, min(RECORDS_A_POLICY, count - tally.done))
        failed = agreeing.disagreements(text, pool, index, told)
        tally.failures += [f"seed {seed}: {one}\n{text}" for one in failed]
        tally.done += len(index)
        tally.outcomes.update({f"{kind} {name}": pairs for name, pairs in told.items()})
    return tally


def shared(work: Callable[[int, int], Tally], total: int, share: int, jobs: int, seed: int) -> Tally:
    """Do `total` pieces of work in shares, each with a seed of its own."""
    shares = [(seed + i, min(share, total - i * share)) for i in range(-(-total // share))]
    tally = Tally()
    with ProcessPoolExecutor(jobs) as workers:
        running = [workers.submit(work, *one) for one in shares]
        done = as_completed(running)
        for future in track(done, work.__name__, total=len(running), console=Console(stderr=True)):
            tally.add(future.result())
    return tally


def told(what: str, tally: Tally, seconds: float) -> Iterator[Result]:
    """Print what failed; yield the rows of the table."""
    for failure in tally.failures[:_SHOWN]:
        print(failure, file=sys.stderr)
    facts: dict[str, str | int | float | None] = {"of": tally.done, "seconds": round(seconds)}
    yield Result(f"{what}_failed", facts, len(tally.failures), what)
    for name, count in tally.outcomes.most_common():
        yield Result(what, {"outcome": name}, count, what)
    if tally.slowest[1]:
        yield Result("slowest", {"input": tally.slowest[1][:80]}, tally.slowest[0], "s")


def main() -> int:
    """Run both and print them; returns 1 where something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", default="0", help="fuzz inputs; K and M are understood")
    parser.add_argument("--pairs", default="0", help="(policy, record) pairs")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first share; the others count on")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    results: list[Result] = []
    failed = 0
    for what, work, total, share in (
        ("inputs", fuzz, count_of(options.inputs), 2_000),
        ("pairs", compare, count_of(options.pairs), 20_000),
    ):
        if total:
            started = time.perf_counter()
            tally = shared(work, total, share, options.jobs, options.seed)
            results += told(what, tally, time.perf_counter() - started)
            failed += len(tally.failures)
    show("policy fuzz", results)
    if options.json:
        write_json(options.json, results)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
