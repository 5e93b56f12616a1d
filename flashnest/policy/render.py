"""Diagnostics as text, in rustc's manner: code, place, source lines with carets, advice. Plain ASCII around the source.

Never wraps a line (a wrapped line breaks its carets) and never colours: what is printed is what a test compares.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from flashnest.policy.diagnostics import Diagnostic
from flashnest.policy.syntax import Source, Span


@dataclass(frozen=True, slots=True)
class _Mark:
    """A label on one line: columns counted from 0 in the shown text, `end` exclusive."""

    column: int
    end: int
    sign: str
    text: str


def render(diagnostics: Iterable[Diagnostic]) -> str:
    """Return the text of all diagnostics, a blank line between two."""
    return "\n\n".join(render_one(one) for one in diagnostics)


def render_one(diagnostic: Diagnostic) -> str:
    """Return the text of one diagnostic, without a final line end."""
    source = diagnostic.source
    marks = _marks_by_line(diagnostic)
    width = max((len(str(line)) for line in marks), default=1)
    gutter = " " * (width + 2) + "|"
    out = [f"{diagnostic.severity}[{diagnostic.code}]: {diagnostic.message}"]
    out.append(f"{' ' * (width + 1)}--> {source.name}:{diagnostic.line}:{diagnostic.column}")
    if marks:
        out.append(gutter)
    previous = None
    for line, on_line in sorted(marks.items()):
        if previous is not None and line > previous + 1:
            out.append("...")
        out.append(f" {line:>{width}} | {_shown(source.line_text(line))}".rstrip())
        out += [f"{gutter} {row}" for row in _mark_rows(source.line_text(line), on_line)]
        previous = line
    if marks and diagnostic.notes:
        out.append(gutter)
    out += [f"{' ' * (width + 2)}= {note.kind}: {note.text}" for note in diagnostic.notes]
    return "\n".join(out)


def _marks_by_line(diagnostic: Diagnostic) -> dict[int, list[_Mark]]:
    marks: dict[int, list[_Mark]] = {}
    labels = [("-", label) for label in diagnostic.secondary]
    if diagnostic.primary is not None:
        labels.append(("^", diagnostic.primary))
    for sign, label in labels:
        column, end = _columns(diagnostic.source, label.span)
        marks.setdefault(label.span.line, []).append(_Mark(column, end, sign, label.text))
    return marks


def _columns(source: Source, span: Span) -> tuple[int, int]:
    """Return where a span is on its first line; a span of several lines ends where that line ends."""
    column = span.column - 1 - source.column_offset
    if span.end_line == span.line:
        end = span.end_column - 1 - source.column_offset
    else:
        end = len(source.line_text(span.line).rstrip())
    return column, max(end, column + 1)


def _mark_rows(line: str, marks: list[_Mark]) -> list[str]:
    """Lay out the rows under a line: the last label beside its underline, the others hung below, right to left."""
    ordered = sorted(marks, key=lambda mark: (mark.column, mark.sign))
    last = ordered[-1]
    underline = ""
    for mark in ordered:
        start, end = _cells(line, mark.column), _cells(line, mark.end)
        underline = underline[:start].ljust(start) + mark.sign * (end - start) + underline[end:]
    rows = [f"{underline} {last.text}".rstrip()]
    hung = [mark for mark in ordered[:-1] if mark.text]
    if hung:
        rows.append(_bars(line, hung))
    while hung:
        mark = hung.pop()
        start = _cells(line, mark.column)
        rows.append(_bars(line, hung).ljust(start)[:start] + mark.text)
    return rows


def _bars(line: str, marks: list[_Mark]) -> str:
    row = ""
    for mark in marks:
        row = row.ljust(_cells(line, mark.column)) + "|"
    return row


def _cells(line: str, column: int) -> int:
    """Return how many terminal cells come before a column; wide characters take two."""
    return sum(_cell_width(char) for char in line[:column]) + max(0, column - len(line))


def _cell_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _shown(line: str) -> str:
    """Return the line with every control character as one space, so that carets stay under their text."""
    return "".join(" " if unicodedata.category(char).startswith("C") else char for char in line)
