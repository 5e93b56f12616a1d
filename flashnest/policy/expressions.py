"""Values and conditions of a policy as written, and where: the lower half of the syntax tree, which `syntax` hands out.

Every node is frozen and carries the Span of its text.
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
