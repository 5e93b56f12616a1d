"""The front of a search over a policy's params, as a table and as one line of text. Takes dicts, computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flashnest.report.figures import bytes_text, number_text, share_text

WIDTH: Final = 100
_BAR_WIDTH: Final = 12


def print_front(rows: Sequence[Mapping[str, Any]], *, most: int, console: Console | None = None) -> None:
    """Print the rows of a search: the policy as it came, then at most `most` rows of the front, the chosen one marked.

    A row has place, chosen, params (name to text), fast_bytes, hit_share, fast_share and p99_us.
    """
    (console or Console(width=WIDTH)).print(front_table(rows, most=most))


def front_table(rows: Sequence[Mapping[str, Any]], *, most: int) -> Table:
    """Return the table that `print_front` prints: `at once` is from DRAM or VRAM, `P99` that of a step's lookups."""
    timed = any(row["p99_us"] is not None for row in rows)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for name in ("DRAM", "answered", "at once", *(("P99",) if timed else ())):
        table.add_column(name, justify="right", no_wrap=True)
    names = list(rows[0]["params"]) if rows else []
    for name in names:
        table.add_column(Text(name), justify="right", overflow="fold")
    for row in shown(rows, most):
        figures = [bytes_text(row["fast_bytes"]), share_text(row["hit_share"]), share_text(row["fast_share"])]
        figures += [f"{number_text(row['p99_us'])} us"] if timed else []
        mark = f"{row['place']} <" if row["chosen"] else str(row["place"])
        values = (Text(row["params"][name]) for name in names)
        table.add_row(mark, *figures, *values, style="bold" if row["chosen"] else "")
    return table


def shown(rows: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """Return the policy as it came and `most` rows of the front spread over it, the chosen one among them."""
    start, front = list(rows[:1]), list(rows[1:])
    if len(front) <= most:
        return start + front
    spread = {round(i * (len(front) - 1) / (most - 1)) for i in range(most)}
    return start + [row for place, row in enumerate(front) if place in spread or row["chosen"]]


def score_text(row: Mapping[str, Any]) -> str:
    """Return a row's figures and params as one line."""
    timed = f", a step's lookups P99 {number_text(row['p99_us'])} us" if row["p99_us"] is not None else ""
    return (
        f"DRAM {bytes_text(row['fast_bytes'])}, answered {share_text(row['hit_share'])}, "
        f"at once {share_text(row['fast_share'])}{timed} ({params_text(row['params'])})"
    )


def params_text(params: Mapping[str, str]) -> str:
    """Return params as `long = 32 tokens, often = 3`."""
    return ", ".join(f"{name} = {value}" for name, value in params.items())
