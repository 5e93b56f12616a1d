"""Conditions of a policy to their meaning: facts, classes and constants looked up, with units checked (T40x).

`place` knows the facts fixed at insert, moves know all of them; a class is either, by the facts that it asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from flashnest.policy.diagnostics import Diagnostic, close_to, unknown
from flashnest.policy.facts import CHANGING_FACTS, FACTS, FILL, MOVE_FACTS, RESERVED, Fact, FactType, hits_within
from flashnest.policy.format import format_condition
from flashnest.policy.resolved import ALWAYS, AllOf, AnyOf, InRange, Meaning, Negated, ranges
from flashnest.policy.syntax import (
    And,
    Class,
    Comparison,
    Condition,
    Membership,
    Name,
    Not,
    Or,
    Otherwise,
    Reference,
    Source,
    Span,
    Value,
)
from flashnest.policy.values import Constants, Rejected, rejected

_MAX_DEEP: Final = 200
"""Deeper conditions, classes written out, would meet Python's recursion limit (1000) in the passes that walk them."""

_MAX_ATOMS: Final = 10_000
"""Classes that name classes twice double in size: 50 lines could ask for 2^50 comparisons."""

_OTHERWISE_WORDS: Final = frozenset({"default", "all", "any", "everything", "else", "rest"})


@dataclass(frozen=True, slots=True)
class _Size:
    """How large a condition is with its classes written out."""

    deep: int
    atoms: int


