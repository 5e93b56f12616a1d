"""Texts for fuzzing: sentences of `grammar.lark` with words that fit or nearly fit, and mutations of any text.

Driven by a `random.Random`, so that hypothesis can shrink them and a benchmark can make a million of them.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any

import yaml
from lark import Lark
from lark.grammar import Rule
from random_policies import move_text, place_text

ROOT = Path(__file__).parents[2]

WORDS = {
    "tier": ("dram", "nvme", "vram", "DRAM", "NVMe", "reject", "ssd"),
    "fact": ("tokens", "kind", "namespace", "bytes", "hits", "idle", "age", "refs", "accept", "fill", "token"),
    "metric": ("lookup", "p50", "p99", "step", "nvme", "writes", "life", "dram", "hits", "p95"),
    "using": ("s3fifo", "sieve", "lru", "fifo", "LRU", "arc"),
    "admission": ("hits", "hit", "times"),
    "quantity": ("tokens", "KiB", "GiB", "MB", "B", "s", "min", "h", "d", "ms", "us", "y", "tok", "Gb", "GB"),
    "bound": ("long", "short", "hour", "rate", "nix"),
    "value": ("long", "short", "ngram", "chunk", "tenant", "hour", "nix"),
    "": ("long", "short", "hour", "rate", "tenant", "popular", "cold", "tokens", "at", "min", "nix", "place"),
}
"""Words for a NAME, by the rule of the grammar that it stands in."""

TERMINALS = {
    "NUMBER": ("0", "1", "2", "8", "9", "31", "32", "60", "80", "90", "255", "256", "4095", "1_000", "0.5", "9" * 40),
    "STRING": ('"acme"', "'globex'", '""', "'say \"x\"'", '"\u00e9\u4e16"', '"# no comment"', '"1"'),
    "COMPARE": ("==", "!=", "<", "<=", ">", ">=", "\u2264", "\u2265", "\u2260"),
    "UNIT": ("%", "rec/s", "MB/s", "KiB/s", "x/y"),
    "AT_MOST": ("at most", "at\tmost"),
    "MIN_RESIDENCY": ("min residency",),
    "RECORDS": ("records", "record"),
    "DASH_TOKEN": ("-token", "-tokens"),
    "WITHIN": ("in",),
    "LPAR": ("(",),
    "RPAR": (")",),
    "RANGE": ("..",),
    "AND": ("and",),
}
SPACES = (" ",) * 12 + ("", "  ", "\t", "\n", "\n  ", " # why\n", "\r\n", "\ufeff")
ENDS = ("\n",) * 6 + (", ", "\n\n", " # so\n", ",\n", "\r\n", " ")
NOISE = (
    "\x00",
    "\x85",
    "\u2028",
    "\U0001f600",
    "\u0301",
    "\\",
    "\t",
    "\x0b",
    "$",
    "|",
    ":",
    "'",
    '"',
    "#",
    "\n",
    "(",
    ")",
    "..",
    ",",
)
_DEEPEST = (2, 3, 3, 4, 4, 5, 8)
"""How deep the tree of a statement grows before it is ended: mostly short ones, so that a million take minutes."""


class Grammar:
    """The rules of `grammar.lark`, to make sentences from."""

    def __init__(self) -> None:
        text = resources.files("flashnest.policy").joinpath("grammar.lark").read_text(encoding="utf-8")
        lark = Lark(text, parser="lalr", lexer="basic", start="statement")
        self._literals = {one.name: one.pattern.value for one in lark.terminals if one.pattern.type == "str"}
        self._rules: dict[str, list[Rule]] = {}
        for rule in lark.rules:
            self._rules.setdefault(str(rule.origin.name), []).append(rule)
        self._heights = self._measured()

    def statement(self, random: Random) -> list[str]:
        """Return the tokens of a statement that follows the grammar."""
        return self._expanded("statement", random, random.choice(_DEEPEST))

    def _measured(self) -> dict[str, int]:
        """Return the height of the lowest tree of each rule, so that deep ones can be ended."""
        heights: dict[str, int] = {}
        while len(heights) < len(self._rules):
            for name, rules in self._rules.items():
                known = [self._height(rule, heights) for rule in rules]
                if name not in heights and min(known) < 1000:
                    heights[name] = min(known)
        return heights

    def _height(self, rule: Rule, heights: dict[str, int]) -> int:
        return 1 + max((heights.get(str(part.name), 1000) for part in rule.expansion if not part.is_term), default=0)

    def _expanded(self, name: str, random: Random, left: int) -> list[str]:
        rules = self._rules[name]
        if left <= 0:
            lowest = min(self._height(rule, self._heights) for rule in rules)
            rules = [rule for rule in rules if self._height(rule, self._heights) == lowest]
        tokens: list[str] = []
        for part in random.choice(rules).expansion:
            if part.is_term:
                tokens.append(self._terminal(str(part.name), name, random))
            else:
                tokens += self._expanded(str(part.name), random, left - 1)
        return tokens

    def _terminal(self, terminal: str, rule: str, random: Random) -> str:
        if terminal == "NAME":
            where = rule if random.random() < 0.95 and rule in WORDS else ""
            return random.choice(WORDS[where])
        return random.choice(TERMINALS.get(terminal) or (self._literals[terminal],))


@cache
def grammar() -> Grammar:
    return Grammar()


def sentences(random: Random) -> str:
    """Return a policy of one to six statements of the grammar, spaced well or badly."""
    tidy = random.random() < 0.5
    text = random.choice(
        ("", "", "", "", "param long = 32 tokens\nparam hour = 1h\nclass popular = hits in 60s >= 3\n")
    )
    for _ in range(random.choice((1, 1, 1, 1, 1, 2, 2, 6))):
        tokens = grammar().statement(random)
        text += "".join(token + (" " if tidy else random.choice(SPACES)) for token in tokens)
        text += "\n" if tidy else random.choice(ENDS)
    return text + random.choice(("", "place otherwise in dram else nvme\n"))


@cache
def corpus() -> tuple[str, ...]:
    """Return the policies of the cases and the docs: they use every word."""
    texts = []
    for path in sorted((ROOT / "tests" / "policy" / "cases").glob("*.yaml")):
        cases: list[Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        texts += [case["policy"] if isinstance(case, dict) else str(case[0]) for case in cases]
    return tuple(texts)


@cache
def tiering_files() -> tuple[str, ...]:
    """Return the shipped tiering files."""
    folder = ROOT / "flashnest" / "conf" / "tiering"
    return tuple(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.yaml")))


def mutated(text: str, random: Random) -> bytes:
    """Return a text with one to four things wrong, not always as UTF-8."""
    data = text.encode()
    for _ in range(random.randint(1, 4)):
        data = random.choice(_MUTATIONS)(data, random)
    return data


def _slice(data: bytes, random: Random) -> tuple[int, int]:
    start = random.randint(0, len(data))
    return start, min(len(data), start + int(min(random.expovariate(1 / 6), 1000.0)))


def _deleted(data: bytes, random: Random) -> bytes:
    start, end = _slice(data, random)
    return data[:start] + data[end:]


def _doubled(data: bytes, random: Random) -> bytes:
    start, end = _slice(data, random)
    return data[:end] + data[start:end] * random.choice((1, 1, 2, 40)) + data[end:]


def _flipped(data: bytes, random: Random) -> bytes:
    at = random.randint(0, len(data))
    return data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]


def _noisy(data: bytes, random: Random) -> bytes:
    at = random.randint(0, len(data))
    return data[:at] + random.choice(NOISE).encode() + data[at:]


def _worded(data: bytes, random: Random) -> bytes:
    """Put a token of the grammar in, or in the place of what stands there."""
    start, end = _slice(data, random)
    word = random.choice(grammar().statement(random)).encode()
    return data[:start] + random.choice((b"", b" ")) + word + b" " + data[random.choice((start, end)) :]


def _spliced(data: bytes, random: Random) -> bytes:
    other = random.choice(corpus()).encode()
    start, end = _slice(other, random)
    at = random.randint(0, len(data))
    return data[:at] + other[start : end + random.randint(0, 30)] + data[at:]


def _cut(data: bytes, random: Random) -> bytes:
    return data[: random.randint(0, len(data))]


_MUTATIONS = (_deleted, _doubled, _flipped, _noisy, _worded, _worded, _spliced, _cut)


def policy_bytes(random: Random) -> bytes:
    """Return a policy text: of the grammar, or mutated from one, from the corpus or from a policy that compiles."""
    kind = random.random()
    if kind < 0.06:  # the checks behind names and units see few of the others, and cost most
        text = random.choice((place_text, move_text))(random)
        return random.choice((_worded, _deleted, _spliced))(text.encode(), random)
    if kind < 0.4:
        return sentences(random).encode()
    return mutated(sentences(random) if kind < 0.6 else _excerpt(random.choice(corpus()), random), random)


def _excerpt(text: str, random: Random) -> str:
    """Return one or two lines of a text, or all of it."""
    lines = text.splitlines() or [""]
    count = random.choice((1, 1, 1, 2, 2, len(lines)))
    at = random.randint(0, max(0, len(lines) - count))
    return "\n".join(lines[at : at + count])


def tiering_bytes(random: Random) -> bytes:
    """Return a tiering file: with rules of the grammar, or a shipped one, most of them mutated."""
    if random.random() < 0.5:
        text = random.choice(tiering_files())
    else:
        rules = "".join(f"  {line}\n" for line in (sentences(random) or "x").split("\n"))
        tests = random.choice(("", "tests:\n  - {record: {tokens: 8}, expect: dram}\n"))
        text = f"tiers: {{dram: {{}}, nvme: {{}}}}\nparams: {{long: 48}}\nrules: |\n{rules}{tests}"
    return text.encode() if random.random() < 0.1 else mutated(text, random)
