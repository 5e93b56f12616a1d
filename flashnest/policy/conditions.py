"""Conditions of a policy to their meaning: facts, classes and constants looked up, with units checked (T40x).

`place` knows the facts fixed at insert, moves know all of them; a class is either, by the facts that it asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from flashnest.policy.atoms import Atoms
from flashnest.policy.diagnostics import Diagnostic, close_to, unknown
from flashnest.policy.facts import FACTS, FILL, MOVE_FACTS, RESERVED, Fact
from flashnest.policy.resolved import ALWAYS, AllOf, AnyOf, Meaning, Negated, ranges
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
        self._atoms = Atoms(source, constants, {node.name.text for node in classes})
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

    @property
    def resolved(self) -> tuple[tuple[Class, Meaning], ...]:
        """The classes that can be used with what they mean, in file order."""
        return tuple((node, self._meanings[name]) for name, node in self.classes.items())

    def of_place(self, condition: Condition) -> Meaning:
        """Return the meaning of a `place` condition; where it is wrong, report it and return ALWAYS."""
        return self._whole(condition, FACTS)

    def of_move(self, condition: Condition | None) -> Meaning:
        """Return the meaning of a move's condition, ALWAYS without one."""
        return ALWAYS if condition is None else self._whole(condition, MOVE_FACTS)

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
                return self._atoms.comparison(atom, facts)
            case Membership():
                return self._atoms.membership(atom, facts)

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
