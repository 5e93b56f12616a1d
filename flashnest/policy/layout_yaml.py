"""`policy fmt` of tiering files: the lines of the `rules: |` block are laid out, every other byte stays as it is.

A policy on one line (`rules: place otherwise in dram`) has nothing to lay out and stays too. Reads no files.
"""

from __future__ import annotations

import re
from typing import Final

import yaml

from flashnest.errors import PolicyError
from flashnest.policy.layout import layout
from flashnest.policy.syntax import Source
from flashnest.policy.yaml_nodes import Node, YamlShapeError, read_yaml

_RULES: Final = re.compile(r"^rules[ \t]*:", re.MULTILINE)


def is_tiering_yaml(text: str) -> bool:
    """Return whether a text is a tiering file rather than a policy: no statement starts with `rules:`."""
    return _RULES.search(text) is not None


def layout_text(text: str, name: str, *, is_yaml: bool) -> str:
    """Return a file's text laid out, with the line ends and the byte order mark that it has.

    Raises PolicyCheckError where the rules do not follow the grammar, PolicyError where the YAML has the wrong shape.
    """
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    end = "\r\n" if "\r\n" in text else "\n"
    plain = text.removeprefix(mark).replace("\r\n", "\n")
    done = _yaml_layout(plain, name) if is_yaml else layout(Source(plain, name))
    return text if done == plain else mark + done.replace("\n", end)


def _yaml_layout(text: str, name: str) -> str:
    try:
        return _with_rules_laid_out(text, name)
    except YamlShapeError as error:
        raise PolicyError(f"{name}:{error.line}:{error.column}: {error.what}", fix=error.fix) from error


def _with_rules_laid_out(text: str, name: str) -> str:
    root = read_yaml(text)
    top = root.mapping("a tiering file is a mapping with `tiers`, `rules` and `tests`")
    if "rules" not in top:
        raise root.wrong("the file has no `rules`", "add `rules: |` and the policy below it, indented")
    rules = top["rules"]
    block = rules.block_text("`rules` is the text of the policy", "write `rules: |` and the policy below it")
    if not isinstance(rules.raw, yaml.ScalarNode) or rules.raw.style != "|" or not block.text.strip():
        return text
    lines = text.split("\n")
    first, last = _extent(rules, lines, block.text, block.column_offset)
    laid_out = layout(Source(block.text, name, block.first_line, block.column_offset)).rstrip("\n").split("\n")
    margin = " " * block.column_offset
    lines[first:last] = [margin + line if line else "" for line in laid_out]
    return "\n".join(lines)


def _extent(rules: Node, lines: list[str], block: str, offset: int) -> tuple[int, int]:
    """Return the lines of the file that hold the block, from its first written line to behind its last one."""
    wanted = block.split("\n")
    first = rules.raw.start_mark.line + 1
    skipped = next(i for i, line in enumerate(wanted) if line.strip())
    count = max(i for i, line in enumerate(wanted) if line.strip()) + 1
    held = [line[offset:] for line in lines[first : first + count]]
    if held[skipped:] != wanted[skipped:count]:
        raise rules.wrong("cannot tell where the text of `rules` stands", "write `rules: |` on one line")
    return first + skipped, first + count
