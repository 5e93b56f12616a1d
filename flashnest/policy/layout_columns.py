"""Columns of a policy's layout, as gofmt has them: neighbouring statements line up, blank lines and comments part them.

place "long": tokens >= 32 in dram else nvme                 # verb, label, condition, target, clauses
place         otherwise    on nvme  after 2 hits in 10min
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from flashnest.policy.layout_words import Word, joined
from flashnest.policy.syntax import Class, Flush, Keep, Move, Param, Place, Require, Statement

_LONGEST_CONDITION: Final = 48
"""A longer one stands aside of the columns: it would push its neighbours' tiers off the screen."""

_LONGEST_COMMENTED: Final = 96
"""A comment behind a longer line does not push those of its neighbours to the right."""

_LEVELS: Final = ("WARN", "ENFORCE")
_CONDITION, _CLAUSES = 2, 4
"""Where a rule's condition and clauses are among its cells."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line. Neighbours with the same `block` line up, "" with none; no cells and no comment is a blank line."""

    block: str = ""
    cells: tuple[str, ...] = ()
    indent: int = 0
    comment: str = ""

    @property
    def is_blank(self) -> bool:
        """Whether nothing is on it."""
        return not self.cells and not self.comment


def cells_of(statement: Statement, words: list[Word]) -> Line:
    """Return the line of a statement that stands on one line: its cells, and which statements it lines up with."""
    if isinstance(statement, Param | Class):
        return Line("param" if isinstance(statement, Param) else "class", (joined(words[:2]), joined(words[2:])))
    head = 3 if [word.kind for word in words[1:3]] == ["STRING", "COLON"] else 1
    start, end = _target(statement, words)
    parts = (words[:1], words[1:head], words[head:start], words[start:end], words[end:])
    return Line("rule", tuple(joined(part) for part in parts))


def _target(statement: Place | Keep | Move | Flush | Require, words: list[Word]) -> tuple[int, int]:
    """Return which words say where records go: from `in`, `on` or `from` to the last tier; a flush's `at most`."""
    match statement:
        case Place(chain=chain):
            first, last = chain.tiers[0], chain.tiers[-1]
        case Keep(tier=tier):
            first = last = tier
        case Move(source=source, target=target):
            first, last = source, target or source
        case Flush() | Require():
            level = next((i for i, word in enumerate(words) if word.kind in _LEVELS), len(words))
            return next((i for i, word in enumerate(words) if word.kind == "AT_MOST"), level), level
    starts = [word.start for word in words]
    return starts.index(first.span.start) - 1, starts.index(last.span.start) + 1


def aligned(lines: list[Line]) -> Iterator[str]:
    """Yield every line as text."""
    for block, found in groupby(lines, lambda line: line.block):
        own = list(found)
        for group in [own] if block else [[line] for line in own]:
            texts = [" " * line.indent + text for line, text in zip(group, _columns(group), strict=True)]
            yield from _commented(texts, [line.comment for line in group])


def _columns(lines: list[Line]) -> list[str]:
    """Return the cells of each line in columns; a row whose condition is too long is laid out alone."""
    rows = [line.cells for line in lines]
    if lines[0].block == "rule" and not all(row[_CONDITION - 1] for row in rows):
        rows = [(row[0], "", f"{row[1]} {row[2]}".strip(), *row[3:]) for row in rows]
    aside = [len(row) > _CONDITION and len(row[_CONDITION]) > _LONGEST_CONDITION for row in rows]
    kept = [row for row, alone in zip(rows, aside, strict=True) if not alone] or rows
    widths = [max(len(cell) for cell in column) for column in zip(*kept, strict=True)]
    widths[:1] = [max((len(row[0]) for row in rows if row), default=0)] if widths else []
    return [
        _row(row, widths[:1] + [0] * len(row) if alone else widths, alone=alone or len(rows) == 1)
        for row, alone in zip(rows, aside, strict=True)
    ]


def _row(cells: tuple[str, ...], widths: list[int], *, alone: bool) -> str:
    """Join cells one space apart, the clauses of neighbours two."""
    text = ""
    for i, cell in enumerate(cells):
        if cell or widths[i]:
            gap = 2 if i == len(cells) - 1 == _CLAUSES and not alone else 1
            text += " " * (gap if i else 0) + cell.ljust(widths[i])
    return text.rstrip()


def _commented(texts: list[str], comments: list[str]) -> Iterator[str]:
    """Put comments behind their lines, neighbours' below each other."""
    behind = [len(text) for text, comment in zip(texts, comments, strict=True) if comment and text]
    column = max((length for length in behind if length <= _LONGEST_COMMENTED), default=0)
    for text, comment in zip(texts, comments, strict=True):
        if not text.strip():
            yield text + comment
        else:
            yield f"{text.ljust(column)}  {comment}" if comment else text
