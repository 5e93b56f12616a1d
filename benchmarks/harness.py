"""What every benchmark shares: interleaved timing, rows of results, the table, the JSON file. Measures nothing itself.

A row states a case, its parameters, a value with its unit, and the reference measured in the same run, interleaved with
it, so that a noisy machine slows both. `ratio` is value / reference.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from flashnest.record import I32Array
from flashnest.telemetry.machine import commit, machine, versions

Fact = str | int | float | None


@dataclass(frozen=True, slots=True)
class Result:
    """One line of a benchmark. `reference` says what `reference_value` is, in the same unit."""

    case: str
    parameters: Mapping[str, Fact]
    value: float
    unit: str
    reference: str | None = None
    reference_value: float | None = None

    @property
    def ratio(self) -> float | None:
        """value / reference_value, where there is one."""
        return self.value / self.reference_value if self.reference_value else None

    def row(self) -> dict[str, Fact]:
        """Return the line as the JSON file has it."""
        return {
            "case": self.case,
            **self.parameters,
            "value": self.value,
            "unit": self.unit,
            "reference": self.reference,
            "reference_value": self.reference_value,
            "ratio": self.ratio,
        }


def interleaved_ns(runs: Mapping[str, Callable[[], None]], *, rounds: int) -> dict[str, float]:
    """Run each function once a round, in turn, and return each one's median nanoseconds; the first round is dropped."""
    times: dict[str, list[int]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            started = time.perf_counter_ns()
            run()
            times[name].append(time.perf_counter_ns() - started)
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


def machine_facts() -> dict[str, Fact]:
    """Return the machine, the versions and the commit, flat."""
    return {**asdict(machine()), **versions(), "commit": commit()}


def _cell(value: Fact) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"


def show(title: str, results: Sequence[Result]) -> None:
    """Print the results as one table."""
    table = Table("case", "parameters", "value", "unit", "reference", "ratio", title=title)
    for result in results:
        parameters = " ".join(f"{name}={value}" for name, value in result.parameters.items())
        reference = "" if result.reference is None else f"{result.reference} {_cell(result.reference_value)}"
        ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
        table.add_row(result.case, parameters, _cell(result.value), result.unit, reference, ratio)
    Console().print(table)


def write_json(path: Path, results: Sequence[Result]) -> None:
    """Write `{"machine": {...}, "rows": [...]}`."""
    document = {"machine": machine_facts(), "rows": [result.row() for result in results]}
    path.write_text(json.dumps(document, indent=2) + "\n")


def left_padded(prompts: Sequence[I32Array], pad: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return prompts as HF `generate` takes a batch: ids and attention mask, int64 (n, longest)."""
    width = max(len(p) for p in prompts)
    ids = np.full((len(prompts), width), pad, np.int64)
    mask = np.zeros((len(prompts), width), np.int64)
    for row, tokens in enumerate(prompts):
        ids[row, width - len(tokens) :] = tokens
        mask[row, width - len(tokens) :] = 1
    return ids, mask
