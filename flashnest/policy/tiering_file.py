"""Tiering files: one YAML file with `tiers`, `params`, `rules` and `tests`, or a plain text file with rules alone.

Keeps the line and column of the rules, so that a diagnostic points at the true line of the file. It looks at the shape
only as far as the policy needs it: what a tier's capacity or engine may be is the config's business, and Hydra
interpolations such as `${platform.table.dram}` pass through unread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flashnest.errors import PolicyError
from flashnest.policy.cases import TestCase, known_keys, read_tests
from flashnest.policy.compile import Policy, compile_policy
from flashnest.policy.facts import TIERS
from flashnest.policy.yaml_nodes import Node, Plain, YamlShapeError, read_yaml

YAML_SUFFIXES = (".yaml", ".yml")
TEXT_SUFFIXES = (".tier", ".txt")
_KEYS = ("tiers", "params", "rules", "tests", "defaults")
"""Top-level keys; `defaults` is Hydra's own."""


class TieringFileError(PolicyError):
    """A tiering file cannot be read or has the wrong shape. The place is in `what`, and in `line` and `column`."""

    def __init__(self, what: str, *, why: str = "", fix: str = "", line: int = 1, column: int = 1) -> None:
        super().__init__(what, why=why, fix=fix)
        self.line, self.column = line, column


@dataclass(frozen=True, slots=True)
class TieringFile:
    """A tiering file as read. `tiers` is None in a plain text file: then every tier counts as open."""

    path: Path
    rules: str
    first_line: int = 1
    column_offset: int = 0
    tiers: tuple[str, ...] | None = None
    params: Mapping[str, str | int] | None = None
    tests: tuple[TestCase, ...] = ()
    settings: Mapping[str, Mapping[str, Plain]] | None = None
    """What the file says of each of `tiers`, as written: `capacity`, `engine` and so on."""

    def compile(self) -> Policy:
        """Check and compile the rules. Raises PolicyCheckError."""
        return compile_policy(
            self.rules,
            source=str(self.path),
            params=self.params,
            tiers=self.tiers,
            first_line=self.first_line,
            column_offset=self.column_offset,
        )


def load_tiering_file(path: Path | str) -> TieringFile:
    """Read a tiering file (.yaml, .yml) or a plain policy text (.tier, .txt). Raises TieringFileError."""
    path = Path(path)
    if path.suffix not in YAML_SUFFIXES + TEXT_SUFFIXES:
        endings = ", ".join(YAML_SUFFIXES + TEXT_SUFFIXES)
        raise TieringFileError(f"{path} is not a tiering file", fix=f"its name must end in one of {endings}")
    try:
        return read_tiering(path.read_bytes(), path)
    except OSError as error:
        raise TieringFileError(f"cannot read {path}", why=str(error.strerror)) from error


def read_tiering(data: bytes, path: Path) -> TieringFile:
    """Return the tiering file that bytes are; the ending of `path` says how to read them. Raises TieringFileError."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TieringFileError(f"{path} is not UTF-8 text", why=f"byte {error.start} is not UTF-8") from error
    if path.suffix in TEXT_SUFFIXES:
        return TieringFile(path, text)
    try:
        return _tiering(path, read_yaml(text))
    except YamlShapeError as error:
        line, column = error.line, error.column
        raise TieringFileError(
            f"{path}:{line}:{column}: {error.what}", fix=error.fix, line=line, column=column
        ) from error


def _tiering(path: Path, root: Node) -> TieringFile:
    top = root.mapping("a tiering file is a mapping with `tiers`, `rules` and `tests`")
    known_keys(top, _KEYS, "key")
    if "rules" not in top:
        raise root.wrong("the file has no `rules`", "add `rules: |` and the policy below it, indented")
    rules = top["rules"].block_text("`rules` is the text of the policy", "write `rules: |` and the policy below it")
    settings = _tiers(top["tiers"]) if "tiers" in top else None
    tiers = None if settings is None else tuple(settings)
    params = _params(top["params"]) if "params" in top else None
    tests = read_tests(top["tests"]) if "tests" in top else ()
    return TieringFile(path, rules.text, rules.first_line, rules.column_offset, tiers, params, tests, settings)


def _tiers(node: Node) -> dict[str, Mapping[str, Plain]]:
    tiers = node.mapping("`tiers` maps each tier to its settings, like `dram: {capacity: 14GiB}`")
    known_keys(tiers, tuple(TIERS), "tier")
    found: dict[str, Mapping[str, Plain]] = {}
    for name, settings in tiers.items():
        found[name] = {}
        if settings.value() is not None:
            entries = settings.mapping(f"tier `{name}` is a mapping of settings, like `{{capacity: 14GiB}}`")
            found[name] = {key: entry.value() for key, entry in entries.items()}
    return found


def _params(node: Node) -> dict[str, str | int]:
    if node.value() is None:
        return {}
    params: dict[str, str | int] = {}
    for name, given in node.mapping("`params` maps names to values, like `long: 48`").items():
        value = given.value()
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise given.wrong(f"param `{name}` is a number or a text", 'write it like `48` or "48 tokens"')
        params[name] = value if isinstance(value, int) else str(value)
    return params
