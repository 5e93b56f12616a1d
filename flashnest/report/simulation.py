"""Simulations side by side on the terminal: one column a policy, from what `Simulation.to_json` gives.

Takes dicts alone, so that saved JSON prints the same. Computes no figure but shares of the figures given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias, cast

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from flashnest.report.figures import MISSING, bytes_text, count_text, number_text, share_text
from flashnest.report.model import Json, Section
from flashnest.report.simulation_plots import hits_by_rule, over_time

Simulated: TypeAlias = Mapping[str, Json]
"""One simulation as JSON. Tiers are named in lower case, rules by their number as text."""

WIDTH: Final = 100
_LABEL_WIDTH: Final = 34
_COLUMN_WIDTH: Final = 15
_COLUMNS: Final = (WIDTH - _LABEL_WIDTH) // (_COLUMN_WIDTH + 1)
"""Policies side by side; more go below."""
_TIER_NAMES: Final = {"vram": "VRAM", "dram": "DRAM", "nvme": "NVMe"}
_Row: TypeAlias = tuple[str, Callable[[Simulated], str]]


def print_simulations(simulated: Sequence[Simulated], console: Console | None = None) -> None:
    """Print the table, the plots and the warnings; to standard output unless a console is given."""
    (console or Console(width=WIDTH)).print(render_simulations(simulated))


def render_simulations(simulated: Sequence[Simulated]) -> RenderableType:
    """Return all that is shown of simulations of one trace, for `WIDTH` columns."""
    rows = max(1, -(-len(simulated) // _COLUMNS))
    each = max(1, -(-len(simulated) // rows))  # five policies are three and two, not four and one
    tables = [comparison(simulated[i : i + each]) for i in range(0, len(simulated), each)]
    parts: list[RenderableType] = []
    for part in [*tables, hits_by_rule(simulated), over_time(simulated), *_remarks(simulated)]:
        parts += [part, Text()]
    return Group(*parts[:-1])


def comparison(simulated: Sequence[Simulated]) -> Table:
    """Return the table of figures, one column a policy."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("", width=_LABEL_WIDTH, no_wrap=True)
    for one in simulated:
        table.add_column(short_name(str(one["policy"])), justify="right", width=_COLUMN_WIDTH, overflow="ellipsis")
    for label, figure in figure_rows(simulated):
        table.add_row(label, *(figure(one) for one in simulated))
    return table


def figure_rows(simulated: Sequence[Simulated]) -> Iterator[_Row]:
    """Yield each line of the comparison: its label, and what it says of a simulation."""
    tiers = [tier for tier in _TIER_NAMES if any(tier in section(one, "peak_bytes") for one in simulated)]
    yield "Questions answered", lambda one: share_text(hit_share(one))
    for tier in tiers:
        yield _from(tier), lambda one, tier=tier: share_text(tier_share(one, tier))  # type: ignore[misc]
    if any(number(one, "belady_hit_share") is not None for one in simulated):
        yield "Belady's optimum, same DRAM", lambda one: share_text(number(one, "belady_hit_share"))
    yield "Hits per stored KiB", lambda one: number_text(_scaled(number(one, "hits_per_stored_byte"), 1024))
    yield "Stored, never asked for again", lambda one: share_text(number(one, "one_hit_wonders"))
    for tier in tiers:
        yield f"{_TIER_NAMES[tier]}, most held", lambda one, tier=tier: _held(one, "peak_bytes", tier)  # type: ignore[misc]
        yield f"{_TIER_NAMES[tier]}, at the end", lambda one, tier=tier: _held(one, "end_bytes", tier)  # type: ignore[misc]
    if "nvme" in tiers:
        yield from _drive_rows()
    yield from _predicted_rows(simulated)
    yield (
        "Records moved / ping-pongs",
        lambda one: f"{count_text(moved(one))} / {count_text(number(one, 'ping_pongs'))}",
    )
    yield "No room / not admitted", lambda one: _counts(one, "rejected", "not_admitted")
    if any(number(one, "pushed_out") for one in simulated):
        yield "Pushed out where no rule made room", lambda one: count_text(number(one, "pushed_out"))


def short_name(policy: str) -> str:
    """Return a policy's file name without its folder and ending: conf/tiering/hotcold.yaml is hotcold."""
    name = policy.rpartition("/")[2]
    return name.rpartition(".")[0] or name


def section(one: Simulated, name: str) -> Section:
    """Return a mapping inside a simulation."""
    return cast(Section, one[name])


def number(one: Mapping[str, Json], name: str) -> float | None:
    """Return a figure, None where it is not known."""
    value = one[name]
    return float(value) if isinstance(value, int | float) else None


