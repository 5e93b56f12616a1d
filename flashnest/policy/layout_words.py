"""The words of a policy in canonical spelling, with their places: tokens and comments in, words out. Knows no lines.

Tiers and algorithms in lower case, operators in ASCII, units beside their numbers, texts in double quotes, and
`>=32-token records` as `tokens >= 32`. What a word means never changes; `layout` decides where words stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass

from lark import Token

from flashnest.policy.build import OPERATORS
from flashnest.policy.format import format_condition, format_value
from flashnest.policy.syntax import (
    Chain,
    Comparison,
    Keep,
    Membership,
    Move,
    Name,
    Number,
    Source,
    Span,
    Statement,
    Text,
    Using,
)

LINE_END, COMMA, COMMENT = "NEWLINE", "COMMA", "COMMENT"
"""Kinds of the words that stand between statements; other kinds are the grammar's names of tokens."""

_GLUED_LEFT = frozenset({"RPAR", "COMMA", "COLON", "RANGE", "DASH_TOKEN"})
_GLUED_RIGHT = frozenset({"LPAR", "RANGE"})


@dataclass(frozen=True, slots=True)
class Word:
    """A word as it will be written; `start` is the offset in the text that it came from."""

    kind: str
    text: str
    start: int


def words_of(text: str, tokens: list[Token]) -> Iterator[Word]:
    """Yield every token as a word, and every comment: they are what the gaps between tokens hold."""
    at = 0
    for token in tokens:
        start, end = token.start_pos or 0, token.end_pos or 0
        yield from _comment(text, at, start)
        yield Word(token.type, _spelled(token), start)
        at = end
    yield from _comment(text, at, len(text))


def _comment(text: str, start: int, end: int) -> Iterator[Word]:
    sign = text.find("#", start, end)
    if sign >= 0:
        yield Word(COMMENT, text[sign:end].rstrip(), sign)


def _spelled(token: Token) -> str:
    word = str(token)
    match token.type:
        case "COMPARE":
            return OPERATORS.get(word, word)
        case "STRING":
            return format_value(Text(word[1:-1], Span(0, 0, 0, 0, 0, 0)))
        case "NEWLINE":
            return word
        case _:
            return " ".join(word.split())


def canonical(statement: Statement, words: list[Word], source: Source, *, prose: bool) -> list[Word]:
    """Return a statement's words with its numbers, tiers and sentences rewritten; `prose` leaves the last two alone.

    What is written over several lines is left alone too: its line ends may have comments.
    """
    spelled = {
        span.start: (span.end, text)
        for span, text in _rewritten(statement, source, prose=prose)
        if "\n" not in source.slice(span)
    }
    done: list[Word] = []
    until = 0
    for word in words:
        if word.start < until:
            continue
        if word.start in spelled:
            until, text = spelled[word.start]
            word = Word("NAME" if word.kind in ("COMPARE", "EQ") else word.kind, text, word.start)
        done.append(word)
    return done


def _rewritten(node: object, source: Source, *, prose: bool) -> Iterator[tuple[Span, str]]:
    """Yield the stretches of a tree that have one canonical spelling."""
    if isinstance(node, Number):
        yield node.span, format_value(node)
    elif isinstance(node, Comparison | Membership) and not prose and source.slice(node.fact.span) != node.fact.text:
        yield node.span, format_condition(node)
        return
    elif not prose:
        yield from ((name.span, name.text.lower()) for name in _in_any_case(node))
    if isinstance(node, tuple):
        for part in node:
            yield from _rewritten(part, source, prose=prose)
    elif is_dataclass(node):
        for field in fields(node):
            yield from _rewritten(getattr(node, field.name), source, prose=prose)


def _in_any_case(node: object) -> tuple[Name, ...]:
    """Return the names of a node that may be written in any case."""
    match node:
        case Chain(tiers):
            return tiers
        case Keep():
            return (node.tier,)
        case Move():
            return (node.source,) if node.target is None else (node.source, node.target)
        case Using(algorithm):
            return (algorithm,)
        case _:
            return ()


def joined(words: list[Word]) -> str:
    """Return words on one line with the canonical spaces."""
    text = ""
    for i, word in enumerate(words):
        apart = i > 0 and word.kind not in _GLUED_LEFT and words[i - 1].kind not in _GLUED_RIGHT
        if apart and not (words[i - 1].kind in ("COMPARE", "EQ") and _is_sentence(words, i)):
            text += " "
        text += word.text
    return text


def _is_sentence(words: list[Word], i: int) -> bool:
    return i + 1 < len(words) and words[i + 1].kind == "DASH_TOKEN"


def shape(node: object, in_any_case: frozenset[int] = frozenset()) -> object:
    """Return a tree as plain tuples without its spans, tiers in lower case: equal shapes mean the same."""
    if isinstance(node, tuple):
        return tuple(shape(part, in_any_case) for part in node)
    if isinstance(node, Name) and id(node) in in_any_case:
        return ("Name", node.text.lower())
    if not is_dataclass(node) or isinstance(node, Span):
        return None if isinstance(node, Span) else node
    names = frozenset(id(name) for name in _in_any_case(node))
    return (type(node).__name__, *(shape(getattr(node, field.name), names) for field in fields(node)))
