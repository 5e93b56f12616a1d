"""The syntax tree of a policy: what was written and where. It knows no facts, units or tiers: `check` gives meaning.

Every node is frozen and carries the Span of its text. Lines and columns are those of the file that the policy came
from, counted from 1 in characters; `start` and `end` are offsets into the policy's own text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the source; `end_line`, `end_column` and `end` are exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int
    start: int
    end: int

    def to(self, last: Span) -> Span:
        """Return the span from the start of this one to the end of `last`."""
        return Span(self.line, self.column, last.end_line, last.end_column, self.start, last.end)


@dataclass(frozen=True, slots=True)
class Source:
    """A policy's text, its name for messages, and where in a file it stands.

    `first_line` is the file line of the text's first line; `column_offset` the characters cut from every line.
    """

    text: str
    name: str = "<policy>"
    first_line: int = 1
    column_offset: int = 0

    def line_text(self, line: int) -> str:
        """Return the text of a file line without its line end, "" outside the policy."""
        lines = self.text.split("\n")
        index = line - self.first_line
        return lines[index].rstrip("\r") if 0 <= index < len(lines) else ""

    def slice(self, span: Span) -> str:
        """Return the text under a span."""
        return self.text[span.start : span.end]


@dataclass(frozen=True, slots=True)
class Name:
    """A bare word: a fact, a tier, a kind or a param."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Number:
    """A number as written and its unit as written, "" without one."""

    number: str
    unit: str
    span: Span


@dataclass(frozen=True, slots=True)
class Text:
    """A quoted string, without its quotes."""

    value: str
    span: Span


Value: TypeAlias = Number | Text | Name


@dataclass(frozen=True, slots=True)
class Comparison:
    """`fact OP value`; `operator` is one of = != < <= > >= however it was written.

    `within` is the 60s of `hits in 60s`.
    """

    fact: Name
    operator: str
    value: Value
    span: Span
    within: Value | None = None


@dataclass(frozen=True, slots=True)
class Membership:
    """`fact in low..high`, both ends included. `within` is the 60s of `hits in 60s in 3..5`."""

    fact: Name
    low: Value
    high: Value
    span: Span
    within: Value | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """A class used as a condition."""

    name: Name
    span: Span


@dataclass(frozen=True, slots=True)
class And:
    """All parts hold."""

    parts: tuple[Condition, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Or:
    """At least one part holds."""

    parts: tuple[Condition, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Not:
    """The part does not hold."""

    part: Condition
    span: Span


@dataclass(frozen=True, slots=True)
class Otherwise:
    """Every record that reaches the rule."""

    span: Span


Condition: TypeAlias = Comparison | Membership | Reference | And | Or | Not | Otherwise


@dataclass(frozen=True, slots=True)
class Chain:
    """The tiers to try in order, as written; `reject` is a name like another."""

    tiers: tuple[Name, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class After:
    """`after COUNT hits in TIME`; `noun` is the word that stands for `hits`."""

    count: Value
    noun: Name
    window: Value
    span: Span


@dataclass(frozen=True, slots=True)
class Place:
    """`place [LABEL:] CONDITION in CHAIN [after ...] [LEVEL]`."""

    condition: Condition
    chain: Chain
    span: Span
    after: After | None = None
    label: Text | None = None
    level: Name | None = None


@dataclass(frozen=True, slots=True)
class Param:
    """`param NAME = VALUE`."""

    name: Name
    value: Value
    span: Span


@dataclass(frozen=True, slots=True)
class Class:
    """`class NAME = CONDITION`."""

    name: Name
    condition: Condition
    span: Span


@dataclass(frozen=True, slots=True)
class Keep:
    """`keep [LABEL:] CONDITION in TIER [LEVEL]`."""

    condition: Condition
    tier: Name
    span: Span
    label: Text | None = None
    level: Name | None = None


@dataclass(frozen=True, slots=True)
class Fill:
    """`when FACT OP VALUE` or `until FACT OP VALUE`; `word` says which. The fact has to be `fill`."""

    word: str
    fact: Name
    operator: str
    value: Value
    span: Span


@dataclass(frozen=True, slots=True)
class By:
    """`by FACT asc` or `by FACT desc`."""

    fact: Name
    descending: bool
    span: Span
    word: str = "by"


@dataclass(frozen=True, slots=True)
class Using:
    """`using ALGORITHM`."""

    algorithm: Name
    span: Span
    word: str = "using"


@dataclass(frozen=True, slots=True)
class Amount:
    """`at most RATE`, `cooldown TIME` or `min residency TIME`; `word` says which."""

    word: str
    value: Value
    span: Span


Clause: TypeAlias = Fill | By | Using | Amount


@dataclass(frozen=True, slots=True)
class Move:
    """`promote`, `demote` or `evict`, in `action`; no condition means every record, no target means evicted."""

    action: str
    condition: Condition | None
    source: Name
    target: Name | None
    clauses: tuple[Clause, ...]
    span: Span
    label: Text | None = None
    level: Name | None = None


@dataclass(frozen=True, slots=True)
class Flush:
    """`flush [LABEL:] every TIME [at most RATE] [LEVEL]`."""

    every: Value
    most: Value | None
    span: Span
    label: Text | None = None
    level: Name | None = None


@dataclass(frozen=True, slots=True)
class Metric:
    """What a requirement is about, two words: `lookup p99`."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Require:
    """`require [LABEL:] METRIC OP VALUE [LEVEL]`; `operator` as in a Comparison."""

    metric: Metric
    operator: str
    value: Value
    span: Span
    label: Text | None = None
    level: Name | None = None


Labelled: TypeAlias = Place | Keep | Move | Flush | Require
"""Statements that may have a label after their first word, and a level at their end."""

Statement: TypeAlias = Param | Class | Labelled


@dataclass(frozen=True, slots=True)
class Document:
    """A policy's statements in file order; those with a syntax error are left out."""

    source: Source
    statements: tuple[Statement, ...]

    @property
    def params(self) -> tuple[Param, ...]:
        """The `param` statements, in file order."""
        return tuple(s for s in self.statements if isinstance(s, Param))

    @property
    def classes(self) -> tuple[Class, ...]:
        """The `class` statements, in file order."""
        return tuple(s for s in self.statements if isinstance(s, Class))

    @property
    def places(self) -> tuple[Place, ...]:
        """The `place` statements, in file order."""
        return tuple(s for s in self.statements if isinstance(s, Place))

    @property
    def moves(self) -> tuple[Keep | Move, ...]:
        """The `keep`, `promote`, `demote` and `evict` statements, in file order."""
        return tuple(s for s in self.statements if isinstance(s, Keep | Move))

    @property
    def flushes(self) -> tuple[Flush, ...]:
        """The `flush` statements, in file order."""
        return tuple(s for s in self.statements if isinstance(s, Flush))

    @property
    def requirements(self) -> tuple[Require, ...]:
        """The `require` statements, in file order."""
        return tuple(s for s in self.statements if isinstance(s, Require))

    @property
    def labelled(self) -> tuple[Labelled, ...]:
        """The statements that have a label, in file order."""
        return tuple(s for s in self.statements if isinstance(s, Labelled) and s.label is not None)