def hit_share(one: Simulated) -> float | None:
    """Return the share of questions that any tier answered."""
    return _share_of_questions(one, sum(float(cast(int, hits)) for hits in section(one, "hits").values()))


def tier_share(one: Simulated, tier: str) -> float | None:
    """Return the share of questions that one tier answered, None where the policy does not open it."""
    return _share_of_questions(one, number(section(one, "hits"), tier)) if tier in section(one, "hits") else None


def moved(one: Simulated) -> float:
    """Return the records that rules moved."""
    return sum(float(cast(int, count)) for count in section(one, "moved_by_rule").values())


def would_have(one: Simulated) -> list[str]:
    """Return what each trial rule (level `warn`) would have done."""
    texts = {str(number): " ".join(str(text).split()) for number, text in cast(list[tuple[int, str]], one["rules"])}
    counts = section(one, "would_have").items()
    return [
        f"rule {rule} would have taken {count_text(cast(int, n))} records: {texts.get(rule, '')}" for rule, n in counts
    ]


def _share_of_questions(one: Simulated, hits: float | None) -> float | None:
    questions = number(one, "questions")
    return hits / questions if hits is not None and questions else None


def _from(tier: str) -> str:
    return f"  from {_TIER_NAMES[tier]}" + (", one step later" if tier == "nvme" else "")


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _held(one: Simulated, name: str, tier: str) -> str:
    return bytes_text(number(section(one, name), tier)) if tier in section(one, name) else MISSING


def _quantiles(one: Simulated, name: str, parts: tuple[str, ...]) -> str:
    quantiles = one[name]
    if not isinstance(quantiles, dict):
        return MISSING
    return " / ".join(_short(number(quantiles, part)) for part in parts)


def _short(value: float | None) -> str:
    """Return whole numbers without decimals: cold reads are counts."""
    return count_text(value) if value is not None and float(value).is_integer() else number_text(value)


def _drive_rows() -> Iterator[_Row]:
    yield (
        "Cold reads a step, p50 / p99 / max",
        lambda one: _quantiles(one, "cold_reads_per_step", ("p50", "p99", "most")),
    )
    yield "Cold reads / in vain", lambda one: _counts(one, "cold_reads", "false_reads")
    yield "Written to NVMe", lambda one: _drive_bytes(one, "nvme_written_bytes")
    yield "Written to NVMe, a second", lambda one: _drive_bytes(one, "nvme_bytes_per_s")
    yield "Drive life at this rate", lambda one: _years(number(one, "drive_life_years"))


def _predicted_rows(simulated: Sequence[Simulated]) -> Iterator[_Row]:
    if any(one["lookup_us"] is not None for one in simulated):
        yield "Lookups of a step (us), p50 / p99", lambda one: _quantiles(one, "lookup_us", ("p50", "p99"))
    if any(_timed_step(one) for one in simulated):
        yield "Step (ms), p50 / p99", lambda one: _quantiles(one, "step_ms", ("p50", "p99"))


def _counts(one: Simulated, *names: str) -> str:
    return " / ".join(count_text(number(one, name)) for name in names)


def _drive_bytes(one: Simulated, name: str) -> str:
    return bytes_text(number(one, name)) if "nvme" in section(one, "peak_bytes") else MISSING


def _timed_step(one: Simulated) -> bool:
    """Return whether a step's time is known beside its lookups."""
    step, lookup = one["step_ms"], one["lookup_us"]
    if not isinstance(step, dict) or not isinstance(lookup, dict):
        return False
    return (number(step, "p50") or 0.0) * 1000 > 1.001 * (number(lookup, "p50") or 0.0)


def _years(years: float | None) -> str:
    if years is None:
        return MISSING
    return "over 100 years" if years > 100 else f"{number_text(years)} years"


def _remarks(simulated: Sequence[Simulated]) -> list[RenderableType]:
    """Return what the policies require and what the simulation warns of, policy by policy."""
    lines: list[tuple[str, str]] = []
    for one in simulated:
        name = short_name(str(one["policy"]))
        for requirement in cast(list[list[Json]], one["requirements"]):
            text, kept = requirement
            lines.append((name, f"{'kept:   ' if kept else 'BROKEN: '} {text}"))
        lines += [(name, f"trial:   {would}") for would in would_have(one)]
        lines += [(name, f"warning: {warning}") for warning in cast(list[str], one["warnings"])]
    if not lines:
        return []
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    before = ""
    for name, line in lines:
        table.add_row(name if name != before else "", Text(line))
        before = name
    return [Group(Text("Remarks", "bold"), table)]
