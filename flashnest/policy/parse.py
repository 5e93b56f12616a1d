"""Policy text to syntax tree, one statement at a time, so that one mistake does not hide the next.

Knows the grammar and how to say in words what was expected; knows nothing of facts, units or tiers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import resources

from lark import Lark, Token, Tree, UnexpectedToken
from lark.lark import PostLex

from flashnest.policy.build import build, span_of
from flashnest.policy.diagnostics import Diagnostic, Label, Note
from flashnest.policy.expected import advice, in_words, instead_of
from flashnest.policy.facts import FACTS, LATER_STATEMENTS, LATER_WORDS
from flashnest.policy.syntax import Document, Source, Span, Statement

_CONTINUES = frozenset({"AND", "OR", "ELSE", "IN", "ON"})
"""Token types that carry a statement on from the line above."""

_MAX_NESTED = 100
"""Deeper trees would meet Python's recursion limit (1000) in the passes that walk them."""


class _AllTokens(PostLex):
    """Keeps the tokens that no grammar rule uses: they split statements or are answered with a message."""

    always_accept = ("NEWLINE", "COMMA", "OTHER")

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        return stream


@cache
def _parser() -> Lark:
    grammar = resources.files("flashnest.policy").joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(
        grammar, parser="lalr", lexer="basic", start="statement", propagate_positions=True, postlex=_AllTokens()
    )


def parse(source: Source) -> tuple[Document, tuple[Diagnostic, ...]]:
    """Return the statements that could be read, and a diagnostic for each that could not."""
    statements: list[Statement] = []
    diagnostics: list[Diagnostic] = []
    for tokens in _split(list(_parser().lex(source.text))):
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
            ends = following is None or _starts(following) or (depth == 0 and following.type not in _CONTINUES)
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
    return token.type in ("PLACE", "PARAM") or (token.type == "NAME" and str(token) in LATER_STATEMENTS)


def _statement(source: Source, tokens: list[Token]) -> Statement | Diagnostic:
    if tokens[0].type == "NAME" and str(tokens[0]) in LATER_STATEMENTS:
        return _not_yet(source, tokens[0])
    nested = [token for token in tokens if token.type in ("LPAR", "NOT")]
    if len(nested) > _MAX_NESTED:
        message = f"more than {_MAX_NESTED} parentheses and `not` in one rule"
        return Diagnostic("T003", message, source, Label(span_of(nested[_MAX_NESTED], source)))
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
    if found is not None and found.type == "NAME" and str(found) in LATER_WORDS:
        return _not_yet(source, found)
    parser = _parser().parse_interactive()
    for token in before:
        parser.feed_token(token)
    accepts = parser.accepts()  # type: ignore[no-untyped-call]
    if "RANGE" in accepts and _is_bare_word(before[-3:]):
        word = before[-3]
        return _syntax(source, span_of(word, source), f"`{word}` is not a condition", instead_of(word))
    if found is None:
        span, seen = _just_after(span_of(before[-1], source)), "the rule ends here"
    else:
        span, seen = span_of(found, source), f"found `{found}`"
    return _syntax(source, span, f"expected {in_words(accepts)}; {seen}", advice(before, found))


def _syntax(source: Source, span: Span, message: str, help_text: str) -> Diagnostic:
    notes = (Note("help", help_text),) if help_text else ()
    return Diagnostic("T001", message, source, Label(span), notes=notes)


def _is_bare_word(tokens: list[Token]) -> bool:
    """Whether a word stands where a condition should: `default in dram` is no `fact in low..high`."""
    return [token.type for token in tokens] == ["NAME", "IN", "NAME"] and str(tokens[0]) not in FACTS


def _just_after(span: Span) -> Span:
    return Span(span.end_line, span.end_column, span.end_line, span.end_column + 1, span.end, span.end)


def _not_yet(source: Source, word: Token) -> Diagnostic:
    message = f"`{word}` is a reserved word and not available yet"
    help_text = "this release has `param` and `place`; later ones add " + ", ".join(f"`{w}`" for w in LATER_STATEMENTS)
    return Diagnostic("T002", message, source, Label(span_of(word, source)), notes=(Note("help", help_text),))
