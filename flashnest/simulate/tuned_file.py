"""The text of a tiering file with other params and a comment that says where they come from. Reads and writes no file.

The rest of the text stays as it is, to the letter: a tuned file is to be compared with the old one, line by line.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Final

import yaml

from flashnest.policy.syntax import Document
from flashnest.policy.yaml_nodes import Node, read_yaml

_TITLE: Final = "# Tuned: "
_END: Final = "# End of the tuning's numbers."
_EARLIER: Final = re.compile(rf"^{re.escape(_TITLE)}.*?^{re.escape(_END)}\n", re.MULTILINE | re.DOTALL)
_LINE_WIDTH: Final = 118
_PLAIN: Final = re.compile(r"[A-Za-z0-9.][A-Za-z0-9 ./%_-]*")
"""Texts that need no quotes in YAML where they follow a colon."""


def tuned_yaml(text: str, params: Mapping[str, str], lines: Sequence[str]) -> str:
    """Return the text of a YAML tiering file with `params` set, others kept, and a comment of `lines` at its top.

    A comment that an earlier tuning left is replaced.
    """
    text = text.removeprefix("\ufeff")
    top = read_yaml(text).mapping("a tiering file is a mapping")
    given = top.get("params")
    kept = given.value() if given is not None else None
    set_now = {name: int(value) if value.isdigit() else value for name, value in params.items()}
    merged = {**(kept if isinstance(kept, dict) else {}), **set_now}
    start, end = _extent(given) if given is not None else (_start(top["rules"]),) * 2
    block = _params(merged) + ("" if given is not None else "\n")
    return _comment(lines) + _EARLIER.sub("", text[:start] + block + text[end:], count=1)


def tuned_text(document: Document, params: Mapping[str, str], lines: Sequence[str]) -> str:
    """Return a plain policy text with the values of its `param` statements replaced, and the comment at its top."""
    text = document.source.text
    for param in sorted(document.params, key=lambda param: param.value.span.start, reverse=True):
        if param.name.text in params:
            text = text[: param.value.span.start] + params[param.name.text] + text[param.value.span.end :]
    return _comment(lines) + _EARLIER.sub("", text, count=1)


def _comment(lines: Sequence[str]) -> str:
    first, *rest = lines
    wrapped = [_wrapped(f"{_TITLE}{first}"), *(_wrapped(f"#   {line}") for line in rest)]
    return "\n".join([*wrapped, _END]) + "\n"


def _wrapped(line: str) -> str:
    """Break a comment after `_LINE_WIDTH` characters, at spaces."""
    return textwrap.fill(
        line, _LINE_WIDTH, subsequent_indent="#       ", break_long_words=False, break_on_hyphens=False
    )


def _start(node: Node) -> int:
    assert node.key is not None, "top-level entries have keys"
    return int(node.key.start_mark.index)


def _extent(node: Node) -> tuple[int, int]:
    """Return where `params: ...` stands. A block mapping ends with its last value: YAML counts comments after it in."""
    raw = node.raw
    if isinstance(raw, yaml.MappingNode) and not raw.flow_style and raw.value:
        return _start(node), int(raw.value[-1][1].end_mark.index)
    return _start(node), int(raw.end_mark.index)


def _params(params: Mapping[str, object]) -> str:
    entries = [f"{name}: {_scalar(value)}" for name, value in params.items()]
    short = f"params: {{{', '.join(entries)}}}"
    return short if len(short) <= _LINE_WIDTH else "\n".join(["params:", *(f"  {entry}" for entry in entries)])


def _scalar(value: object) -> str:
    text = str(value)
    if isinstance(value, int | float) or (_PLAIN.fullmatch(text) and isinstance(yaml.safe_load(text), str)):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
