"""Lark's trees to our own nodes, with spans in file coordinates. The only file that reads the shape of Lark's trees."""

from __future__ import annotations

from typing import cast

from lark import Token, Tree

from flashnest.policy.syntax import (
    And,
    Chain,
    Comparison,
    Condition,
    Membership,
    Name,
    Not,
    Number,
    Or,
    Otherwise,
    Param,
    Place,
    Source,
    Span,
    Statement,
    Text,
    Value,
)

_OPERATORS = {"==": "=", "\u2264": "<=", "\u2265": ">=", "\u2260": "!="}
"""Other ways to write an operator."""


def span_of(token: Token, source: Source) -> Span:
    """Return a token's span in file coordinates."""
    numbers = (token.line, token.column, token.end_line, token.end_column, token.start_pos, token.end_pos)
    line, column, end_line, end_column, start, end = cast(tuple[int, int, int, int, int, int], numbers)
    return _moved(Span(line, column, end_line, end_column, start, end), source)


def build(tree: Tree[Token], source: Source) -> Statement:
    """Return the statement that Lark read."""
    if tree.data == "param":
        name = next(token for token in _tokens(tree) if token.type == "NAME")
        value = _value(_trees(tree)[0], source)
        return Param(Name(str(name), span_of(name, source)), value, _span(tree, source))
    condition, chain = _trees(tree)
    tiers = tuple(_name(tier, source) for tier in _trees(chain))
    return Place(_condition(condition, source), Chain(tiers, _span(chain, source)), _span(tree, source))


def _condition(tree: Tree[Token], source: Source) -> Condition:
    span = _span(tree, source)
    match tree.data:
        case "otherwise":
            return Otherwise(span)
        case "disjunction":
            return Or(_parts(tree, source), span)
        case "conjunction":
            return And(_parts(tree, source), span)
        case "negation":
            return Not(_parts(tree, source)[0], span)
        case "group":
            return _parts(tree, source)[0]
        case "comparison":
            fact, value = _trees(tree)
            return Comparison(_name(fact, source), _operator(tree), _value(value, source), span)
        case "membership":
            fact, low, high = _trees(tree)
            return Membership(_name(fact, source), _value(low, source), _value(high, source), span)
        case _:
            return _sentence(tree, source)


def _sentence(tree: Tree[Token], source: Source) -> Condition:
    """`>=32-token records` is `tokens >= 32` and `9..31-token records` is `tokens in 9..31`."""
    span = _span(tree, source)
    dash = next(token for token in _tokens(tree) if token.type == "DASH_TOKEN")
    fact = Name("tokens", span_of(dash, source))
    bounds = [_value(bound, source) for bound in _trees(tree)]
    if tree.data == "sentence_range":
        return Membership(fact, bounds[0], bounds[1], span)
    return Comparison(fact, _operator(tree), bounds[0], span)


def _parts(tree: Tree[Token], source: Source) -> tuple[Condition, ...]:
    return tuple(_condition(part, source) for part in _trees(tree))


def _operator(tree: Tree[Token]) -> str:
    sign = next(str(token) for token in _tokens(tree) if token.type in ("COMPARE", "EQ"))
    return _OPERATORS.get(sign, sign)


def _value(tree: Tree[Token], source: Source) -> Value:
    if tree.data == "name":
        return _name(tree, source)
    words = [str(token) for token in _tokens(tree)]
    if tree.data == "string":
        return Text(words[0][1:-1], _span(tree, source))
    return Number(words[0], words[1] if len(words) > 1 else "", _span(tree, source))


def _name(tree: Tree[Token], source: Source) -> Name:
    return Name(str(_tokens(tree)[0]), _span(tree, source))


def _trees(tree: Tree[Token]) -> list[Tree[Token]]:
    return [child for child in tree.children if isinstance(child, Tree)]


def _tokens(tree: Tree[Token]) -> list[Token]:
    return [child for child in tree.children if isinstance(child, Token)]


def _span(tree: Tree[Token], source: Source) -> Span:
    meta = tree.meta
    span = Span(meta.line, meta.column, meta.end_line, meta.end_column, meta.start_pos, meta.end_pos)
    return _moved(span, source)


def _moved(span: Span, source: Source) -> Span:
    """Turn positions in the policy's text into positions in its file."""
    lines, columns = source.first_line - 1, source.column_offset
    return Span(
        span.line + lines, span.column + columns, span.end_line + lines, span.end_column + columns, span.start, span.end
    )
