"""A plan as text for people and as plain data for `--format json`. Prints nothing itself.

{"policy": ..., "from": null, "platform": ..., "present": "1,234 records in ...", "records": 812, "moves": [
  {"rule": 4, "line": 32, "text": ..., "action": "promote", "source": "nvme", "target": "dram", "matching": 900,
   "records": 812, "bytes": 58464, "refused": 0, "already": null, "seconds": 0.4, "limit": "2000 rec/s"}],
 "misplaced": [{"rule": 1, "line": 5, "text": ..., "tier": "nvme", "records": 12, "bytes": 864, "moved": 0}],
 "tiers": [{"tier": "nvme", "before": 1234, "after": 422, "room": 1000000, "capacity": 68719476736}],
     "stranded": [{"tier": "vram", "records": 5}]}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from flashnest.policy.budgets import count_words
from flashnest.policy.compile import Policy
from flashnest.policy.plan import Misplaced, Plan, PlannedMove, Present, TierFill
from flashnest.policy.platform_facts import PlatformFacts
from flashnest.units import format_bytes, format_duration

Json: TypeAlias = str | int | float | bool | list["Json"] | dict[str, "Json"] | None


def plan_lines(plan: Plan, present: Present, new: Policy, old: Policy | None, platform: PlatformFacts) -> list[str]:
    """Return the text of a plan."""
    since = f", instead of {old.source}" if old else ""
    lines = [f"present: {present.source}", f"{new.source} on {platform.name}{since} would", ""]
    lines += [line for move in plan.moves for line in _move_lines(move, old is not None)]
    if not plan.moves:
        lines.append("  move nothing: no move acts on an open tier")
    lines += ["", *_table(("tier", "records", "after", "room", "fill", "after"), [_fill(one) for one in plan.fills])]
    for tier, count in plan.stranded:
        lines += [
            "",
            f"  {count:,} records in {tier.name.lower()}, which {new.source} does not open: not found any more",
        ]
    if plan.misplaced:
        lines += ["", "placed elsewhere if they came now; they stay until a move takes them:"]
        lines += [_misplaced_line(one) for one in plan.misplaced]
    return [*lines, "", _summary(plan)]


def plan_json(
    plan: Plan, present: Present, new: Policy, old: Policy | None, platform: PlatformFacts
) -> dict[str, Json]:
    """Return a plan as plain data."""
    return {
        "policy": new.source,
        "from": None if old is None else old.source,
        "platform": platform.name,
        "present": present.source,
        "records": plan.records,
        "moves": [_move_json(one) for one in plan.moves],
        "misplaced": [_misplaced_json(one) for one in plan.misplaced],
        "tiers": [
            {
                "tier": one.tier.name.lower(),
                "before": one.before,
                "after": one.after,
                "room": one.room.records,
                "capacity": one.room.capacity_bytes,
            }
            for one in plan.fills
        ],
        "stranded": [{"tier": tier.name.lower(), "records": count} for tier, count in plan.stranded],
    }


def _move_lines(move: PlannedMove, with_old: bool) -> list[str]:
    rule = move.rule
    way = (
        rule.source.name.lower() if rule.target is None else f"{rule.source.name.lower()} -> {rule.target.name.lower()}"
    )
    head = f"  {rule.action} {move.records:,} records, {format_bytes(move.nbytes)}, {way}{_time(move)}"
    lines = [head, f"    rule {rule.number} (line {rule.line}): {rule.text}"]
    notes = []
    if not move.due:
        share = f"{100 * (rule.when_fill or 0.0):.4g}%"
        notes.append(f"not due: {rule.source.name.lower()} is not more than {share} full when it is its turn")
    elif not move.matching:
        notes.append("no record matches")
    elif move.refused:
        target = rule.target.name.lower() if rule.target else ""
        notes.append(f"{move.matching:,} match; {move.refused:,} find no room in {target}")
    elif move.matching != move.records:
        notes.append(f"{move.matching:,} match, more than have to go")
    if with_old and move.matching:
        notes.append(f"the old policy moves {move.already:,} of them the same way")
    return [*lines, *(f"    {note}" for note in ("; ".join(notes),) if note)]


def _time(move: PlannedMove) -> str:
    if not move.records:
        return ""
    return (
        f", at the pace of {move.limit}"
        if move.seconds is None
        else f", {format_duration(move.seconds)} at {move.limit}"
    )


def _fill(one: TierFill) -> tuple[str, ...]:
    room = max(1, one.room.records)
    shares = (f"{100 * count / room:.1f}%" for count in (one.before, one.after))
    return (one.tier.name.lower(), f"{one.before:,}", f"{one.after:,}", count_words(one.room.records), *shares)


def _misplaced_line(one: Misplaced) -> str:
    chain = " else ".join(tier.name.lower() for tier in one.rule.chain) or "reject"
    moved = f", {one.moved:,} of them move now" if one.moved else ""
    head = (
        f"  {one.records:,} records, {format_bytes(one.nbytes)}, in {one.tier.name.lower()}, would go in {chain}{moved}"
    )
    return f"{head}\n    rule {one.rule.number} (line {one.rule.line}): {one.rule.text}"


def _summary(plan: Plan) -> str:
    times = [move.seconds for move in plan.moves if move.records and move.seconds is not None]
    refused = sum(move.refused for move in plan.moves)
    parts = [f"{plan.records:,} records move or go"]
    parts += [f"the slowest rule takes {format_duration(max(times))}"] if times else []
    parts += [f"{refused:,} find no room"] if refused else []
    return "; ".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out rows in columns, the first to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return [
        "  " + "  ".join([row[0].ljust(widths[0]), *(cell.rjust(widths[i + 1]) for i, cell in enumerate(row[1:]))])
        for row in (head, *rows)
    ]


def _move_json(move: PlannedMove) -> Json:
    rule = move.rule
    return {
        "rule": rule.number,
        "line": rule.line,
        "text": rule.text,
        "action": rule.action,
        "source": rule.source.name.lower(),
        "target": None if rule.target is None else rule.target.name.lower(),
        "due": move.due,
        "matching": move.matching,
        "records": move.records,
        "bytes": move.nbytes,
        "refused": move.refused,
        "already": move.already,
        "seconds": move.seconds,
        "limit": move.limit,
    }


def _misplaced_json(one: Misplaced) -> Json:
    return {
        "rule": one.rule.number,
        "line": one.rule.line,
        "text": one.rule.text,
        "tier": one.tier.name.lower(),
        "records": one.records,
        "bytes": one.nbytes,
        "moved": one.moved,
    }
