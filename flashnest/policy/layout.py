"""`policy fmt`: a policy's text in its canonical layout. Text in, text out; reads and writes no files.

One statement a line, words and spaces as `layout_words` spells them, columns as `layout_columns` lays them. Comments
and line ends inside a statement stay where they stand, blank lines become at most one. A line that starts as the card's
sentence does, `>=32-token records in DRAM, ...`, is prose: it keeps its commas, its tiers' case, and has no `place`.

The text may fail its checks, as long as it follows the grammar. What it means never changes: `layout` parses what it
made and compares.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from flashnest.errors import PolicyError
from flashnest.policy.diagnostics import PolicyCheckError
from flashnest.policy.layout_columns import Line, aligned, cells_of
from flashnest.policy.layout_words import COMMA, COMMENT, LINE_END, Word, canonical, joined, shape, words_of
from flashnest.policy.parse import lex, parse
from flashnest.policy.render import render
from flashnest.policy.syntax import Document, Source, Statement

_VERBS = frozenset({"PARAM", "CLASS", "PLACE", "KEEP", "PROMOTE", "DEMOTE", "EVICT", "FLUSH", "REQUIRE"})
_SENTENCE = frozenset({"COMPARE", "EQ", "NUMBER"})
"""What a sentence starts with: `>=32-token records`, `9..31-token records`."""


def layout(source: Source) -> str:
    """Return the text laid out, with a line end after its last line, "" for nothing at all.

    Raises PolicyCheckError where the text does not follow the grammar.
    """
    document, broken = parse(source)
    if broken:
        raise PolicyCheckError(broken, render(broken))
    lines = aligned(_spaced(list(_Layout(document).lines())))
    text = "".join(f"{line}\n" for line in lines)
    if shape(_statements(text)) != shape(document.statements):
        what = "formatting would change what the policy means: a bug of flash-nest; the text is left as it was"
        raise PolicyError(what, fix="please report it with the text")
    return text


def _statements(text: str) -> tuple[Statement, ...] | None:
    document, broken = parse(Source(text))
    return None if broken else document.statements


class _Layout:
    """Turns the rows of a text, its words between two line ends, into lines whose columns are not aligned yet."""

    def __init__(self, document: Document) -> None:
        self._source = document.source
        self._statements = document.statements
        self._rows = list(_rows(words_of(document.source.text, lex(document.source.text))))
        self._ends = {number: i for i, row in enumerate(self._rows) for number, _ in self._parts(row)}
        """The last row of each statement."""
        self._verb = ""
        self._open = 0
        """The statement being written: its first word, and how many parentheses are open."""

    def lines(self) -> Iterator[Line]:
        """Yield the lines of the layout, blank ones included, except those inside a statement."""
        begun = -1
        for i, row in enumerate(self._rows):
            comment = "".join(word.text for word in row if word.kind == COMMENT)
            parts = self._parts(row)
            inside = begun >= 0 and self._ends[begun] >= i
            if parts:
                yield from self._written(i, parts, begun if inside else None, comment)
                begun = parts[-1][0]
            elif comment:
                yield Line(indent=self._indent([]) if inside else 0, comment=comment)
            elif not row and not inside:
                yield Line()

    def _parts(self, row: list[Word]) -> list[tuple[int, list[Word]]]:
        """Return the words of a row by the number of their statement; commas stand between statements."""
        own = [word for word in row if word.kind not in (COMMENT, COMMA)]
        return [(number, list(words)) for number, words in groupby(own, self._number)]

    def _number(self, word: Word) -> int:
        return bisect_right(self._statements, word.start, key=lambda statement: statement.span.start) - 1

    def _written(self, i: int, parts: list[tuple[int, list[Word]]], begun: int | None, comment: str) -> Iterator[Line]:
        """Yield one row: a line for each of its statements, or one line of prose."""
        whole = [number != begun and self._ends[number] == i for number, _ in parts]
        if all(whole) and _is_prose([words[0] for _, words in parts]):
            said = [canonical(self._statements[number], words, self._source, prose=True) for number, words in parts]
            yield Line(cells=(", ".join(joined(words) for words in said),), comment=comment)
            return
        for (number, words), is_whole in zip(parts, whole, strict=True):
            statement = self._statements[number]
            spelled = canonical(statement, words, self._source, prose=False)
            if number != begun and spelled[0].kind not in _VERBS:
                spelled.insert(0, Word("PLACE", "place", spelled[0].start))
            last = comment if number == parts[-1][0] else ""
            yield replace(self._line(number, spelled, whole=is_whole, goes_on=number == begun), comment=last)

    def _line(self, number: int, words: list[Word], *, whole: bool, goes_on: bool) -> Line:
        if whole:
            return cells_of(self._statements[number], words)
        if not goes_on:
            self._verb, self._open = words[0].text, 0
        indent = self._indent(words) if goes_on else 0
        self._open += sum((word.kind == "LPAR") - (word.kind == "RPAR") for word in words)
        return Line(block=f"statement {number}", indent=indent, cells=(joined(words),))

    def _indent(self, words: list[Word]) -> int:
        """Return where a row that goes on with a statement starts: below what follows its first word."""
        closed = next((i for i, word in enumerate(words) if word.kind != "RPAR"), len(words))
        return len(self._verb) + 1 + max(0, self._open - closed)


def _rows(words: Iterator[Word]) -> Iterator[list[Word]]:
    row: list[Word] = []
    for word in words:
        if word.kind == LINE_END:
            yield row
            row = []
        else:
            row.append(word)
    yield row


def _is_prose(starts: list[Word]) -> bool:
    return starts[0].kind in _SENTENCE and all(word.kind not in _VERBS for word in starts)


def _spaced(lines: list[Line]) -> list[Line]:
    """Drop blank lines at both ends and all but one of those that follow each other."""
    kept: list[Line] = []
    for line in lines:
        if not line.is_blank or (kept and not kept[-1].is_blank):
            kept.append(line)
    return kept[:-1] if kept and kept[-1].is_blank else kept
