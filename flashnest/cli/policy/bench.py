"""`flash-nest policy bench`: what a policy costs: its compilation, and each record that it places."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from flashnest.cli.policy.files import OK, Files, count, for_each, say

if TYPE_CHECKING:
    from flashnest.policy.compile import Policy
    from flashnest.policy.tiering_file import TieringFile
    from flashnest.record import FactArrays

BATCHES: Final = (1, 128, 10_000)
"""One record; a step's; a sweep's or an import's."""

_BUDGET_NS: Final = 200_000_000
"""For each measurement."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians. `place_ns` and `moves_ns` are (batch, ns a record); `moves_ns` is all conditions of the moves."""

    compile_ms: float
    place_ns: tuple[tuple[int, float], ...]
    moves_ns: tuple[tuple[int, float], ...]


def bench(
    files: Files,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document for all files.")] = False,
) -> None:
    """Measure policies: compile ms, and ns a record to place it, in batches of 1, 128 and 10,000."""
    measured: list[tuple[TieringFile, Policy, Cost]] = []

    def act(file: TieringFile) -> int:
        policy = file.compile()
        cost = measure(file, policy)
        measured.append((file, policy, cost))
        if not as_json:
            _tell(file, policy, cost)
        return OK

    code = for_each(_with_progress(files), act)
    if as_json:
        import json

        say(json.dumps({"files": [_row(*one) for one in measured]}, indent=2))
    raise typer.Exit(code)


def _with_progress(names: list[str]) -> Iterable[str]:
    """Yield the names, and on a terminal show how many are done: each takes a second and a half."""
    if len(names) == 1 or not sys.stderr.isatty():
        return names
    from rich.console import Console
    from rich.progress import track

    return track(names, "measuring", console=Console(stderr=True), transient=True)


def measure(file: TieringFile, policy: Policy) -> Cost:
    """Measure one policy for about a second. Records are drawn at and beside its constants."""
    import numpy as np

    from flashnest.policy.random_facts import random_facts

    place_ns: list[tuple[int, float]] = []
    moves_ns: list[tuple[int, float]] = []
    for batch in BATCHES:
        facts = random_facts(policy, batch, np.random.default_rng(batch))
        place = partial(policy.placement.chain_codes, facts.tokens, facts.kind, facts.namespace, facts.nbytes)
        place_ns.append((batch, median_ns(place) / batch))
        if policy.moves.rules:
            moves_ns.append((batch, median_ns(partial(_match_all, policy, facts)) / batch))
    return Cost(median_ns(file.compile) / 1e6, tuple(place_ns), tuple(moves_ns))


def _match_all(policy: Policy, facts: FactArrays) -> None:
    for rule in policy.moves.rules:
        rule.matches(facts)


def median_ns(call: Callable[[], object]) -> float:
    """Return the median time of one call, after a first one that counts for nothing."""
    call()
    started = time.perf_counter_ns()
    call()
    repeats = max(1, 1_000_000 // max(1, time.perf_counter_ns() - started))
    times: list[float] = []
    until = time.perf_counter_ns() + _BUDGET_NS
    while len(times) < 3 or time.perf_counter_ns() < until:
        started = time.perf_counter_ns()
        for _ in range(repeats):
            call()
        times.append((time.perf_counter_ns() - started) / repeats)
    return sorted(times)[len(times) // 2]


def _tell(file: TieringFile, policy: Policy, cost: Cost) -> None:
    say(f"{file.path}: {count(len(policy.rules), 'rule')}, {count(len(policy.moves.rules), 'move')}")
    say(f"  compile  {cost.compile_ms:10,.1f} ms")
    for what, rows in (("place", cost.place_ns), ("moves", cost.moves_ns)):
        for batch, ns in rows:
            say(f"  {what:7}  {ns:10,.1f} ns a record, batches of {batch:,}")


def _row(file: TieringFile, policy: Policy, cost: Cost) -> dict[str, object]:
    return {
        "path": str(file.path),
        "rules": len(policy.rules),
        "moves": len(policy.moves.rules),
        "compile_ms": cost.compile_ms,
        "place_ns": [{"batch": batch, "ns": ns} for batch, ns in cost.place_ns],
        "moves_ns": [{"batch": batch, "ns": ns} for batch, ns in cost.moves_ns],
    }