class Conditions:
    """Resolves the classes of a policy, then any of its conditions. Findings go to `report`."""

    def __init__(
        self, source: Source, constants: Constants, classes: tuple[Class, ...], report: Callable[[Diagnostic], None]
    ) -> None:
        self._source = source
        self._constants = constants
        self._report = report
        self._nodes: dict[str, Class] = {}
        self._meanings: dict[str, Meaning] = {}
        self._sizes: dict[str, _Size] = {}
        self._asks: dict[str, frozenset[str]] = {}
        self._broken: dict[str, Diagnostic] = {}
        self._open: list[str] = []
        self.used: set[str] = set()
        """Classes that some other statement asks for."""
        for node in classes:
            self._define(node)
        for name in self._nodes:
            self._resolve(name)

    @property
    def classes(self) -> Mapping[str, Class]:
        """The classes that can be used, by name."""
        return {name: node for name, node in self._nodes.items() if name in self._meanings}

    def of_place(self, condition: Condition) -> Meaning:
        """Return the meaning of a `place` condition; where it is wrong, report it and return ALWAYS."""
        return self._whole(condition, FACTS)

    def of_move(self, condition: Condition | None) -> Meaning:
        """Return the meaning of a move's condition, ALWAYS without one."""
        return ALWAYS if condition is None else self._whole(condition, MOVE_FACTS)

    def orderable(self, name: Name) -> str:
        """Return the fact of a `by`. Raises Rejected where it has no order."""
        fact = self._fact(name, MOVE_FACTS)
        if fact.type is not FactType.NUMBER:
            listed = ", ".join(f"`{one.name}`" for one in MOVE_FACTS.values() if one.type is FactType.NUMBER)
            raise rejected(self._source, "T401", name.span, f"`{fact.name}` has no order", f"`by` takes {listed}")
        return fact.name

    def _define(self, node: Class) -> None:
        name, span = node.name.text, node.name.span
        taken = self._constants.names.keys() | self._constants.broken.keys()
        if name in RESERVED:
            message = f"`{name}` is a word of the language, not free for a class"
        elif name in self._nodes:
            message = f"class `{name}` is defined twice"
        elif name in taken:
            message = f"`{name}` is a param already"
        else:
            self._nodes[name] = node
            return
        self._report(rejected(self._source, "T407", span, message).diagnostic)

    def _resolve(self, name: str) -> None:
        """Resolve a class once, and before it those that it names."""
        if name in self._meanings or name in self._broken:
            return
        node = self._nodes[name]
        self._open.append(name)
        try:
            self._meanings[name] = self._sized(node.condition, MOVE_FACTS)
            self._sizes[name] = self._size(node.condition)
            self._asks[name] = frozenset(atom.fact.name.split(" ")[0] for atom in ranges(self._meanings[name]))
        except Rejected as stop:
            self._broken[name] = stop.diagnostic
            self._report(stop.diagnostic)
        self._open.pop()

    def _whole(self, condition: Condition, facts: Mapping[str, Fact]) -> Meaning:
        try:
            return self._sized(condition, facts, self._report)
        except Rejected as stop:
            self._report(stop.diagnostic)
            return ALWAYS

    def _sized(
        self, condition: Condition, facts: Mapping[str, Fact], report: Callable[[Diagnostic], None] | None = None
    ) -> Meaning:
        meaning = self._meaning(condition, facts, report)
        size = self._size(condition)
        if size.deep > _MAX_DEEP or size.atoms > _MAX_ATOMS:
            message = f"with its classes written out this holds {size.atoms} comparisons, {size.deep} deep"
            limit = f"at most {_MAX_ATOMS} comparisons and {_MAX_DEEP} deep"
            raise rejected(self._source, "T003", condition.span, message, limit)
        return meaning

    def _size(self, condition: Condition) -> _Size:
        match condition:
            case And(parts) | Or(parts):
                sizes = [self._size(part) for part in parts]
                return _Size(1 + max(size.deep for size in sizes), sum(size.atoms for size in sizes))
            case Not(part):
                size = self._size(part)
                return _Size(1 + size.deep, size.atoms)
            case Reference(name):
                return self._sizes.get(name.text, _Size(1, 1))
            case _:
                return _Size(1, 1)

    def _meaning(
        self, condition: Condition, facts: Mapping[str, Fact], report: Callable[[Diagnostic], None] | None
    ) -> Meaning:
        """Resolve a condition. With `report` an atom that is wrong is reported and the rest is still looked at."""
        match condition:
            case Otherwise():
                return ALWAYS
            case And(parts):
                return AllOf(tuple(self._meaning(part, facts, report) for part in parts))
            case Or(parts):
                return AnyOf(tuple(self._meaning(part, facts, report) for part in parts))
            case Not(part):
                return Negated(self._meaning(part, facts, report))
        try:
            return self._atom(condition, facts)
        except Rejected as stop:
            if report is None:
                raise
            report(stop.diagnostic)
            return ALWAYS  # an error ends compilation after this pass; the rule's other atoms are still checked

    def _atom(self, atom: Comparison | Membership | Reference, facts: Mapping[str, Fact]) -> Meaning:
        match atom:
            case Reference(name):
                return self._class(name, facts)
            case Comparison():
                return self._comparison(atom, facts)
            case Membership():
                return self._membership(atom, facts)

    def _class(self, name: Name, facts: Mapping[str, Fact]) -> Meaning:
        word = name.text
        if word in self._open:
            ring = " -> ".join((*self._open[self._open.index(word) :], word))
            raise rejected(self._source, "T407", name.span, f"class `{word}` is defined by itself: {ring}")
        if word not in self._nodes:
            raise self._no_class(name, facts)
        if len(self._open) > _MAX_DEEP // 4:
            raise rejected(self._source, "T003", name.span, f"classes are nested more than {_MAX_DEEP // 4} deep")
        self._resolve(word)
        if word in self._broken:
            raise Rejected(self._broken[word])
        self.used.add(word)
        changing = self._asks[word] - facts.keys()
        if changing:
            listed = ", ".join(f"`{one}`" for one in sorted(changing))
            message = f"class `{word}` asks for {listed}, not known when a record is placed"
            raise rejected(self._source, "T402", name.span, message, "use it in `promote`, `demote`, `evict` or `keep`")
        return self._meanings[word]

    def _no_class(self, name: Name, facts: Mapping[str, Fact]) -> Rejected:
        word, known = name.text, tuple(self._nodes)
        if word in MOVE_FACTS or word == FILL:
            message, advice = f"`{word}` alone is no condition", "compare it, like `tokens >= 32`"
            return rejected(self._source, "T402", name.span, message, advice)
        if word in self._constants.names or word in self._constants.broken:
            return rejected(self._source, "T402", name.span, f"`{word}` is a param; a condition starts with a fact")
        message, advice = unknown(word, "class", known)
        placing = facts is FACTS
        if placing and (word.lower() in _OTHERWISE_WORDS or (close_to(word, (*known, "otherwise")) == "otherwise")):
            advice = "did you mean `otherwise`?"
        if not known and not advice:
            advice = "a condition compares a fact, like `tokens >= 32`" + (", or is `otherwise`" if placing else "")
        return rejected(self._source, "T402", name.span, message, advice)

    def _comparison(self, atom: Comparison, facts: Mapping[str, Fact]) -> Meaning:
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

    def _membership(self, atom: Membership, facts: Mapping[str, Fact]) -> Meaning:
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
        message = f"`{format_condition(written)}` never holds: `{fact.name}` goes from {fact.low} to {fact.high}"
        raise rejected(self._source, "T404", written.span, message, fact.reason)

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
        if word in self._nodes:
            message = f"`{word}` is a class: it is a condition by itself, not compared"
            return rejected(self._source, "T402", name.span, message)
        return rejected(self._source, "T402", name.span, *unknown(word, "fact", tuple(facts)))
