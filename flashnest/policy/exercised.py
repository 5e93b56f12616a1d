"""What a file's tests exercise of its policy: rules that decide, atoms both ways, both sides of every threshold.

Exact by cells: what no record can do (an atom that is always true where its rule stands, a threshold in a region that
rules above take) is not asked for. `coverage` is another thing: gaps of the rules themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from flashnest.policy.cells import NO_RULE, Grid, make_cells
from flashnest.policy.compile import Policy
from flashnest.policy.facts import Fact, FactType, RecordFacts, time_words
from flashnest.policy.moves import MoveRule
from flashnest.policy.possible import grid_of, laws
from flashnest.policy.reasons import atom_words, value_words
from flashnest.policy.resolved import AllOf, InRange, Rule, ranges
from flashnest.policy.testing import TestResult
from flashnest.record import BoolArray

_POINT = 0.01 + 1e-9
"""A watermark counts as tested by a fill up to one point from it; fills are read from decimals, hence the slack."""


@dataclass(frozen=True, slots=True)
class Missing:
    """One thing that no test does, or a name used twice: code T501 to T504, the file's line and a sentence."""

    code: str
    line: int
    message: str

    def text(self, path: object) -> str:
        """Return the finding on one line: `mine.yaml:12: warning[T501]: ...`."""
        return f"{path}:{self.line}: warning[{self.code}]: {self.message}"


@dataclass(frozen=True, slots=True)
class Exercised:
    """How much of a policy its tests exercise: `seen` of `items`. T502 is among `missing` and is no item."""

    items: int
    seen: int
    missing: tuple[Missing, ...]

    @property
    def percent(self) -> float:
        """Return the share seen, 0..100; 100 for a policy with nothing to exercise."""
        return 100.0 * self.seen / self.items if self.items else 100.0


@dataclass(slots=True)
class _Tally:
    items: int = 0
    seen: int = 0
    missing: list[Missing] = field(default_factory=list)

    def need(self, done: bool, code: str, line: int, message: str) -> None:
        self.items += 1
        self.seen += done
        if not done:
            self.missing.append(Missing(code, line, message))


@dataclass(frozen=True, slots=True)
class _Reach:
    """Where a rule stands: its test records, and the cells that reach it (None: too many to count)."""

    rule: Rule | MoveRule
    records: Sequence[RecordFacts]
    grid: Grid | None
    region: BoolArray | None

    def possible(self, atom: InRange, wanted: bool) -> bool:
        """Return whether a record that reaches the rule can have the atom so."""
        if self.grid is None or self.region is None:
            return True
        mask = self.grid.mask(atom)
        return bool((self.region & (mask if wanted else ~mask)).any())

    def holds_value(self, fact: Fact, code: int) -> bool:
        """Return whether a record that reaches the rule can have a fact's value: exact, atoms are constant in cells."""
        if self.grid is None or self.region is None:
            return True
        position = next(i for i, axis in enumerate(self.grid.axes) if axis.fact == fact)
        axis = self.grid.axes[position]
        group = int(axis.group[int(np.searchsorted(axis.starts, code, side="right")) - 1])
        return bool(np.take(self.region, group, axis=position).any())


def exercised(policy: Policy, results: Sequence[TestResult]) -> Exercised:
    """Measure what the results of a file's tests exercise of its policy."""
    tally = _Tally()
    for rule in policy.rules:
        _decided(tally, rule, results)
    for move in policy.moves.rules:
        _decided(tally, move, results)
    for reach in (*_places(policy, results), *_moves(policy, results)):
        _atoms(tally, reach, policy)
        _thresholds(tally, reach, policy)
    for move in policy.moves.rules:
        _watermark(tally, move, results)
    for rule in policy.rules:
        _admission(tally, rule, results)
    missing = [*tally.missing, *_named_twice(results)]
    return Exercised(tally.items, tally.seen, tuple(sorted(missing, key=lambda one: (one.line, one.code))))


def _decided(tally: _Tally, rule: Rule | MoveRule, results: Sequence[TestResult]) -> None:
    done = any(result.rule is not None and result.rule.number == rule.number for result in results)
    tally.need(done, "T503", rule.line, f"{rule.title} decides no test: {rule.text}")


def _places(policy: Policy, results: Sequence[TestResult]) -> Iterator[_Reach]:
    cells = make_cells(policy.rules)
    new = [result for result in results if result.case.stored is None and result.rule is not None]
    for i, rule in enumerate(policy.rules):
        region = np.asarray((cells.first == NO_RULE) | (cells.first >= i))
        records = [r.case.record for r in new if r.rule is not None and r.rule.number >= rule.number]
        yield _Reach(rule, records, cells, region)


