"""Names, units and chains of a policy: syntax tree in, resolved rules and diagnostics (T4xx) out.

What the `place` rules together do or leave undone is `coverage`'s business, what moves do to each other `conflicts`'.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from flashnest.policy.check_goals import GoalChecker, level_of, name_of
from flashnest.policy.check_moves import MoveChecker
from flashnest.policy.conditions import Conditions
from flashnest.policy.diagnostics import Diagnostic, Label, Note, Severity, unknown
from flashnest.policy.facts import MAX_WINDOW_HITS
from flashnest.policy.format import format_statement
from flashnest.policy.goals import Flush, Requirement
from flashnest.policy.moves import MovePlan
from flashnest.policy.resolved import Meaning, Rule
from flashnest.policy.syntax import After, Class, Document, Name, Place, Source, Span
from flashnest.policy.tier_names import TierNames
from flashnest.policy.values import Constant, Constants, Rejected, rejected
from flashnest.record import Admission, Tier
from flashnest.units import Dimension


@dataclass(frozen=True, slots=True)
class Checked:
    """A policy whose words are looked up. `rules` mean something only where no diagnostic is an error."""

    source: Source
    rules: tuple[Rule, ...]
    classes: tuple[tuple[Class, Meaning], ...]
    """The classes with what they mean, in file order."""
    moves: MovePlan
    flush: Flush | None
    requirements: tuple[Requirement, ...]
    asked: tuple[tuple[Tier, Span], ...]
    """The tiers that `flush` and `require` are about, and where they say so."""
    params: Mapping[str, Constant]
    namespaces: Mapping[int, str]
    """Names of the namespaces in the policy, by id."""
    diagnostics: tuple[Diagnostic, ...]


def check_names(document: Document, overrides: Mapping[str, object], opened: Collection[str] | None) -> Checked:
    """Resolve every statement. `opened` is the tiers that exist (None: all)."""
    return _Checker(document, overrides, opened).run()


class _Checker:
    """One pass over a document; collects diagnostics instead of stopping at the first."""

    def __init__(self, document: Document, overrides: Mapping[str, object], opened: Collection[str] | None) -> None:
        self._document = document
        self._source = document.source
        self._overrides = overrides
        self._tiers = TierNames(document.source, opened)
        self._constants = Constants.empty(document.source)
        self._found: list[Diagnostic] = []

    def run(self) -> Checked:
        for param in self._document.params:
            try:
                self._constants.define(param, self._overrides)
            except Rejected as stop:
                self._report(stop.diagnostic)
        self._check_overrides()
        conditions = Conditions(self._source, self._constants, self._document.classes, self._report)
        places = self._document.places
        rules = tuple(self._rule(number, place, conditions) for number, place in enumerate(places, start=1))
        moves = MoveChecker(self._source, self._constants, conditions, self._tiers, self._report)
        plan = moves.plan(self._document.moves, first_number=len(rules) + 1)
        goals = GoalChecker(self._source, self._constants, self._report)
        goals.labels(self._document.labelled)
        flush, requirements = goals.flush(self._document.flushes), goals.requirements(self._document.requirements)
        asked = goals.asked(self._document)
        self._check_unused(conditions)
        names, spaces = self._constants.names, self._constants.spaces
        found = tuple(self._found)
        classes = conditions.resolved
        return Checked(self._source, rules, classes, plan, flush, requirements, asked, names, spaces, found)

    def _report(self, diagnostic: Diagnostic) -> None:
        if diagnostic not in self._found:
            self._found.append(diagnostic)

    def _check_overrides(self) -> None:
        declared = tuple(param.name.text for param in self._document.params)
        for name in self._overrides:
            if name not in declared:
                message, advice = unknown(str(name), "param", declared)
                note = Note("help", advice or f"the policy has no params; add `param {name} = ...` to its rules")
                self._report(Diagnostic("T402", f"{message} is overridden from outside", self._source, notes=(note,)))

    def _check_unused(self, conditions: Conditions) -> None:
        params = {param.name.text: param.name for param in self._document.params}
        for name in params.values():
            if name.text in self._constants.names and name.text not in self._constants.used:
                self._unused("param", name)
        for word, node in conditions.classes.items():
            if word not in conditions.used:
                self._unused("class", node.name)

    def _unused(self, noun: str, name: Name) -> None:
        message, label = f"{noun} `{name.text}` is never used", Label(name.span)
        self._report(Diagnostic("T409", message, self._source, label, severity=Severity.WARNING))

    def _rule(self, number: int, place: Place, conditions: Conditions) -> Rule:
        meaning = conditions.of_place(place.condition)
        chain: tuple[Tier, ...] = ()
        admission = None
        try:
            chain = self._tiers.chain(place.chain.tiers)
            admission = None if place.after is None else self._admission(place.after, chain)
        except Rejected as stop:
            self._report(stop.diagnostic)
        text, name, level = format_statement(place), name_of(place), level_of(place)
        return Rule(number, text, place, meaning, chain, admission, name, level)

    def _admission(self, after: After, chain: tuple[Tier, ...]) -> Admission:
        if not chain:
            message = "nothing is stored in `reject`: there is no admission to ask for"
            raise rejected(self._source, "T406", after.span, message)
        if after.noun.text not in ("hits", "hit"):
            raise rejected(self._source, "T402", after.noun.span, *unknown(after.noun.text, "fact", ("hits",)))
        hits = self._constants.amount(after.count, "what `after` counts", Dimension.COUNT).value
        if not isinstance(hits, int) or not 2 <= hits <= MAX_WINDOW_HITS:
            written = self._source.slice(after.count.span)
            message = f"`after` counts from 2 to {MAX_WINDOW_HITS} hits, not `{written}`"
            help_text = "leave `after` out: a new record is learnt once" if hits == 1 else ""
            raise rejected(self._source, "T404", after.count.span, message, help_text)
        return Admission(hits, self._constants.seconds(after.window, "the time of `after`"))
