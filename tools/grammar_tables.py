"""The parser's tables of `flashnest/policy/grammar.lark`, for a faster start: run it after each change of the grammar.

    python tools/grammar_tables.py --write

Without --write it says whether the tables are those of the grammar and of the lark installed: exit code 1 where they
are not. Lark numbers its states by chance, so two sets of tables of one grammar differ as text.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from flashnest.policy.grammar import TABLES, built_parser, grammar_text, loaded_parser, tables_of
from flashnest.policy.parse import AllTokens

PATH = Path(__file__).parents[1] / "flashnest" / "policy" / TABLES


def main() -> int:
    """Write the tables, or say whether they count."""
    text, tokens = grammar_text(), AllTokens()
    if "--write" in sys.argv[1:]:
        tables = tables_of(built_parser(text, tokens), text)
        PATH.write_text(json.dumps(tables, separators=(",", ":")) + "\n", encoding="utf-8")
    fresh = loaded_parser(text, tokens) is not None
    print("the tables are those of the grammar" if fresh else "stale: python tools/grammar_tables.py --write")
    return 0 if fresh else 1


if __name__ == "__main__":
    raise SystemExit(main())
