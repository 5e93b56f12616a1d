"""Conditions with their meaning resolved: integer ranges of facts, joined by and, or and not. No text, no units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from flashnest.policy.facts import Fact
from flashnest.policy.goals import Level
from flashnest.policy.syntax import Place, Span
from flashnest.record import Admission, Tier


@dataclass(frozen=True, slots=True)
class InRange:
    """The fact's code is in low..high, both included; empty where low > high."""

    fact: Fact
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class AllOf:
    """All parts hold; true without parts."""

    parts: tuple[Meaning, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one part holds."""

    parts: tuple[Meaning, ...]


@dataclass(frozen=True, slots=True)
class Negated:
    """The part does not hold."""

    part: Meaning


Meaning: TypeAlias = InRange | AllOf | AnyOf | Negated

ALWAYS = AllOf(())
"""What `otherwise` means."""

NEVER = AnyOf(())
"""What no record satisfies."""


class Numbered:
    """How a rule is called in messages, and whether it acts."""

    __slots__ = ()
    number: int
    name: str | None
    level: Level

    @property
    def span(self) -> Span:
        """Where the rule stands."""
        raise NotImplementedError

    @property
    def line(self) -> int:
        """File line of the rule."""
        return self.span.line

    @property
    def title(self) -> str:
        """The rule's name in a message: `rule 2 "long ones"`."""
        return title(self.number, self.name)

    @property
    def called(self) -> str:
        """The rule's name in a message and where it is: `rule 2 "long ones" (line 5)`."""
        return f"{self.title} (line {self.line})"

    @property
    def acts(self) -> bool:
        """Whether the rule decides; a trial does not."""
        return self.level is Level.ENFORCE


@dataclass(frozen=True, slots=True)
class Rule(Numbered):
    """A `place` rule: its number counted from 1, its canonical text, what it matches and where records go.

    `chain` is the tiers to try in order, `()` to reject; `admission` what a record has to do first, None: nothing;
    `name` its label, None without one. A rule at level `warn` is a trial: it never decides.
    """

    number: int
    text: str
    place: Place
    meaning: Meaning
    chain: tuple[Tier, ...]
    admission: Admission | None = None
    name: str | None = None
    level: Level = Level.ENFORCE

    @property
    def span(self) -> Span:
        """Where the rule stands."""
        return self.place.span

    @property
    def verb(self) -> str:
        """The rule's first word."""
        return "place"


def title(number: int, name: str | None) -> str:
    """Return a rule's name in a message: `rule 2 "long ones"`."""
    return f"rule {number}" if name is None else f'rule {number} "{name}"'


def ranges(meaning: Meaning) -> Iterator[InRange]:
    """Yield every atom of a condition."""
    match meaning:
        case InRange():
            yield meaning
        case Negated(part):
            yield from ranges(part)
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from ranges(part)
