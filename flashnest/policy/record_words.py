"""Records as words of a command line: `tokens=9 kind=chunk hits=5/60s:3 idle=5min`, or as a test's `{tokens: 9}`."""

from __future__ import annotations

from collections.abc import Sequence

from flashnest.errors import PolicyError
from flashnest.policy.cases import read_record
from flashnest.policy.facts import RecordFacts
from flashnest.policy.yaml_nodes import YamlShapeError, read_yaml

_EXAMPLE = "write it like `tokens=9 kind=chunk hits=5/60s:3 idle=5min`, or as in a test: `{tokens: 9}`"


def read_words(words: Sequence[str], *, stored: bool) -> RecordFacts:
    """Return the record that words describe; `stored` allows the facts that change. Raises PolicyError."""
    text = " ".join(words).strip()
    try:
        return read_record(read_yaml(text if text.startswith("{") else _as_yaml(text.split())), stored=stored)
    except YamlShapeError as error:
        fix = error.fix or _EXAMPLE
        if "say where the record is" in fix:
            fix = "say in which tier the record is: `--in nvme`"
        raise PolicyError(f"the record `{text}` cannot be read: {error.what}", fix=fix) from error


def _as_yaml(words: Sequence[str]) -> str:
    return f"{{{', '.join(_entry(word) for word in words)}}}"


def _entry(word: str) -> str:
    """Turn `hits=5/60s:3` into `hits: {total: 5, 60s: 3}`, and any other `fact=value` into `fact: "value"`."""
    fact, sign, value = word.partition("=")
    if not sign or not value:
        raise PolicyError(f"`{word}` is no `fact=value`", fix=_EXAMPLE)
    if fact != "hits" or ":" not in value:
        return f"{_quoted(fact)}: {_quoted(value)}"
    pairs = [part.partition(":") for part in value.split("/")]
    entries = [f"{_quoted(a)}: {_quoted(b)}" if sign else f"total: {_quoted(a)}" for a, sign, b in pairs]
    return f"hits: {{{', '.join(entries)}}}"


def _quoted(text: str) -> str:
    """Return a text as a YAML string that stands for itself."""
    return "'" + text.replace("'", "''") + "'"
