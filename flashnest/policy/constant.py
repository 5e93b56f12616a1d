"""Comparisons that decide nothing (T105): always true or always false where they stand. Exact by cells.

A part of a condition is a finding where the condition takes the same records with `true`, or with `false`, in its
place; and a part of an `or` where all records that it adds are taken by rules above. That a rule repeats what the rules
above leave anyway (`tokens < 32` below `tokens >= 32`) is no finding: people say it to be understood.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from flashnest.policy.boxes import boxes, sample
from flashnest.policy.cells import Cells, Grid
from flashnest.policy.check import Checked
from flashnest.policy.diagnostics import Diagnostic, Label, Note, Severity
from flashnest.policy.format import format_condition
from flashnest.policy.possible import grid_of, laws, named
from flashnest.policy.record_text import record_text
from flashnest.policy.resolved import ALWAYS, NEVER, AllOf, AnyOf, Meaning, Negated, Rule, ranges
from flashnest.policy.syntax import And, Condition, Not, Or, Otherwise
from flashnest.record import BoolArray

_MAX_WORK: Final = 4_000_000
"""Comparisons squared times cells: 1 ns for each, so 4 ms a condition at most. Larger ones are made by programs."""

_MAX_RULES: Final = 300
"""0.5 ms a rule and more. Policies with more rules are made by programs."""

_MAX_RULE_CELLS: Final = 20_000_000
"""Rules times cells, as in `redundant`."""

Path = tuple[int, ...]
"""The way from a condition to a part of it: which part at each level."""


def check_constant(checked: Checked, cells: Cells) -> tuple[tuple[Diagnostic, ...], tuple[Meaning, ...]]:
    """Return a warning for each part of a condition that decides nothing, and the `place` conditions without them."""
    if len(cells.rules) > _MAX_RULES:
        return (), tuple(rule.meaning for rule in cells.rules)
    left: list[Meaning] = []
    found = [one for node, meaning in checked.classes for one in _Parts(checked, node.condition, meaning).findings()]
    for i, rule in enumerate(cells.rules):
        parts = _Parts(checked, rule.place.condition, rule.meaning)
        found += parts.findings()
        if i and len(list(ranges(rule.meaning))) * len(cells.rules) * cells.first.size <= _MAX_RULE_CELLS:
            found += parts.taken_above(cells, i)
        left.append(parts.whole)
    for move in checked.moves.rules:
        if move.statement.condition is not None:
            found += _Parts(checked, move.statement.condition, move.meaning).findings()
    return tuple(found), tuple(left)


@dataclass(frozen=True, slots=True)
class _Space:
    """The cells of one condition, and what holds of every record."""

    grid: Grid
    laws: tuple[Meaning, ...]

    def mask(self, meaning: Meaning) -> BoolArray:
        """Return the cells that a condition takes and a record can be in."""
        return self.grid.mask(AllOf((meaning, *self.laws)))


class _Parts:
    """The parts of one condition. A part that is found constant is replaced, so that of two equal ones one stays."""

    def __init__(self, checked: Checked, condition: Condition, meaning: Meaning) -> None:
        self._checked = checked
        self._condition = condition
        self.whole = meaning
        """The condition, as far as parts of it have not been found to decide nothing."""
        self._gone: list[Path] = []

    def findings(self) -> list[Diagnostic]:
        """Return a warning for each part that decides nothing, whatever stands above the rule."""
        grid = None if isinstance(self._condition, Otherwise) else grid_of([self.whole])
        if grid is None or len(list(ranges(self.whole))) ** 2 * math.prod(grid.shape) > _MAX_WORK:
            return []
        space = _Space(grid, laws([self.whole]))
        return list(self._constants(space, space.mask(self.whole), self._condition, ()))[::-1]

    def taken_above(self, cells: Cells, index: int) -> Iterator[Diagnostic]:
        """Yield a warning for each part of an `or` whose records the rules above take."""
        reach = cells.reach(index)
        for part, path in _alternatives(self._condition, ()):
            if any(path[: len(gone)] == gone for gone in self._gone):
                continue
            left = replaced(self.whole, path, NEVER)
            added = cells.mask(self.whole) & ~cells.mask(left)
            if not (added & reach).any():
                self._drop(path, left)
                yield self._dead(part, [cells.rules[i] for i in sorted(set(cells.first[added].tolist()))])

    def _drop(self, path: Path, left: Meaning) -> None:
        self._gone.append(path)
        self.whole = left

    def _constants(self, space: _Space, base: BoolArray, node: Condition, path: Path) -> Iterator[Diagnostic]:
        """Yield the findings at a part and inside it, the last first; `base` is what the whole condition takes."""
        for value in (ALWAYS, NEVER):
            left = replaced(self.whole, path, value)
            if (space.mask(left) == base).all():
                own = space.mask(_part(self.whole, path))
                self._drop(path, left)
                message, mark, help_text = _constant_words(node, path, own, space, always=value is ALWAYS)
                example = self._example(space, base & own if (base & own).any() else base)
                yield self._warning(message, Label(node.span, mark), (), (*example, Note("help", help_text)))
                return
        for index, part in reversed(list(enumerate(_children(node)))):
            yield from self._constants(space, base, part, (*path, index))

    def _example(self, space: _Space, mask: BoolArray) -> tuple[Note, ...]:
        """Return a record of some cells as a note, nothing where they are none."""
        box = next(boxes(mask), None)
        if box is None:
            return ()
        record = record_text(sample(box, space.grid, self._checked.namespaces), named(space.grid))
        return (Note("example", f"record: {record}"),)

    def _dead(self, node: Condition, above: list[Rule]) -> Diagnostic:
        names = " and ".join(rule.called for rule in above)
        message = f"`{format_condition(node)}` adds nothing: {names} takes its records first"
        labels = tuple(Label(rule.place.condition.span, f"rule {rule.number} takes them") for rule in above)
        note = Note("help", f"leave it out, or move the rule above rule {above[0].number}")
        return self._warning(message, Label(node.span, "decides nothing"), labels, (note,))

    def _warning(self, message: str, primary: Label, labels: tuple[Label, ...], notes: tuple[Note, ...]) -> Diagnostic:
        source = self._checked.source
        return Diagnostic("T105", message, source, primary, labels, notes, severity=Severity.WARNING)


def _constant_words(
    node: Condition, path: Path, own: BoolArray, space: _Space, *, always: bool
) -> tuple[str, str, str]:
    """Return message, mark and help for a part that takes the cells `own` and may be `true` (`always`) or `false`."""
    text = format_condition(node)
    if always and (own == space.mask(ALWAYS)).all():
        help_text = "leave it out" if path else "write `otherwise` for every record, or narrow it"
        return f"`{text}` is always true", "every record", help_text
    if always:
        return f"`{text}` is always true where the rest of its condition holds", "decides nothing", "leave it out"
    if own.any():
        message = f"`{text}` adds nothing: the rest of its condition takes its records too"
        return message, "decides nothing", "leave it out"
    return f"`{text}` is never true", "no record", "leave it out, or correct it"


def _children(node: Condition) -> tuple[Condition, ...]:
    match node:
        case And(parts) | Or(parts):
            return parts
        case Not(part):
            return (part,)
        case _:
            return ()


def _alternatives(node: Condition, path: Path) -> Iterator[tuple[Condition, Path]]:
    """Yield the parts of every `or` that is not inside a `not`, the outer ones first."""
    if isinstance(node, And | Or):
        for i, part in enumerate(node.parts):
            if isinstance(node, Or):
                yield part, (*path, i)
            yield from _alternatives(part, (*path, i))


def _part(meaning: Meaning, path: Path) -> Meaning:
    """Return a part of a meaning."""
    for index in path:
        match meaning:
            case Negated(part):
                meaning = part
            case AllOf(parts) | AnyOf(parts):
                meaning = parts[index]
    return meaning


def replaced(meaning: Meaning, path: Path, value: Meaning) -> Meaning:
    """Return a meaning with another one in place of a part."""
    if not path:
        return value
    first, *rest = path
    match meaning:
        case Negated(part):
            return Negated(replaced(part, tuple(rest), value))
        case AllOf(parts) | AnyOf(parts):
            swapped = tuple(replaced(part, tuple(rest), value) if i == first else part for i, part in enumerate(parts))
            return type(meaning)(swapped)
        case _:
            raise AssertionError("a comparison has no parts")
