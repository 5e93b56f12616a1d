"""Single comparisons of a policy to their meaning: the fact, its unit, its range (T40x). Knows no classes' meaning."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from flashnest.policy.diagnostics import unknown
from flashnest.policy.facts import CHANGING_FACTS, FACTS, FILL, MOVE_FACTS, Fact, FactType, hits_within
from flashnest.policy.format import format_condition
from flashnest.policy.resolved import InRange, Meaning, Negated
from flashnest.policy.syntax import Comparison, Membership, Name, Source, Span, Value
from flashnest.policy.values import Constants, Rejected, rejected


class Atoms:
    """Looks up facts and constants. `classes` are the names of the policy's classes, for messages."""

    def __init__(self, source: Source, constants: Constants, classes: Collection[str]) -> None:
        self._source = source
        self._constants = constants
        self._classes = classes

    def orderable(self, name: Name) -> str:
        """Return the fact of a `by`. Raises Rejected where it has no order."""
        fact = self._fact(name, MOVE_FACTS)
        if fact.type is not FactType.NUMBER:
            listed = ", ".join(f"`{one.name}`" for one in MOVE_FACTS.values() if one.type is FactType.NUMBER)
            raise rejected(self._source, "T401", name.span, f"`{fact.name}` has no order", f"`by` takes {listed}")
        return fact.name

    def comparison(self, atom: Comparison, facts: Mapping[str, Fact]) -> Meaning:
        """Return the meaning of `fact OP value`. Raises Rejected."""
        fact = self._fact(atom.fact, facts, atom.within)
        if fact.type is not FactType.NUMBER and atom.operator not in ("=", "!="):
            raise self._no_order(fact, atom.span)
        code = self._constants.code(fact, atom.value)
        match atom.operator:
            case "=":
                return self._possible(InRange(fact, code, code), atom)
            case "!=":
                return Negated(InRange(fact, code, code))
            case "<":
                return self._possible(InRange(fact, fact.low, code - 1), atom)
            case "<=":
                return self._possible(InRange(fact, fact.low, code), atom)
            case ">":
                return self._possible(InRange(fact, code + 1, fact.high), atom)
            case _:
                return self._possible(InRange(fact, code, fact.high), atom)

    def membership(self, atom: Membership, facts: Mapping[str, Fact]) -> Meaning:
        """Return the meaning of `fact in low..high`. Raises Rejected."""
        fact = self._fact(atom.fact, facts, atom.within)
        if fact.type is not FactType.NUMBER:
            raise self._no_order(fact, atom.span)
        low, high = self._constants.code(fact, atom.low), self._constants.code(fact, atom.high)
        if low > high:
            span = atom.low.span.to(atom.high.span)
            written, other = self._source.slice(atom.low.span), self._source.slice(atom.high.span)
            message = f"the range {written}..{other} holds nothing"
            raise rejected(self._source, "T404", span, message, f"write `{fact.name} in {other}..{written}`")
        return self._possible(InRange(fact, low, high), atom)

    def _possible(self, atom: InRange, written: Comparison | Membership) -> InRange:
        """Refuse a comparison that a changing fact can never pass; for facts fixed at insert the rule is T102."""
        fact = atom.fact
        if fact.name in FACTS or max(atom.low, fact.low) <= min(atom.high, fact.high):
            return atom
        message = f"`{format_condition(written)}` never holds: it goes from {fact.low} to {fact.high}"
        raise rejected(self._source, "T404", written.span, message, reason=fact.reason)

    def _no_order(self, fact: Fact, span: Span) -> Rejected:
        message = f"`{fact.name}` is {fact.noun}: only `=` and `!=` make sense"
        return rejected(self._source, "T401", span, message)

    def _fact(self, name: Name, facts: Mapping[str, Fact], within: Value | None = None) -> Fact:
        fact = facts.get(name.text)
        if fact is None:
            raise self._no_fact(name, facts)
        if within is None:
            return fact
        if name.text != "hits":
            message = f"`{name.text}` is not counted within a time, only `hits` is"
            raise rejected(self._source, "T401", name.span.to(within.span), message)
        return hits_within(self._constants.seconds(within, "the time of `hits in`"))

    def _no_fact(self, name: Name, facts: Mapping[str, Fact]) -> Rejected:
        word = name.text
        asks = "place can ask for" if facts is FACTS else "known here:"
        allowed = f"{asks} {', '.join(f'`{fact}`' for fact in facts)}"
        if word == FILL:
            message = "`fill` is how full a tier is, not a fact of a record"
            help_text = "write `when fill > 90% until fill < 80%` after the tiers of a `promote`, `demote` or `evict`"
            return rejected(self._source, "T402", name.span, message, help_text)
        if word in CHANGING_FACTS:
            message = f"`{word}` is not known when a record is placed"
            help_text = f"{allowed}; ask for `{word}` in `promote` or `demote`"
            return rejected(self._source, "T402", name.span, message, help_text)
        if word in self._constants.names:
            message = f"`{word}` is a param; a condition starts with a fact"
            return rejected(self._source, "T402", name.span, message, allowed)
        if word in self._classes:
            message = f"`{word}` is a class: it is a condition by itself, not compared"
            return rejected(self._source, "T402", name.span, message)
        return rejected(self._source, "T402", name.span, *unknown(word, "fact", tuple(facts)))
