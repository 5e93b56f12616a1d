"""YAML with positions: a node knows its line and column and says so when its shape is wrong.

Reads safe YAML only; nothing is ever constructed from a tag of the document's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import yaml

Plain: TypeAlias = bool | int | float | str | list["Plain"] | dict[str, "Plain"] | None

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times as fast where the wheel has it


class YamlShapeError(Exception):
    """The text is not YAML or has the wrong shape at a line and column, both counted from 1."""

    def __init__(self, what: str, line: int, column: int, fix: str = "") -> None:
        super().__init__(what)
        self.what, self.line, self.column, self.fix = what, line, column, fix


@dataclass(frozen=True, slots=True)
class BlockText:
    """A text inside YAML and where it stands: `column_offset` characters are cut from each of its lines."""

    text: str
    first_line: int
    column_offset: int


@dataclass(frozen=True, slots=True)
class Node:
    """One YAML node. `document` is the whole text."""

    raw: yaml.Node
    document: str
    key: yaml.Node | None = None

    @property
    def line(self) -> int:
        """Line of the node's key where it has one, else of the node."""
        return int((self.key or self.raw).start_mark.line) + 1

    def wrong(self, what: str, fix: str = "") -> YamlShapeError:
        """Return the error for a wrong shape at this node."""
        mark = (self.key or self.raw).start_mark
        return YamlShapeError(what, mark.line + 1, mark.column + 1, fix)

    def mapping(self, what: str) -> dict[str, Node]:
        """Return the entries of a mapping by key. `what` is the complaint when it is none, or has a key twice."""
        if not isinstance(self.raw, yaml.MappingNode):
            raise self.wrong(what)
        entries: dict[str, Node] = {}
        for key, value in self.raw.value:
            name, node = str(key.value), Node(value, self.document, key)
            if name in entries:
                raise node.wrong(f"`{name}` is written twice", "keep one of the two")
            entries[name] = node
        return entries

    def sequence(self, what: str) -> list[Node]:
        """Return the items of a list."""
        if not isinstance(self.raw, yaml.SequenceNode):
            raise self.wrong(what)
        return [Node(item, self.document) for item in self.raw.value]

    def value(self) -> Plain:
        """Return the plain value: what `yaml.safe_load` gives."""
        loader = yaml.SafeLoader("")
        try:
            plain: Plain = loader.construct_object(self.raw, deep=True)
        except (yaml.YAMLError, ValueError) as error:
            raise self.wrong(f"not a plain value: {error}") from error
        return plain

    def block_text(self, what: str, fix: str) -> BlockText:
        """Return a text and its place: a `|` block of any length, or any other scalar on one line."""
        raw = self.raw
        if not isinstance(raw, yaml.ScalarNode) or not isinstance(raw.value, str):
            raise self.wrong(what, fix)
        if raw.style == "|":
            return self._block(raw)
        if raw.start_mark.line != raw.end_mark.line or "\n" in raw.value:
            raise self.wrong("a policy of several lines needs a `|` block to keep its line numbers", fix)
        quote = 1 if raw.style in ("'", '"') else 0
        return BlockText(raw.value, raw.start_mark.line + 1, raw.start_mark.column + quote)

    def _block(self, raw: yaml.ScalarNode) -> BlockText:
        """Find how far the block is indented by comparing its first written line with the file's."""
        first = int(raw.start_mark.line) + 1
        lines = self.document.splitlines()
        for i, text in enumerate(raw.value.splitlines()):
            if text.strip():
                return BlockText(raw.value, first + 1, len(lines[first + i]) - len(text))
        return BlockText(raw.value, first + 1, 0)


def read_yaml(text: str) -> Node:
    """Parse one YAML document. Raises YamlShapeError where it is empty or not YAML."""
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise YamlShapeError(f"not YAML: {error.problem or error.context}", line, column) from error
    except yaml.YAMLError as error:
        raise YamlShapeError(f"not YAML: {error}", 1, 1) from error
    if root is None:
        raise YamlShapeError("the file is empty", 1, 1)
    return Node(root, text)
