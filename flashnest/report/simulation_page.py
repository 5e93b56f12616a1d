"""Simulations side by side as one HTML page that needs nothing else: the table, and plots that plotly draws.

plotly and its script (5 MB, inside the page) are imported on use. Takes JSON dicts, as `simulation` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final, cast

from flashnest.errors import ConfigError
from flashnest.report.model import Json
from flashnest.report.simulation import (
    Simulated,
    figure_rows,
    hit_share,
    number,
    section,
    short_name,
    tier_share,
    would_have,
)
from flashnest.report.write import write_text

_COLOURS: Final = ("#2f6fb5", "#d9822b", "#3d9970", "#9b59b6", "#c0392b", "#7f8c8d", "#16a085", "#8e6e53")
_TIERS: Final = {"vram": ("VRAM", "#3d9970"), "dram": ("DRAM", "#2f6fb5"), "nvme": ("NVMe, a step later", "#d9a441")}
_HEIGHT: Final = 340
_STYLE: Final = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #1d2733; margin: 0;
  background: #f4f6f8; }
main { max-width: 1180px; margin: 0 auto; padding: 24px 24px 48px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 0 0 8px; }
p.what { color: #55606d; margin: 0 0 20px; }
section { background: #fff; border: 1px solid #dfe4ea; border-radius: 8px; padding: 16px 20px; margin: 0 0 18px;
  overflow-x: auto; }
.pair { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 0 18px; }
@media (max-width: 900px) { .pair { grid-template-columns: minmax(0, 1fr); } }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 10px; border-bottom: 1px solid #eceff3; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: pre; }
thead th { border-bottom: 2px solid #cdd5de; }
tbody tr:hover { background: #f7f9fb; }
.remarks td { text-align: left; white-space: normal; vertical-align: top; }
.broken { color: #b3261e; font-weight: 600; }
code { font: 13px ui-monospace, "DejaVu Sans Mono", monospace; }
"""


def write_page(simulated: Sequence[Simulated], path: Path, *, heading: str, command: str) -> None:
    """Write the page to `path`. Raises ConfigError where plotly is missing or the file cannot be written."""
    write_text(simulation_page(simulated, heading=heading, command=command), path, option="--html")


def simulation_page(simulated: Sequence[Simulated], *, heading: str, command: str) -> str:
    """Return the page. `heading` says what the trace is, `command` what made the page. Raises ConfigError."""
    plots = _plots(simulated)
    trace = str(simulated[0]["trace"]) if simulated else ""
    lines = escape(heading).replace("\n", "<br>")
    body = [
        f"<h1>Policies on {escape(trace)}</h1><p class='what'>{lines}</p>",
        f"<section>{_table(simulated)}</section>",
        f"<div class='pair'><section>{plots['hits']}</section><section>{plots['bytes_for_hits']}</section></div>",
        f"<div class='pair'><section>{plots['rules']}</section><section>{plots['share']}</section></div>",
        f"<div class='pair'><section>{plots['dram']}</section><section>{plots['nvme']}</section></div>",
        _remarks(simulated),
        f"<p class='what'>Made by <code>{escape(command)}</code></p>",
    ]
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>flashnest: policies on {escape(trace)}</title><style>{_STYLE}</style>"
        f"<script>{_script()}</script></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def _table(simulated: Sequence[Simulated]) -> str:
    head = "".join(f"<th>{escape(short_name(str(one['policy'])))}</th>" for one in simulated)
    rows = "".join(
        f"<tr><td>{escape(label)}</td>{''.join(f'<td>{escape(figure(one))}</td>' for one in simulated)}</tr>"
        for label, figure in figure_rows(simulated)
    )
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _remarks(simulated: Sequence[Simulated]) -> str:
    rows = ""
    for one in simulated:
        name = escape(short_name(str(one["policy"])))
        for text, kept in cast(list[tuple[str, bool]], one["requirements"]):
            said = "kept" if kept else "<span class='broken'>broken</span>"
            rows += f"<tr><td>{name}</td><td>{said}</td><td><code>{escape(text)}</code></td></tr>"
        for would in would_have(one):
            rows += f"<tr><td>{name}</td><td>trial</td><td>{escape(would)}</td></tr>"
        for warning in cast(list[str], one["warnings"]):
            rows += f"<tr><td>{name}</td><td>warning</td><td>{escape(warning)}</td></tr>"
    return f"<section class='remarks'><h2>Remarks</h2><table>{rows}</table></section>" if rows else ""


# --- plots -----------------------------------------------------------------------------------------------------------


def _plots(simulated: Sequence[Simulated]) -> dict[str, str]:
    names = [short_name(str(one["policy"])) for one in simulated]
    return {
        "hits": _div("Questions answered, by tier", _hits(simulated, names), barmode="stack", y_percent=True),
        "bytes_for_hits": _div(
            "Answered at once, for the DRAM it takes",
            _bytes_for_hits(simulated, names),
            x_title="DRAM, most held (MiB)",
            y_percent=True,
        ),
        "rules": _div(
            "Hits by the rule that placed the record", _rules(simulated, names), barmode="stack", x_percent=True
        ),
        "share": _div("Questions answered over time", _series(simulated, names, None), x_title="step", y_percent=True),
        "dram": _div("DRAM over time (MiB)", _series(simulated, names, "dram"), x_title="step"),
        "nvme": _div("NVMe over time (MiB)", _series(simulated, names, "nvme"), x_title="step"),
    }


