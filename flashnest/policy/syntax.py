"""The syntax tree of a policy: what was written and where. It knows no facts, units or tiers: `check` gives meaning.

Every node is frozen and carries the Span of its text. Lines and columns are those of the file that the policy came
from, counted from 1 in characters; `start` and `end` are offsets into the policy's own text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from flashnest.policy.expressions import (
    And,
    Comparison,
    Condition,
    Membership,
    Name,
    Not,
    Number,
    Or,
    Otherwise,
    Reference,
    Source,
    Span,
    Text,
    Value,
)

__all__ = [
    "After",
    "Amount",
    "And",
    "By",
    "Chain",
    "Class",
    "Clause",
    "Comparison",
    "Condition",
    "Document",
    "Fill",
    "Flush",
    "Keep",
    "Labelled",
    "Membership",
    "Metric",
    "Move",
    "Name",
    "Not",
    "Number",
    "Or",
    "Otherwise",
    "Param",
    "Place",
    "Reference",
    "Require",
    "Source",
    "Span",
    "Statement",
    "Text",
    "Using",
    "Value",
]


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
