"""What the rules together do: records that none places (T101) and rules that never match (T102), exact by cells."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Final

import numpy as np

from flashnest.policy.boxes import Box, boxes, describe, witness
from flashnest.policy.cells import NO_RULE, Cells
from flashnest.policy.check import Checked
from flashnest.policy.diagnostics import Diagnostic, Label, Note
from flashnest.policy.facts import FACTS, TIERS
from flashnest.policy.format import format_condition
from flashnest.policy.resolved import InRange, Rule
from flashnest.policy.syntax import Comparison
from flashnest.record import BoolArray, I64Array, Tier

_SHOWN_GAPS: Final = 3
_SHOWN_RULES: Final = 4


def check_coverage(checked: Checked, cells: Cells, opened: Collection[str] | None) -> tuple[Diagnostic, ...]:
    """Return T101 for each region without a rule and T102 for each rule without a record."""
    unreachable = [_unreachable(checked, cells, i) for i in _never_first(cells)]
    return (*_gaps(checked, cells, opened), *unreachable)


def _gaps(checked: Checked, cells: Cells, opened: Collection[str] | None) -> list[Diagnostic]:
    gap: BoolArray = cells.first == NO_RULE
    found = list(islice(boxes(gap), _SHOWN_GAPS + 1))
    diagnostics = [_gap(checked, cells, box, opened) for box in found[:_SHOWN_GAPS]]
    if len(found) > _SHOWN_GAPS:
        notes = (Note("help", "close the gaps above first, or end with `place otherwise in ...`"),)
        message = "more records match no rule"
        diagnostics.append(Diagnostic("T101", message, checked.source, diagnostics[0].primary, notes=notes))
    return diagnostics


def _gap(checked: Checked, cells: Cells, box: Box, opened: Collection[str] | None) -> Diagnostic:
    spaces = checked.namespaces
    region = describe(box, cells, spaces)
    message = f"no rule places records with {region}" if region else "no rule places any record"
    otherwise = f"add `place otherwise in {_usual_chain(cells.rules, opened)}` as the last rule"
    widened = _widened(cells, box)
    help_text = f"{widened}, or {otherwise}" if widened else otherwise
    notes = (Note("example", f"record: {witness(box, cells, spaces)}"), Note("help", help_text))
    labels = [_covers(cells, rule, spaces) for rule in cells.rules[-_SHOWN_RULES:]]
    primary = labels.pop() if labels else None
    return Diagnostic("T101", message, checked.source, primary, tuple(labels), notes)


def _covers(cells: Cells, rule: Rule, spaces: Mapping[int, str]) -> Label:
    parts = list(islice(boxes(cells.mask(rule.meaning)), 2))
    text = ""
    if len(parts) == 1:
        text = f"covers {describe(parts[0], cells, spaces)}"
    return Label(rule.place.condition.span, text)


def _usual_chain(rules: tuple[Rule, ...], opened: Collection[str] | None) -> str:
    """Return a chain to offer: DRAM then NVMe as far as they are open, else the tiers that the rules name."""
    if opened is None:
        return "dram else nvme"
    named = sorted({tier for rule in rules for tier in rule.chain})
    usual = [tier for tier in (Tier.DRAM, Tier.NVME) if tier.name.lower() in opened]
    return " else ".join(tier.name.lower() for tier in usual or named) or next(iter(opened), next(iter(TIERS)))


def _widened(cells: Cells, box: Box) -> str:
    """Offer to move the bound of a one-atom rule that starts just above the gap, where the gap is tokens alone."""
    only = [i for i, axis in enumerate(cells.axes) if len(box.groups[i]) < axis.groups]
    if len(only) != 1 or cells.axes[only[0]].fact is not FACTS["tokens"]:
        return ""
    intervals = cells.axes[only[0]].intervals(box.groups[only[0]])
    for rule in cells.rules:
        atom, meaning = rule.place.condition, rule.meaning
        if not isinstance(atom, Comparison) or not isinstance(meaning, InRange) or atom.operator not in (">=", ">"):
            continue
        if len(intervals) == 1 and meaning.low == intervals[0][1] + 1:
            return f"widen `{format_condition(atom)}` to `tokens >= {intervals[0][0]}`"
    return ""


def _never_first(cells: Cells) -> list[int]:
    reached = _counts(cells, cells.first)
    trials = [i for i, rule in enumerate(cells.rules) if not rule.acts]
    never = [i for i, rule in enumerate(cells.rules) if rule.acts and not reached[i]]
    return sorted([*never, *(i for i in trials if not cells.reach(i).any())])


def _counts(cells: Cells, first: I64Array) -> list[int]:
    """Return how many of some cells each rule wins. (np.unique would do, but imports numpy.ma: 60 ms.)"""
    counts: list[int] = np.bincount(first[first != NO_RULE], minlength=len(cells.rules)).tolist()
    return counts


def _unreachable(checked: Checked, cells: Cells, index: int) -> Diagnostic:
    rule = cells.rules[index]
    mask = cells.mask(rule.meaning)
    if not mask.any():
        note = Note("help", "its condition contradicts itself: no record can satisfy it")
        primary = Label(rule.place.condition.span, "no record")
        return Diagnostic("T102", "this rule can never match", checked.source, primary, notes=(note,))
    above = [cells.rules[i] for i, count in enumerate(_counts(cells, cells.first[mask])) if count]
    names = " and ".join(one.called for one in above)
    labels = tuple(Label(one.place.condition.span, f"rule {one.number} takes its records first") for one in above)
    message = f"this rule can never match: {names} {'takes' if len(above) == 1 else 'take'} all its records"
    example = Note("example", f"record: {witness(next(boxes(mask)), cells, checked.namespaces)}")
    notes = (example, Note("help", _unreachable_help(cells, rule, above)))
    return Diagnostic("T102", message, checked.source, Label(rule.place.span, "unreachable"), labels, notes)


def _unreachable_help(cells: Cells, rule: Rule, above: list[Rule]) -> str:
    mask = cells.mask(rule.meaning)
    swallowed = [one for one in above if not (cells.mask(one.meaning) & ~mask).any()]
    if swallowed:
        return "remove it: above the others it would leave them nothing"
    return f"move it above rule {above[0].number}, or remove it"
