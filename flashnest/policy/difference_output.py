"""A difference of two policies as text for people and as plain data for `--format json`. Prints nothing itself.

    {"old": ..., "new": ..., "same": false, "more": false,
     "regions": [{"where": "place", "records": "tokens = 16..31", "example": "{tokens: 16, kind: ngram}",
                  "old": {"outcome": "in nvme", "rules": [{"number": 2, "line": 2, "text": ...}]}, "new": {...},
                  "trace_records": 812}],
     "statements": [{"old": "flush every 5min", "new": ""}],
     "settings": [{"setting": "tiers.dram.capacity", "old": "14GiB", "new": "16GiB"}],
     "trace": {"name": ..., "records": 45678, "moved": 812}}

`where` is `place` for new records, else the tier that they are stored in. `trace` is null without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from flashnest.policy.difference import Difference, Region, Side
from flashnest.policy.tiering_file import TieringFile

Json: TypeAlias = str | int | float | bool | list["Json"] | dict[str, "Json"] | None


@dataclass(frozen=True, slots=True)
class Counted:
    """How many records of a trace lie in each region, by region; and how many there are and differ in all."""

    trace: str
    records: int
    by_region: Sequence[int]
    moved: int


def difference_lines(found: Difference, settings: Sequence[tuple[str, str, str]], counted: Counted | None) -> list[str]:
    """Return the text: a paragraph a region, then statements and settings. Empty where nothing differs."""
    lines: list[str] = []
    for i, region in enumerate(found.regions):
        lines += [*_region_lines(region), *_count_line(i, region, counted), ""]
    if found.more:
        lines += ["... and more regions; these are the first of each kind", ""]
    for old, new in found.goals:
        lines += [*_sign("-", old), *_sign("+", new), ""]
    lines += [f"{key}: {old} -> {new}" for key, old, new in settings]
    return [*lines, ""] if settings else lines


def difference_json(
    old: TieringFile,
    new: TieringFile,
    found: Difference,
    settings: Sequence[tuple[str, str, str]],
    counted: Counted | None,
) -> dict[str, Json]:
    """Return the whole as plain data."""
    return {
        "old": str(old.path),
        "new": str(new.path),
        "same": not found and not settings,
        "more": found.more,
        "regions": [_region_json(i, region, counted) for i, region in enumerate(found.regions)],
        "statements": [{"old": before, "new": after} for before, after in found.goals],
        "settings": [{"setting": key, "old": before, "new": after} for key, before, after in settings],
        "trace": None
        if counted is None
        else {"name": counted.trace, "records": counted.records, "moved": counted.moved},
    }


def _region_lines(region: Region) -> list[str]:
    with_facts = f" with {region.records}" if region.records else ""
    if region.tier is None:
        head = f"new records{with_facts}" if with_facts else "every new record"
    else:
        head = f"records in {region.tier.name.lower()}{with_facts}"
    return [
        head,
        *_side_lines("-", region.old),
        *_side_lines("+", region.new),
        f"  = example: record: {region.example}",
    ]


def _side_lines(sign: str, side: Side) -> list[str]:
    rules = [f"rule {rule.number} (line {rule.line}): {rule.text}" for rule in side.rules] or ["no rule takes them"]
    return [f"  {sign} {side.outcome}", *(f"      {rule}" for rule in rules)]


def _count_line(i: int, region: Region, counted: Counted | None) -> list[str]:
    if counted is None or region.tier is not None:
        return []
    n = counted.by_region[i]
    share = 100 * n / max(1, counted.records)
    return [f"  = trace: {n:,} of {counted.records:,} records ({share:.1f} %)"]


def _sign(sign: str, text: str) -> list[str]:
    return [f"  {sign} {text}"] if text else []


def _region_json(i: int, region: Region, counted: Counted | None) -> Json:
    entry: dict[str, Json] = {
        "where": "place" if region.tier is None else region.tier.name.lower(),
        "records": region.records,
        "example": region.example,
        "old": _side_json(region.old),
        "new": _side_json(region.new),
    }
    if counted is not None and region.tier is None:
        entry["trace_records"] = counted.by_region[i]
    return entry


def _side_json(side: Side) -> Json:
    rules: list[Json] = [{"number": rule.number, "line": rule.line, "text": rule.text} for rule in side.rules]
    return {"outcome": str(side.outcome), "rules": rules}