def _hits(simulated: Sequence[Simulated], names: list[str]) -> list[Any]:
    go = _plotly("graph_objects")
    bars = [
        go.Bar(
            name=label, x=names, y=[tier_share(one, tier) or 0.0 for one in simulated], marker_color=colour, width=0.5
        )
        for tier, (label, colour) in _TIERS.items()
        if any(tier_share(one, tier) for one in simulated)
    ]
    best = [number(one, "belady_hit_share") for one in simulated]
    if any(share is not None for share in best):
        mark = {"symbol": "line-ew", "size": 46, "line": {"width": 3, "color": "#1d2733"}}
        bars.append(go.Scatter(name="Belady's optimum", x=names, y=best, mode="markers", marker=mark))
    return bars


def _bytes_for_hits(simulated: Sequence[Simulated], names: list[str]) -> list[Any]:
    go = _plotly("graph_objects")
    return [
        go.Scatter(
            name=name,
            x=[
                (number(section(one, "peak_bytes"), "dram") or 0.0) / 2**20
                if "dram" in section(one, "peak_bytes")
                else 0
            ],
            y=[_fast_share(one)],
            mode="markers",
            marker={"size": 14, "color": colour},
            cliponaxis=False,
            hovertemplate="%{y:.1%} from DRAM or VRAM<br>%{x:.2f} MiB",
        )
        for one, name, colour in _coloured(simulated, names)
    ]


def _fast_share(one: Simulated) -> float:
    return (hit_share(one) or 0.0) - (tier_share(one, "nvme") or 0.0)


def _rules(simulated: Sequence[Simulated], names: list[str]) -> list[Any]:
    """Return one bar a policy, upwards; its parts are its rules."""
    go = _plotly("graph_objects")
    bars = []
    for one, name in zip(simulated, names, strict=True):
        hits = section(one, "hits_by_rule")
        total = sum(cast(list[int], list(hits.values()))) or 1
        rules = [
            (str(rule), str(text)) for rule, text in cast(list[tuple[int, str]], one["rules"]) if str(rule) in hits
        ]
        for place, (rule, text) in enumerate(rules):
            share = cast(int, hits[rule]) / total
            label = f"{name}, rule {rule}: {' '.join(text.split())}"
            colour = _COLOURS[place % len(_COLOURS)]
            bars.append(
                go.Bar(
                    name=label, x=[share], y=[name], orientation="h", marker_color=colour, showlegend=False,
                    text=[f"rule {rule}" if share > 0.08 else ""], textposition="inside", insidetextanchor="middle",
                    hovertemplate="%{x:.1%} " + escape(text) + "<extra></extra>",
                )
            )  # fmt: skip
    return bars


def _series(simulated: Sequence[Simulated], names: list[str], tier: str | None) -> list[Any]:
    go = _plotly("graph_objects")
    lines = []
    for one, name, colour in _coloured(simulated, names):
        series = section(one, "series")
        values = _values(series, tier)
        if values:
            lines.append(
                go.Scatter(name=name, x=series["step"], y=values, mode="lines", line={"color": colour, "width": 2})
            )
    return lines


def _values(series: Mapping[str, Json], tier: str | None) -> list[float]:
    if tier is None:
        return cast(list[float], series["hit_share"])
    held = cast(dict[str, list[float]], series["bytes"]).get(tier, [])
    return [value / 2**20 for value in held] if any(held) else []


def _coloured(simulated: Sequence[Simulated], names: list[str]) -> list[tuple[Simulated, str, str]]:
    return [
        (one, name, _COLOURS[i % len(_COLOURS)]) for i, (one, name) in enumerate(zip(simulated, names, strict=True))
    ]


def _div(
    title: str, data: list[Any], *, barmode: str | None = None, x_title: str = "", x_percent: bool = False,
    y_percent: bool = False,
) -> str:  # fmt: skip
    """Return a heading and a plot; "nothing" where there is no data."""
    if not data:
        return f"<h2>{escape(title)}</h2><p class='what'>nothing</p>"
    figure = _plotly("graph_objects").Figure(data)
    figure.update_layout(
        template="plotly_white", height=_HEIGHT, margin={"l": 56, "r": 12, "t": 8, "b": 44}, barmode=barmode,
        legend={"orientation": "h", "y": -0.2}, font={"family": "system-ui, DejaVu Sans, sans-serif", "size": 13},
    )  # fmt: skip
    figure.update_xaxes(title=x_title, tickformat=".0%" if x_percent else None, rangemode="tozero")
    downwards = "reversed" if x_percent else None  # bars that lie: the first policy on top
    figure.update_yaxes(
        tickformat=".0%" if y_percent else None, rangemode="tozero", automargin=True, autorange=downwards
    )
    config = {"displaylogo": False, "responsive": True, "displayModeBar": False}
    return f"<h2>{escape(title)}</h2>" + str(figure.to_html(full_html=False, include_plotlyjs=False, config=config))


def _script() -> str:
    return str(_plotly("offline").get_plotlyjs())


def _plotly(module: str) -> Any:
    from importlib import import_module

    try:
        return import_module(f"plotly.{module}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            "plotly is not installed", why="the HTML page's plots are drawn by it", fix="pip install plotly"
        ) from error
