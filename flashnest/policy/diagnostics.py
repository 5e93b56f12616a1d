"""What a check says about a policy: code, place, labels, advice. `codes` lists the codes, `render` makes it text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from flashnest.errors import PolicyError
from flashnest.policy.syntax import Source, Span


class Severity(StrEnum):
    """An error stops compilation; a warning does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Label:
    """A stretch of source to point at, and what to say about it. `text` may be empty."""

    span: Span
    text: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """A line after the source: `kind` is "example", "help" or "note"."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. `primary` is where it is (None: about the whole text); `secondary` is what it is about."""

    code: str
    message: str
    source: Source
    primary: Label | None = None
    secondary: tuple[Label, ...] = ()
    notes: tuple[Note, ...] = ()
    severity: Severity = Severity.ERROR

    @property
    def line(self) -> int:
        """File line of the finding, counted from 1."""
        return self.primary.span.line if self.primary else self.source.first_line

    @property
    def column(self) -> int:
        """File column of the finding, counted from 1."""
        return self.primary.span.column if self.primary else 1 + self.source.column_offset


class PolicyCheckError(PolicyError):
    """A policy text does not pass its checks. `str()` is the rendered text of all `diagnostics`, many lines."""

    has_heading = True

    def __init__(self, diagnostics: Sequence[Diagnostic], rendered: str) -> None:
        super().__init__(rendered)
        self.diagnostics = tuple(diagnostics)


def close_to(word: str, known: Sequence[str]) -> str | None:
    """Return the known word that `word` most likely misspells, None when none is close."""
    import difflib  # only needed once something is wrong; 5 ms

    by_lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def unknown(word: str, noun: str, known: Sequence[str]) -> tuple[str, str]:
    """Return (message, help) for a word that is not among the `known` ones."""
    listed = ", ".join(f"`{one}`" for one in known)
    close = close_to(word, known)
    advice = f"did you mean `{close}`?" if close else (f"known here: {listed}" if known else "")
    return f"unknown {noun} `{word}`", advice
