"""Turn the policy language's `grammar.lark` into the EBNF of `docs/policy.md`: `python tools/ebnf.py [--write]`.

Reads the grammar as text and needs nothing but the standard library. What `parse.py` does beside the grammar, to end
statements at commas and line ends, is the first production; keywords stand in the others as they are written.
"""

from __future__ import annotations

import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
GRAMMAR: Final = ROOT / "flashnest" / "policy" / "grammar.lark"
PAGE: Final = ROOT / "docs" / "policy.md"
OPEN: Final = "```ebnf\n"
CLOSE: Final = "```\n"

_FIRST: Final = ("policy", '{ statement | "," | NEWLINE }')
_LAYOUT: Final = frozenset({"COMMA", "OTHER", "NEWLINE"})
"""Terminals that split statements or are answered with a message: no rule has them."""

_RULE: Final = re.compile(r"^\??(\w+)(?:\.-?\d+)?: (.*(?:\n +\|.*)*)", re.MULTILINE)
_TOKEN: Final = re.compile(r"->|\w+|[()|*+?]")
_LOOKAHEAD: Final = re.compile(r"\(\?!.*?\)")
_LIST: Final = re.compile(r'(\w+) ("\w+") \1 \{ \2 \1 \}')
_WIDTH: Final = 118


@dataclass(slots=True)
class _Reader:
    """Reads the right side of one rule: alternatives of sequences of items, an item perhaps optional or repeated."""

    tokens: list[str]
    words: dict[str, str]
    """Terminals that are keywords or signs, as they are written."""

    def alternatives(self) -> list[str]:
        """Return each alternative in EBNF."""
        found = [self._sequence()]
        while self._takes("|"):
            found.append(self._sequence())
        return found

    def _sequence(self) -> str:
        items: list[str] = []
        while self.tokens and self.tokens[0] not in ("|", ")"):
            if self._takes("->"):  # the name of the alternative's tree
                self.tokens.pop(0)
            else:
                items.append(self._item())
        return " ".join(items)

    def _item(self) -> str:
        if self._takes("("):
            inside = _merged(self.alternatives())
            self._takes(")")
            text, several = " | ".join(inside), len(inside) > 1
        else:
            name = self.tokens.pop(0)
            text, several = self.words.get(name, name), False
        if self._takes("?"):
            return f"[ {text} ]"
        if self._takes("*"):
            return f"{{ {text} }}"
        if self._takes("+"):
            return f"( {text} ) {{ {text} }}" if several else f"{text} {{ {text} }}"
        return f"( {text} )" if several else text

    def _takes(self, token: str) -> bool:
        if self.tokens and self.tokens[0] == token:
            self.tokens.pop(0)
            return True
        return False


def ebnf(grammar: str) -> str:
    """Return the grammar in EBNF, one production a line or one alternative a line where they are long."""
    text = re.sub(r"^//.*\n", "", grammar, flags=re.MULTILINE)
    written = {name: body for name, body in _RULE.findall(text) if name.isupper() and name not in _LAYOUT}
    words = {name: word for name, body in written.items() if (word := _word(body))} | {"WITHIN": '"in"'}
    productions = [(_FIRST[0], [_FIRST[1]])]
    for name, body in _RULE.findall(text):
        if not name.isupper():
            productions.append((name, _merged(_Reader(_TOKEN.findall(body), words).alternatives())))
    productions += [(name, _terminal(body)) for name, body in written.items() if name not in words]
    width = max(len(name) for name, _ in productions)
    return "".join(_shown(name.ljust(width), alternatives) for name, alternatives in productions)


def _word(body: str) -> str:
    """Return a keyword or sign as it is written, "" for a terminal of another kind."""
    if body.startswith('"'):
        return body
    pattern = _LOOKAHEAD.sub("", body.strip("/")).replace("[ \\t]+", " ")
    if re.fullmatch(r"[a-z -]+", pattern):
        return f'"{pattern}"'
    if re.fullmatch(r"[a-z-]+s\?", pattern):
        return f'"{pattern.removesuffix("s?")}" [ "s" ]'
    return ""


def _terminal(body: str) -> list[str]:
    """Return the alternatives of a terminal where they are plain signs, else its regular expression."""
    pattern = body.strip("/")
    signs = pattern.encode().decode("unicode_escape").split("|") if "(" not in pattern and "[" not in pattern else []
    return [" | ".join(f'"{sign}"' for sign in signs)] if signs else [f"? {body} ?"]


def _merged(alternatives: list[str]) -> list[str]:
    """Say once what is the same to a reader: `in` is two tokens to the parser, and `a | a and a { and a }` a list."""
    merged = list(dict.fromkeys(alternatives))
    listed = _LIST.fullmatch(merged[-1])
    if listed and merged[:-1] == [listed[1]]:
        return [f"{listed[1]} {{ {listed[2]} {listed[1]} }}"]
    return merged


def _shown(name: str, alternatives: list[str]) -> str:
    line = f"{name} = {' | '.join(alternatives)} ;"
    if len(line) <= _WIDTH:
        return f"{line}\n"
    indent = " " * len(name)
    if len(alternatives) == 1:
        return textwrap.fill(line, _WIDTH, subsequent_indent=f"{indent}   ") + "\n"
    rest = "".join(f"{indent} | {one}\n" for one in alternatives[1:])
    return f"{name} = {alternatives[0]}\n{rest.rstrip()} ;\n"


def main(arguments: list[str]) -> int:
    """Print the EBNF; with `--write` put it into the page."""
    text = ebnf(GRAMMAR.read_text(encoding="utf-8"))
    if arguments != ["--write"]:
        print(text, end="")
        return 0
    page = PAGE.read_text(encoding="utf-8")
    before, found, rest = page.partition(OPEN)
    if not found:
        print(f"{PAGE} has no {OPEN.strip()} block to write into", file=sys.stderr)
        return 2
    after = rest.partition(CLOSE)[2]
    PAGE.write_text(f"{before}{OPEN}{text}{CLOSE}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
