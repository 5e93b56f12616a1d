"""Pairs of `place` rules whose order decides (T103): both take a record, into different tiers, and neither contains the
other. Al-Shaer and Hamed (2003) call it correlation. Exact by cells.

A rule inside a later one is the usual way to write an exception and is no finding; the reverse is T102. Nor is an
overlap that no record can be in: a chunk always has `CHUNK_TOKENS` tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np

from flashnest.policy.boxes import boxes, sample
from flashnest.policy.cells import NO_RULE, Cells
from flashnest.policy.check import Checked
from flashnest.policy.diagnostics import Diagnostic, Label, Note, Severity
from flashnest.policy.facts import REJECT
from flashnest.policy.format import format_condition
from flashnest.policy.record_text import record_text
from flashnest.policy.resolved import Meaning, Rule
from flashnest.policy.syntax import And, Or
from flashnest.record import CHUNK_TOKENS, BoolArray, Kind

_SHOWN: Final = 5
_MAX_PAIR_CELLS: Final = 20_000_000
"""Pairs of rules times cells: 1 ns for each, so 20 ms at most. Larger policies are made by programs."""


def check_overlaps(checked: Checked, cells: Cells, conditions: Sequence[Meaning]) -> tuple[Diagnostic, ...]:
    """Return a warning for each pair of rules whose order decides, the first few in file order.

    `conditions` are those of the rules without the parts that decide nothing, which are a finding of their own.
    """
    return tuple(_overlap(checked, cells, *pair) for pair in islice(_pairs(cells, conditions), _SHOWN))


def _pairs(cells: Cells, conditions: Sequence[Meaning]) -> Iterator[tuple[Rule, Rule, BoolArray]]:
    """Yield (earlier rule, later rule, the cells that the earlier takes from the later)."""
    if len(cells.rules) ** 2 * cells.first.size > _MAX_PAIR_CELLS:
        return
    possible = _possible(cells)
    masks = [cells.mask(meaning) for meaning in conditions]
    for later, rule in enumerate(cells.rules):
        for earlier in _takers(cells, masks[later], later) if rule.acts and not masks[later].all() else ():
            other = cells.rules[earlier]
            inside = not (masks[earlier] & ~masks[later]).any() or not (masks[later] & ~masks[earlier]).any()
            both = masks[later] & (cells.first == earlier) & possible
            if not inside and _first_tier(other) != _first_tier(rule) and both.any():
                yield other, rule, both


def _told_apart(cells: Cells) -> list[str]:
    return ["kind", *(axis.fact.name for axis in cells.axes if axis.groups > 1)]


def _possible(cells: Cells) -> BoolArray:
    """Return the cells that hold a record that can be: an n-gram, or a chunk of the length that chunks have."""
    number = {axis.fact.name: i for i, axis in enumerate(cells.axes)}
    ngram = _group_of(cells, number["kind"], Kind.NGRAM)
    length = _group_of(cells, number["tokens"], CHUNK_TOKENS)
    indices = np.ogrid[tuple(slice(0, groups) for groups in cells.shape)]
    possible: BoolArray = (indices[number["kind"]] == ngram) | (indices[number["tokens"]] == length)
    return possible


def _group_of(cells: Cells, position: int, code: int) -> int:
    axis = cells.axes[position]
    return int(axis.group[int(np.searchsorted(axis.starts, code, side="right")) - 1])


def _takers(cells: Cells, mask: BoolArray, later: int) -> list[int]:
    """Return the rules above that decide about some of a rule's cells."""
    first = cells.first[mask]
    counts = np.bincount(first[first != NO_RULE], minlength=1)
    return [int(i) for i in np.flatnonzero(counts) if i < later]


def _first_tier(rule: Rule) -> str:
    return rule.chain[0].name.lower() if rule.chain else REJECT


def _overlap(checked: Checked, cells: Cells, earlier: Rule, later: Rule, both: BoolArray) -> Diagnostic:
    message = f"{earlier.called} and {later.called} overlap with different targets: their order decides"
    condition = earlier.place.condition
    text = format_condition(condition)
    narrowed = f"({text})" if isinstance(condition, And | Or) else text
    help_text = f"if the order is right, say so: add `and not {narrowed}` to rule {later.number}; else swap the two"
    record = sample(next(boxes(both)), cells, checked.namespaces)
    if record.kind is Kind.CHUNK:
        record = replace(record, tokens=CHUNK_TOKENS)
    example = f"record: {record_text(record, _told_apart(cells))}"
    return Diagnostic(
        "T103",
        message,
        checked.source,
        Label(later.place.condition.span, f"rule {later.number} alone would say {_first_tier(later)}"),
        (Label(condition.span, f"rule {earlier.number} takes it to {_first_tier(earlier)}"),),
        (Note("example", example), Note("help", help_text)),
        severity=Severity.WARNING,
    )
