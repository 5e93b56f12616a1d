"""Lark's trees to our own nodes, with spans in file coordinates. The only file that reads the shape of Lark's trees."""

from __future__ import annotations

from typing import cast

from lark import Token, Tree

from flashnest.policy.syntax import (
    After,
    Amount,
    And,
    By,
    Chain,
    Class,
    Clause,
    Comparison,
    Condition,
    Fill,
    Flush,
    Keep,
    Membership,
    Metric,
    Move,
    Name,
    Not,
    Number,
    Or,
    Otherwise,
    Param,
    Place,
    Reference,
    Require,
    Source,
    Span,
    Statement,
    Text,
    Using,
    Value,
)

OPERATORS = {"==": "=", "\u2264": "<=", "\u2265": ">=", "\u2260": "!="}
"""Other ways to write an operator."""

_ASIDE = ("label", "level")
"""Parts of a statement that stand apart from the rest."""


def span_of(token: Token, source: Source) -> Span:
    """Return a token's span in file coordinates."""
    numbers = (token.line, token.column, token.end_line, token.end_column, token.start_pos, token.end_pos)
    line, column, end_line, end_column, start, end = cast(tuple[int, int, int, int, int, int], numbers)
    return _moved(Span(line, column, end_line, end_column, start, end), source)


def build(tree: Tree[Token], source: Source) -> Statement:
    """Return the statement that Lark read."""
    span, parts = _span(tree, source), _trees(tree)
    match tree.data:
        case "param":
            return Param(_named(tree, source), _value(parts[0], source), span)
        case "class":
            return Class(_named(tree, source), _condition(parts[0], source), span)
        case "keep":
            condition, tier = parts
            return Keep(_condition(condition, source), _name(tier, source), span, *_label_level(tree, source))
        case "place":
            return _place(tree, source)
        case "flush":
            return _flush(tree, source)
        case "require":
            metric, bound = parts
            about = Metric(" ".join(_tokens(metric)), _span(metric, source))
            return Require(about, _operator(tree), _value(bound, source), span, *_label_level(tree, source))
        case _:
            return _move(tree, source)


def _place(tree: Tree[Token], source: Source) -> Place:
    condition, chain, *after = _trees(tree)
    tiers = tuple(_name(tier, source) for tier in _trees(chain))
    place = Chain(tiers, _span(chain, source))
    admission = _after(after[0], source) if after else None
    return Place(_condition(condition, source), place, _span(tree, source), admission, *_label_level(tree, source))


def _flush(tree: Tree[Token], source: Source) -> Flush:
    every, *most = _trees(tree)
    rate = _value(_trees(most[0])[0], source) if most else None
    return Flush(_value(every, source), rate, _span(tree, source), *_label_level(tree, source))


def _label_level(tree: Tree[Token], source: Source) -> tuple[Text | None, Name | None]:
    """Return the label after a statement's first word and the level at its end, None where there is none."""
    aside = {child.data: child for child in tree.children if isinstance(child, Tree) and child.data in _ASIDE}
    label = level = None
    if "label" in aside:
        text = _tokens(aside["label"])[0]
        label = Text(str(text)[1:-1], span_of(text, source))
    if "level" in aside:
        level = _name(aside["level"], source)
    return label, level


def _after(tree: Tree[Token], source: Source) -> After:
    count, window = _trees(tree)
    return After(_value(count, source), _named(tree, source), _value(window, source), _span(tree, source))


def _move(tree: Tree[Token], source: Source) -> Move:
    parts = _trees(tree)
    condition = None if parts[0].data == "from" else _condition(parts.pop(0), source)
    start = _name(_trees(parts.pop(0))[0], source)
    target = _name(_trees(parts.pop(0))[0], source) if parts and parts[0].data == "to" else None
    clauses = tuple(_clause(part, source) for part in parts)
    return Move(str(tree.data), condition, start, target, clauses, _span(tree, source), *_label_level(tree, source))


def _clause(tree: Tree[Token], source: Source) -> Clause:
    span, parts = _span(tree, source), _trees(tree)
    match tree.data:
        case "when" | "until":
            fact, value = parts
            return Fill(str(tree.data), _name(fact, source), _operator(tree), _value(value, source), span)
        case "by":
            return By(_name(parts[0], source), _tokens(tree)[-1].type == "DESC", span)
        case "using":
            return Using(_named(tree, source), span)
        case _:
            return Amount(str(tree.data).replace("_", " "), _value(parts[0], source), span)


def _named(tree: Tree[Token], source: Source) -> Name:
    name = next(token for token in _tokens(tree) if token.type == "NAME")
    return Name(str(name), span_of(name, source))


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
        case "timed_comparison":
            fact, within, value = _trees(tree)
            return Comparison(_name(fact, source), _operator(tree), _value(value, source), span, _value(within, source))
        case "membership":
            fact, low, high = _trees(tree)
            return Membership(_name(fact, source), _value(low, source), _value(high, source), span)
        case "timed_membership":
            fact, within, low, high = _trees(tree)
            bounds = _value(low, source), _value(high, source)
            return Membership(_name(fact, source), *bounds, span, _value(within, source))
        case "reference":
            return Reference(_name(tree, source), span)
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
    return OPERATORS.get(sign, sign)


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
    return [child for child in tree.children if isinstance(child, Tree) and child.data not in _ASIDE]


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