def _moves(policy: Policy, results: Sequence[TestResult]) -> Iterator[_Reach]:
    """Yield each move with the tests of its tier: fill, `keep` and the rules before it hide no atom from a reader."""
    for rule in policy.moves.rules:
        meanings = [one.meaning for one in policy.moves.rules if one.source is rule.source]
        grid = grid_of(meanings)
        region = None if grid is None else np.asarray(grid.mask(AllOf(laws(meanings))))
        records = [r.case.record for r in results if r.case.stored is not None and r.case.stored.tier is rule.source]
        yield _Reach(rule, records, grid, region)


def _atoms(tally: _Tally, reach: _Reach, policy: Policy) -> None:
    for atom in dict.fromkeys(ranges(reach.rule.meaning)):
        for wanted in (True, False):
            if not reach.possible(atom, wanted):
                continue
            done = any((atom.low <= record.code(atom.fact) <= atom.high) is wanted for record in reach.records)
            words = atom_words(atom, policy.namespace_names)
            message = f"`{words}` of {reach.rule.title} is {str(wanted).lower()} in no test that reaches the rule"
            tally.need(done, "T504", reach.rule.line, message)


def _thresholds(tally: _Tally, reach: _Reach, policy: Policy) -> None:
    sides: dict[tuple[Fact, int], tuple[InRange, str]] = {}
    for atom in ranges(reach.rule.meaning):
        for code, side in _sides(atom):
            sides.setdefault((atom.fact, code), (atom, side))
    for (fact, code), (atom, side) in sides.items():
        if not reach.holds_value(fact, code):
            continue
        done = any(record.code(fact) == code for record in reach.records)
        words, value = (atom_words(atom, policy.namespace_names), value_words(fact, code, policy.namespace_names))
        message = f"`{words}` of {reach.rule.title} has no test at {fact.name} = {value}, the {side}"
        tally.need(done, "T501", reach.rule.line, message)


def _sides(atom: InRange) -> Iterator[tuple[int, str]]:
    """Yield the values beside each end of a range of numbers, and which side they are."""
    if atom.fact.type is not FactType.NUMBER or atom.low > atom.high:
        return
    if atom.low > atom.fact.low:
        yield atom.low, "first inside" if atom.high >= atom.fact.high else "lowest inside"
        yield atom.low - 1, "last outside"
    if atom.high < atom.fact.high:
        yield atom.high, "last inside"
        yield atom.high + 1, "first outside"


def _watermark(tally: _Tally, rule: MoveRule, results: Sequence[TestResult]) -> None:
    """Ask for a test at most a point above the watermark and one at it or less than a point below.

    Only records that the rule's condition takes count.
    """
    if rule.when_fill is None:
        return
    here = [r.case for r in results if r.case.stored is not None and r.case.stored.tier is rule.source]
    fills = [case.stored.fill - rule.when_fill for case in here if case.stored and rule.takes(case.record, 1.0)]
    mark = f"`fill > {100 * rule.when_fill:.4g}%` of {rule.title} has no test"
    above, below = f"{100 * rule.when_fill + 1:.4g}%", f"{100 * rule.when_fill:.4g}%"
    done = any(0 < over <= _POINT for over in fills)
    tally.need(done, "T501", rule.line, f"{mark} at fill = {above}, the first inside")
    done = any(-_POINT < over <= 0 for over in fills)
    tally.need(done, "T501", rule.line, f"{mark} at fill = {below}, the last outside")


def _admission(tally: _Tally, rule: Rule, results: Sequence[TestResult]) -> None:
    """Ask for a test that says what a rule with `after` asks of a record."""
    if rule.admission is None:
        return
    asked = (r.case.after is not None for r in results if r.rule is not None and r.rule.number == rule.number)
    admission = f"after: {rule.admission.hits} hits in {time_words(rule.admission.window_s)}"
    tally.need(any(asked), "T501", rule.line, f"no test of {rule.title} expects `{admission}`")


def _named_twice(results: Sequence[TestResult]) -> Iterator[Missing]:
    first: dict[str, int] = {}
    for result in results:
        case = result.case
        if case.name in first:
            yield Missing("T502", case.line, f'test "{case.name}" has the name of the test in line {first[case.name]}')
        first.setdefault(case.name, case.line)
