"""Names, units and chains of a policy: syntax tree in, resolved rules and diagnostics (T4xx) out.

What the rules together do or leave undone is `coverage`'s business.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from flashnest.policy.diagnostics import Diagnostic, Label, Note, Severity, unknown
from flashnest.policy.facts import FACTS, LATER_FACTS, LATER_STATEMENTS, REJECT, TIERS, Fact, FactType
from flashnest.policy.format import format_statement
from flashnest.policy.resolved import ALWAYS, AllOf, AnyOf, InRange, Meaning, Negated, Rule
from flashnest.policy.syntax import (
    And,
    Comparison,
    Condition,
    Document,
    Membership,
    Name,
    Not,
    Or,
    Otherwise,
    Place,
    Source,
    Span,
)
from flashnest.policy.values import Constant, Constants, Rejected, rejected
from flashnest.record import Tier


@dataclass(frozen=True, slots=True)
class Checked:
    """A policy whose words are looked up. `rules` mean something only where no diagnostic is an error."""

    source: Source
    rules: tuple[Rule, ...]
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
        self._opened = opened
        self._constants = Constants.empty(document.source)
        self._found: list[Diagnostic] = []

    def run(self) -> Checked:
        for param in self._document.params:
            try:
                self._constants.define(param, self._overrides)
            except Rejected as stop:
                self._report(stop.diagnostic)
        self._check_overrides()
        rules = tuple(self._rule(number, place) for number, place in enumerate(self._document.places, start=1))
        self._check_unused()
        constants = self._constants
        return Checked(self._source, rules, constants.names, constants.spaces, tuple(self._found))

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

    def _check_unused(self) -> None:
        names = {param.name.text: param.name for param in self._document.params}
        for name in names.values():
            if name.text in self._constants.names and name.text not in self._constants.used:
                message, label = f"param `{name.text}` is never used", Label(name.span)
                self._report(Diagnostic("T409", message, self._source, label, severity=Severity.WARNING))

    def _rule(self, number: int, place: Place) -> Rule:
        meaning = self._meaning(place.condition)
        return Rule(number, format_statement(place), place, meaning, self._chain(place.chain.tiers))

    def _meaning(self, condition: Condition) -> Meaning:
        match condition:
            case Otherwise():
                return ALWAYS
            case And(parts):
                return AllOf(tuple(self._meaning(part) for part in parts))
            case Or(parts):
                return AnyOf(tuple(self._meaning(part) for part in parts))
            case Not(part):
                return Negated(self._meaning(part))
        try:
            return self._comparison(condition) if isinstance(condition, Comparison) else self._membership(condition)
        except Rejected as stop:
            self._report(stop.diagnostic)
            return ALWAYS  # an error ends compilation after this pass; the rule's other atoms are still checked

    def _comparison(self, atom: Comparison) -> Meaning:
        fact = self._fact(atom.fact)
        if fact.type is not FactType.NUMBER and atom.operator not in ("=", "!="):
            raise self._no_order(fact, atom.span)
        code = self._constants.code(fact, atom.value)
        match atom.operator:
            case "=":
                return InRange(fact, code, code)
            case "!=":
                return Negated(InRange(fact, code, code))
            case "<":
                return InRange(fact, fact.low, code - 1)
            case "<=":
                return InRange(fact, fact.low, code)
            case ">":
                return InRange(fact, code + 1, fact.high)
            case _:
                return InRange(fact, code, fact.high)

    def _membership(self, atom: Membership) -> Meaning:
        fact = self._fact(atom.fact)
        if fact.type is not FactType.NUMBER:
            raise self._no_order(fact, atom.span)
        low, high = self._constants.code(fact, atom.low), self._constants.code(fact, atom.high)
        if low > high:
            span = atom.low.span.to(atom.high.span)
            message = f"the range {low}..{high} holds nothing"
            raise rejected(self._source, "T404", span, message, f"write `{fact.name} in {high}..{low}`")
        return InRange(fact, low, high)

    def _no_order(self, fact: Fact, span: Span) -> Rejected:
        message = f"`{fact.name}` is {fact.noun}: only `=` and `!=` make sense"
        return rejected(self._source, "T401", span, message)

    def _fact(self, name: Name) -> Fact:
        if name.text in FACTS:
            return FACTS[name.text]
        allowed = "place can ask for " + ", ".join(f"`{fact}`" for fact in FACTS)
        if name.text in LATER_FACTS:
            message = f"`{name.text}` is not known when a record is placed"
            raise rejected(self._source, "T402", name.span, message, allowed)
        if name.text in self._constants.names:
            message = f"`{name.text}` is a param; a condition starts with a fact"
            raise rejected(self._source, "T402", name.span, message, allowed)
        raise rejected(self._source, "T402", name.span, *unknown(name.text, "fact", tuple(FACTS)))

    def _chain(self, names: tuple[Name, ...]) -> tuple[Tier, ...]:
        chain: list[Tier] = []
        for position, name in enumerate(names):
            try:
                tier = self._tier(name)
                if tier is None and position < len(names) - 1:
                    message = "`reject` ends a chain: no tier can come after it"
                    raise rejected(self._source, "T406", names[position + 1].span, message)
                if tier in chain:
                    message = f"`{name.text.lower()}` is in the chain twice"
                    raise rejected(self._source, "T406", name.span, message)
            except Rejected as stop:
                self._report(stop.diagnostic)
                return ()
            if tier is not None:
                chain.append(tier)
        return tuple(chain)

    def _tier(self, name: Name) -> Tier | None:
        word = name.text.lower()
        if word == REJECT:
            return None
        if word in LATER_STATEMENTS or word not in TIERS:
            raise rejected(self._source, "T402", name.span, *unknown(name.text, "tier", tuple(TIERS)))
        if self._opened is not None and word not in self._opened:
            listed = ", ".join(f"`{tier}`" for tier in self._opened) or "none"
            message = f"tier `{word}` is not opened here"
            raise rejected(self._source, "T405", name.span, message, f"add `{word}:` under `tiers:`; open: {listed}")
        return TIERS[word]
