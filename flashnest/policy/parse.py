"""Policy text to syntax tree, one statement at a time, so that one mistake does not hide the next.

Knows the grammar and how to say in words what was expected; knows nothing of facts, units or tiers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from lark import Lark, Token, Tree, UnexpectedToken
from lark.lark import PostLex

from flashnest.policy.build import build, span_of
from flashnest.policy.diagnostics import Diagnostic, Label, Note
from flashnest.policy.expected import advice, in_words
from flashnest.policy.facts import MOVE_FACTS, REJECT, TIERS
from flashnest.policy.grammar import make_parser
from flashnest.policy.syntax import Document, Source, Span, Statement

_CLAUSES = frozenset({"FROM", "TO", "WHEN", "UNTIL", "BY", "USING", "AT_MOST", "COOLDOWN", "MIN_RESIDENCY", "AFTER"})
_CONTINUES = frozenset({"AND", "OR", "ELSE", "IN", "ON", "EVERY", "WARN", "ENFORCE"}) | _CLAUSES
"""Token types that carry a statement on from the line above."""

_CONTINUES_BROKEN = frozenset({"at", "min", "most", "residency"})
"""Words of a clause in two words: alone at the start of a line they are a mistake in the statement above."""

_STARTS = frozenset({"PLACE", "PARAM", "CLASS", "KEEP", "PROMOTE", "DEMOTE", "EVICT", "FLUSH", "REQUIRE"})
"""Token types that always start a statement."""

_MAX_NESTED = 100
"""Deeper trees would meet Python's recursion limit (1000) in the passes that walk them."""


class AllTokens(PostLex):
    """Keeps the tokens that no grammar rule uses: they split statements or are answered with a message."""

    always_accept = ("NEWLINE", "COMMA", "OTHER")

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        return stream


@cache
def _parser() -> Lark:
    return make_parser(AllTokens())


def lex(text: str) -> list[Token]:
    """Return all tokens of a text, line ends and commas among them; comments are in the gaps between tokens."""
    return list(_parser().lex(text))


def parse(source: Source) -> tuple[Document, tuple[Diagnostic, ...]]:
    """Return the statements that could be read, and a diagnostic for each that could not."""
    statements: list[Statement] = []
    diagnostics: list[Diagnostic] = []
    for tokens in _split(lex(source.text)):
        read = _statement(source, tokens)
        if isinstance(read, Diagnostic):
            diagnostics.append(read)
        else:
            statements.append(read)
    return Document(source, tuple(statements)), tuple(diagnostics)


def _split(tokens: list[Token]) -> Iterator[list[Token]]:
    """Yield the tokens of each statement: it ends at a comma or line end outside parentheses, unless carried on."""
    current: list[Token] = []
    depth = 0
    for token, following in _with_following(tokens):
        if token.type == "NEWLINE":
            ends = following is None or _starts(following) or (depth == 0 and not _continues(following))
        else:
            ends = token.type == "COMMA" and depth == 0
        if ends:
            if current:
                yield current
            current, depth = [], 0
        elif token.type != "NEWLINE":
            current.append(token)
            depth += (token.type == "LPAR") - (token.type == "RPAR")
    if current:
        yield current


def _with_following(tokens: list[Token]) -> Iterator[tuple[Token, Token | None]]:
    """Pair each token with the next one that is no line end."""
    following: list[Token | None] = []
    later: Token | None = None
    for token in reversed(tokens):
        following.append(later)
        later = later if token.type == "NEWLINE" else token
    return zip(tokens, reversed(following), strict=True)


def _starts(token: Token) -> bool:
    return token.type in _STARTS


def _continues(token: Token) -> bool:
    return token.type in _CONTINUES or (token.type == "NAME" and str(token) in _CONTINUES_BROKEN)


def _within(tokens: list[Token]) -> Iterator[Token]:
    """Tell the `in` of a range or a time from the `in` before tiers: a parser that sees one token ahead cannot."""
    for i, token in enumerate(tokens):
        if token.type == "IN" and _is_within(tokens[i - 1] if i else None, tokens[i + 1 : i + 3]):
            yield Token.new_borrow_pos("WITHIN", str(token), token)
        else:
            yield token


def _is_within(before: Token | None, after: list[Token]) -> bool:
    kinds = [token.type for token in after]
    if kinds[:1] == ["NUMBER"] or (kinds[:1] == ["NAME"] and kinds[1:] in (["RANGE"], ["COMPARE"], ["EQ"], ["IN"])):
        return True
    names_fact = before is not None and before.type == "NAME" and str(before) in MOVE_FACTS
    return names_fact and kinds[:1] == ["NAME"] and str(after[0]).lower() not in (*TIERS, REJECT)


def _statement(source: Source, tokens: list[Token]) -> Statement | Diagnostic:
    nested = [token for token in tokens if token.type in ("LPAR", "NOT")]
    if len(nested) > _MAX_NESTED:
        message = f"more than {_MAX_NESTED} parentheses and `not` in one rule"
        return Diagnostic("T003", message, source, Label(span_of(nested[_MAX_NESTED], source)))
    tokens = list(_within(tokens))
    parser = _parser().parse_interactive()
    for i, token in enumerate(tokens):
        try:
            parser.feed_token(token)
        except UnexpectedToken:
            return _unexpected(source, tokens[:i], token)
    try:
        tree = parser.feed_eof(tokens[-1])  # type: ignore[no-untyped-call]  # lark types only half of this class
    except UnexpectedToken:
        return _unexpected(source, tokens, None)
    assert isinstance(tree, Tree), "the start rule of the grammar makes a tree"
    return build(tree, source)


def _unexpected(source: Source, before: list[Token], found: Token | None) -> Diagnostic:
    """Describe a syntax error: `before` was read, then came `found` (None: the statement ended)."""
    parser = _parser().parse_interactive()
    for token in before:
        parser.feed_token(token)
    accepts = parser.accepts()  # type: ignore[no-untyped-call]
    if found is None:
        span, seen = _just_after(span_of(before[-1], source)), "the rule ends here"
    else:
        span, seen = span_of(found, source), f"found `{found}`"
    return _syntax(source, span, f"expected {in_words(accepts)}; {seen}", advice(before, found))


def _syntax(source: Source, span: Span, message: str, help_text: str) -> Diagnostic:
    notes = (Note("help", help_text),) if help_text else ()
    return Diagnostic("T001", message, source, Label(span), notes=notes)


def _just_after(span: Span) -> Span:
    return Span(span.end_line, span.end_column, span.end_line, span.end_column + 1, span.end, span.end)
