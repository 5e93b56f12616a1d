"""`grammar.lark` to a parser: from the tables in `grammar_tables.json` where they are its own, else built anew.

Building takes 50 ms, a tenth of what `flash-nest policy check` may take; loading 14. `tools/grammar_tables.py --write`
makes the tables, and they count only for the very text of the grammar and the version of lark that made them.
"""

from __future__ import annotations

import json
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import lark
import xxhash
from lark import Lark
from lark.grammar import Rule
from lark.lark import PostLex
from lark.lexer import TerminalDef

TABLES = "grammar_tables.json"


def make_parser(postlex: PostLex) -> Lark:
    """Return the parser of one statement, its lexer built: else each `Lark.lex` builds one, in 1.5 ms."""
    text = grammar_text()
    parser = loaded_parser(text, postlex) or built_parser(text, postlex)
    parser.lexer = parser._build_lexer()
    return parser


def grammar_text() -> str:
    """Return `grammar.lark`."""
    return _file("grammar.lark").read_text(encoding="utf-8")


def built_parser(text: str, postlex: PostLex) -> Lark:
    """Return the parser of a grammar, its tables computed."""
    return Lark(text, parser="lalr", lexer="basic", start="statement", propagate_positions=True, postlex=postlex)


def tables_of(parser: Lark, text: str) -> dict[str, Any]:
    """Return a parser's tables as plain data, with what they were made of."""
    data, memo = parser.memo_serialize([TerminalDef, Rule])
    data["options"]["postlex"] = None
    return {"lark": lark.__version__, "grammar": _digest(text), "data": data, "memo": memo}


def loaded_parser(text: str, postlex: PostLex) -> Lark | None:
    """Return the parser from its tables, None where they are not there or of another grammar or lark."""
    file = _file(TABLES)
    if not file.is_file():
        return None
    made = json.loads(file.read_text(encoding="utf-8"))
    if (made["lark"], made["grammar"]) != (lark.__version__, _digest(text)):
        return None
    table = made["data"]["parser"]["parser"]
    table["tokens"] = _by_number(table["tokens"])
    table["states"] = {int(state): _by_number(actions) for state, actions in table["states"].items()}
    parser: Lark = Lark._load_from_dict(made["data"], _by_number(made["memo"]), postlex=postlex)  # type: ignore[no-untyped-call]
    return parser


def _by_number(entries: dict[str, Any]) -> dict[int, Any]:
    """Give back the numbers that JSON made text of."""
    return {int(number): entry for number, entry in entries.items()}


def _digest(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())


def _file(name: str) -> Traversable:
    return resources.files("flashnest.policy").joinpath(name)
