"""The parser from its tables is the parser that the grammar makes, and tables of another grammar do not count."""

from __future__ import annotations

from importlib import import_module

import lark
import pytest
from random_texts import corpus

from flashnest.policy.grammar import built_parser, grammar_text, loaded_parser, make_parser
from flashnest.policy.parse import AllTokens, parse
from flashnest.policy.syntax import Source

parse_module = import_module("flashnest.policy.parse")


@pytest.fixture(scope="module")
def built() -> lark.Lark:
    parser = built_parser(grammar_text(), AllTokens())
    parser.lexer = parser._build_lexer()
    return parser


def test_the_tables_are_those_of_the_grammar():
    """`python tools/grammar_tables.py --write` puts it right; without it every start takes 40 ms longer."""
    assert loaded_parser(grammar_text(), AllTokens()) is not None


def test_both_parsers_read_every_case_alike(built, monkeypatch):
    loaded = make_parser(AllTokens())
    monkeypatch.setattr(parse_module, "_parser", lambda: loaded)
    found = [parse(Source(text)) for text in corpus()]
    monkeypatch.setattr(parse_module, "_parser", lambda: built)

    assert [parse(Source(text)) for text in corpus()] == found
    assert any(broken for _, broken in found)


def test_tables_of_another_grammar_or_lark_do_not_count(monkeypatch):
    assert loaded_parser(grammar_text() + "// more", AllTokens()) is None
    monkeypatch.setattr(lark, "__version__", "0.0")
    assert loaded_parser(grammar_text(), AllTokens()) is None
    assert make_parser(AllTokens()).options.parser == "lalr"


def test_without_tables_the_grammar_is_built(monkeypatch):
    monkeypatch.setattr("flashnest.policy.grammar.TABLES", "none.json")

    assert loaded_parser(grammar_text(), AllTokens()) is None
