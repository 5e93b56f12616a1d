"""Rules that change nothing (T104): without them every record goes the same way. Exact by cells.

No findings: a rule with a label is meant to be there, as a line of its own in reports; a rule that says what a later
`otherwise` says, with another target between the two, lists the cases before the rest; a trial never changes anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from flashnest.policy.boxes import boxes, sample, witness
from flashnest.policy.cells import NO_RULE, Cells
from flashnest.policy.check import Checked
from flashnest.policy.diagnostics import Diagnostic, Label, Note, Severity
from flashnest.policy.moves import KEEP, MoveRule
from flashnest.policy.possible import grid_of, laws, named
from flashnest.policy.record_text import record_text
from flashnest.policy.resolved import AllOf, Meaning, Negated, Rule
from flashnest.policy.syntax import Otherwise
from flashnest.record import I64Array

_MAX_RULE_CELLS: Final = 20_000_000
"""Rules times cells: 5 ns for each, so 0.1 s at most. Larger policies are made by programs."""

_MAX_ALIKE: Final = 16
"""Moves that do the same are compared two at a time, 0.5 ms each."""


def check_redundant(checked: Checked, cells: Cells) -> tuple[Diagnostic, ...]:
    """Return a warning for each rule without a label that changes nothing."""
    places = _places(checked, cells) if len(cells.rules) * cells.first.size <= _MAX_RULE_CELLS else ()
    return (*places, *_moves(checked))


def _places(checked: Checked, cells: Cells) -> Iterator[Diagnostic]:
    second = _second(cells)
    targets = [(rule.chain, rule.admission) for rule in cells.rules]
    for i, rule in enumerate(cells.rules):
        if not rule.acts or rule.name is not None:
            continue
        mine = cells.first == i
        after = np.flatnonzero(np.bincount(second[mine] + 1, minlength=1)) - 1
        if NO_RULE in after or any(targets[other] != targets[i] for other in after):
            continue
        others = [cells.rules[other] for other in after]
        if not _lists_cases(cells.rules, rule, others):
            example = witness(next(boxes(mine)), cells, checked.namespaces)
            yield _changes_nothing(checked, rule, others, example)


def _lists_cases(rules: Sequence[Rule], rule: Rule, others: Sequence[Rule]) -> bool:
    """Whether a rule stands with others before an `otherwise` that says the same, and not all between say it too."""
    last = others[-1]
    between = rules[rule.number : last.number - 1]
    target = (rule.chain, rule.admission)
    return isinstance(last.place.condition, Otherwise) and any(
        one.acts and (one.chain, one.admission) != target for one in between
    )


def _second(cells: Cells) -> I64Array:
    """Return the second acting rule that matches each cell, NO_RULE without one."""
    second = np.full(cells.shape, NO_RULE, np.int64)
    for i, rule in enumerate(cells.rules):
        if rule.acts:
            later = (cells.first != NO_RULE) & (cells.first < i) & (second == NO_RULE)
            second[cells.mask(rule.meaning) & later] = i
    return second


def _moves(checked: Checked) -> Iterator[Diagnostic]:
    rules = [rule for rule in checked.moves.rules if rule.acts]
    for rule in rules:
        alike = [one for one in rules if one is not rule and _deed(one) == _deed(rule)]
        if rule.name is None and not _limited(rule) and len(alike) < _MAX_ALIKE:
            other = next((one for one in alike if _covers(one, rule, rules)), None)
            if other is not None:
                yield _changes_nothing(checked, rule, [other], _example(checked, rule))


def _limited(rule: MoveRule) -> bool:
    """Whether a rule has a rate: two of them move twice as much."""
    return rule.most_records_per_s is not None or rule.most_bytes_per_s is not None


def _covers(other: MoveRule, rule: MoveRule, rules: Sequence[MoveRule]) -> bool:
    """Whether a rule that does the same has all records of a rule, also when the rule is gone."""
    if not _inside(rule.meaning, other.meaning):
        return False
    if other.number < rule.number:
        return True
    if _inside(other.meaning, rule.meaning):  # the same condition: the later of the two is the finding
        return False
    between = [one for one in rules if rule.number < one.number < other.number and one.source is rule.source]
    return rule.action == KEEP or all(one.action == KEEP or _apart(one.meaning, rule.meaning) for one in between)


def _deed(rule: MoveRule) -> tuple[object, ...]:
    """Return what a rule does, without which records it does it to."""
    marks = (rule.when_fill, rule.until_fill)
    return (rule.action, rule.source, rule.target, marks, rule.order, rule.using, rule.cooldown_s, rule.min_residency_s)


def _inside(inner: Meaning, outer: Meaning) -> bool:
    return _apart(inner, Negated(outer))


def _apart(one: Meaning, other: Meaning) -> bool:
    """Whether no record that can be satisfies two conditions; False where the cells are too many to look."""
    both = AllOf((one, other))
    grid = grid_of([both])
    return grid is not None and not grid.mask(AllOf((both, *laws([both])))).any()


def _example(checked: Checked, rule: MoveRule) -> str:
    grid = grid_of([rule.meaning])
    assert grid is not None, "the conflicts check refuses larger conditions"
    box = next(boxes(grid.mask(AllOf((rule.meaning, *laws([rule.meaning]))))))
    return record_text(sample(box, grid, checked.namespaces), named(grid))


def _changes_nothing(
    checked: Checked, rule: Rule | MoveRule, others: Sequence[Rule | MoveRule], example: str
) -> Diagnostic:
    names = " and ".join(other.called for other in others)
    verb = rule.verb
    message = f"this rule changes nothing: without it {names} would {verb} its records the same way"
    labels = tuple(Label(other.span, f"rule {other.number} would {verb} them") for other in others)
    help_text = f'remove it, or give it a label (`{verb} "...": ...`) to see it apart in reports'
    notes = (Note("example", f"record: {example}"), Note("help", help_text))
    primary = Label(rule.span, "changes nothing")
    return Diagnostic("T104", message, checked.source, primary, labels, notes, severity=Severity.WARNING)
