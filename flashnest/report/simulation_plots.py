"""Small plots of simulations for a terminal: bars of hits by rule, sparklines of hit share and bytes over time.

Text in block elements, readable in 100 columns. Takes JSON dicts, as `simulation` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, cast

from rich.console import Group
from rich.table import Table
from rich.text import Text

from flashnest.report.figures import bytes_text, share_text
from flashnest.report.model import Json

_SPARKS: Final = "▁▂▃▄▅▆▇█"
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"
_SPARK_WIDTH: Final = 48
_BAR_WIDTH: Final = 20
_NAME_WIDTH: Final = 16
_RULE_WIDTH: Final = 44
_TIERS: Final = {"vram": "VRAM", "dram": "DRAM", "nvme": "NVMe"}


def sparkline(values: Sequence[float], width: int = _SPARK_WIDTH, *, top: float | None = None) -> str:
    """Return values from 0 to `top` (their own largest) as at most `width` block elements.

    Where there are more values than places each place shows the mean of its values.
    """
    if not values:
        return ""
    places = min(width, len(values))
    edges = [round(i * len(values) / places) for i in range(places + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    high = (max(means) if top is None else top) or 1.0
    return "".join(_SPARKS[min(len(_SPARKS) - 1, int(max(mean, 0.0) / high * len(_SPARKS)))] for mean in means)


def bar(share: float, width: int = _BAR_WIDTH) -> str:
    """Return a bar of a share 0..1, in eighths of a place."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


def hits_by_rule(simulated: Sequence[Mapping[str, Json]]) -> Group:
    """Return bars: which rule placed the records that were hit, as shares of all hits of a policy."""
    table = _grid((_NAME_WIDTH, 3, _RULE_WIDTH, _BAR_WIDTH))
    table.add_column(justify="right", width=8)
    for one in simulated:
        hits = {int(rule): int(cast(int, count)) for rule, count in cast(dict[str, Json], one["hits_by_rule"]).items()}
        total = sum(hits.values())
        name = _name(one)
        for rule in cast(list[list[Json]], one["rules"]):
            number, text = int(cast(int, rule[0])), " ".join(str(rule[1]).split())
            if number in hits:
                share = hits[number] / total if total else 0.0
                table.add_row(name, str(number), Text(text, overflow="ellipsis"), bar(share), share_text(share))
                name = ""
    return Group(Text("Hits by the rule that placed the record", "bold"), table)


def over_time(simulated: Sequence[Mapping[str, Json]]) -> Group:
    """Return sparklines from the first step to the last: hit share, and bytes in each tier, on one scale a tier."""
    tops = _tops(simulated)
    table = _grid((_NAME_WIDTH, 5, _SPARK_WIDTH))
    table.add_column(max_width=26)
    for one in simulated:
        series = cast(dict[str, Json], one["series"])
        shares = cast(list[float], series["hit_share"])
        table.add_row(_name(one), "hits", sparkline(shares, top=1.0), f"{share_text(_last(shares))} at the end")
        for tier, values in _bytes(series).items():
            if max(values, default=0):
                note = f"{bytes_text(max(values))} at most"
                table.add_row("", _TIERS[tier], sparkline(values, top=tops[tier]), note)
    return Group(Text("From the first step to the last", "bold"), table)


def _grid(widths: Sequence[int]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    for width in widths:
        table.add_column(width=width, no_wrap=True)
    return table


def _name(one: Mapping[str, Json]) -> str:
    name = str(one["policy"]).rpartition("/")[2]
    return name.rpartition(".")[0] or name


def _bytes(series: Mapping[str, Json]) -> dict[str, list[float]]:
    return cast(dict[str, list[float]], series["bytes"])


def _tops(simulated: Sequence[Mapping[str, Json]]) -> dict[str, float]:
    tops: dict[str, float] = {}
    for one in simulated:
        for tier, values in _bytes(cast(dict[str, Json], one["series"])).items():
            tops[tier] = max(tops.get(tier, 0.0), max(values, default=0.0))
    return tops


def _last(values: Sequence[float]) -> float | None:
    return values[-1] if values else None
