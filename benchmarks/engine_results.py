"""What `benchmarks.engines` says of its answers: medians over rounds, ratios to one engine, geometric means."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

from rich.console import Console
from rich.table import Table

from benchmarks.engine_jobs import Answer, Pass
from benchmarks.harness import Result

REFERENCES = ("vllm", "vllm-plain", "llamacpp", "hf", "flashnest-nodraft")
"""What ratios divide by unless the caller says otherwise: the first of these that was measured."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One engine's answer to one job."""

    engine: str
    workload: str
    concurrency: int
    round: int
    answer: Answer


def results_of(measured: Sequence[Measured], reference: str | None = None) -> list[Result]:
    """Return one result for each engine, workload, concurrency and pass: the median tok/s beside the reference's.

    An engine that made one pass where the reference made two, or the reverse, is compared with the one there is.
    """
    passes: dict[tuple[str, int, int, str], list[Pass]] = defaultdict(list)
    rss: dict[str, int] = defaultdict(int)
    for one in measured:
        rss[one.engine] = max(rss[one.engine], one.answer.rss_bytes)
        for number, done in enumerate(one.answer.passes, start=1):
            passes[one.workload, one.concurrency, number, one.engine].append(done)
    engines = list(dict.fromkeys(one.engine for one in measured))
    against = reference or next((name for name in REFERENCES if name in engines), engines[0] if engines else "")
    speeds = {key: median(p.tok_per_s for p in done) for key, done in passes.items()}
    return [
        Result(
            case="tok_s",
            parameters={
                "workload": workload,
                "concurrency": level,
                "pass": number,
                "engine": engine,
                "accept_length": _median([p.accept_length for p in done]),
                "reused_tokens": done[-1].reused_tokens,
                "p99_ttft_s": _median([p.p99_ttft_s for p in done]),
                "rss_gib": round(rss[engine] / 2**30, 2),
            },
            value=speeds[workload, level, number, engine],
            unit="tok/s",
            reference=against,
            reference_value=speeds.get((workload, level, number, against), speeds.get((workload, level, 1, against))),
        )
        for (workload, level, number, engine), done in passes.items()
    ]


def print_speeds(title: str, results: Sequence[Result]) -> None:
    """Print one row for each workload, concurrency and pass, one column for each engine: tok/s and the ratio."""
    engines = list(dict.fromkeys(str(result.parameters["engine"]) for result in results))
    reference = results[0].reference if results else None
    table = Table("workload", "in flight", "pass", title=title)
    for engine in engines:
        table.add_column(engine, justify="right")
    cells: dict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
    for result in results:
        row = tuple(str(result.parameters[name]) for name in ("workload", "concurrency", "pass"))
        engine = str(result.parameters["engine"])
        ratio = "" if engine == reference or result.ratio is None else f" ({result.ratio:.2f})"
        cells[row][engine] = f"{result.value:.1f}{ratio}"
    for row, speeds in cells.items():
        table.add_row(*row, *(speeds.get(engine, "") for engine in engines))
    Console().print(table, f"output tokens per second, prefill included; in brackets: times {reference}", sep="\n")


def geometric_means(results: Sequence[Result]) -> list[Result]:
    """Return for each engine the geometric mean of its ratios, and the lowest, over all that have one."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for result in results:
        if (ratio := result.ratio) is not None and result.parameters["engine"] != result.reference:
            ratios[str(result.parameters["engine"])].append(ratio)
    reference = results[0].reference if results else None
    return [
        Result(case, {"engine": engine, "cells": len(found)}, take(found), f"x {reference}")
        for engine, found in ratios.items()
        for case, take in (("geometric mean", geometric_mean), ("lowest", min))
    ]


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), 3) if known else None
