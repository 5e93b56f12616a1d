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
from flashnest.policy.compile import Policy, compile_policy
from flashnest.policy.diagnostics import unknown
from flashnest.policy.facts import KINDS, REJECT, TIERS, RecordFacts
from flashnest.policy.yaml_nodes import Node, YamlShapeError, read_yaml
from flashnest.record import Tier
from flashnest.units import Dimension, UnitError, parse_quantity

YAML_SUFFIXES = (".yaml", ".yml")
TEXT_SUFFIXES = (".tier", ".txt")
_KEYS = ("tiers", "params", "rules", "tests", "defaults")
"""Top-level keys; `defaults` is Hydra's own."""


class TieringFileError(PolicyError):
    """A tiering file cannot be read or has the wrong shape. The place is in `what`."""


@dataclass(frozen=True, slots=True)
class TestCase:
    """One entry of `tests:`. `expect` is the first tier of the chain, a whole chain, or `()` for reject."""

    __test__ = False  # not a pytest class

    name: str
    line: int
    record: RecordFacts
    expect: tuple[Tier, ...]
    whole_chain: bool
    by: int | str | None


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


def load_tiering_file(path: Path) -> TieringFile:
    """Read a tiering file (.yaml, .yml) or a plain policy text (.tier, .txt). Raises TieringFileError."""
    if path.suffix not in YAML_SUFFIXES + TEXT_SUFFIXES:
        endings = ", ".join(YAML_SUFFIXES + TEXT_SUFFIXES)
        raise TieringFileError(f"{path} is not a tiering file", fix=f"its name must end in one of {endings}")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise TieringFileError(f"cannot read {path}", why=str(error.strerror)) from error
    except UnicodeDecodeError as error:
        raise TieringFileError(f"{path} is not UTF-8 text", why=f"byte {error.start} is not UTF-8") from error
    if path.suffix in TEXT_SUFFIXES:
        return TieringFile(path, text)
    try:
        return _tiering(path, read_yaml(text))
    except YamlShapeError as error:
        raise TieringFileError(f"{path}:{error.line}:{error.column}: {error.what}", fix=error.fix) from error


def _tiering(path: Path, root: Node) -> TieringFile:
    top = root.mapping("a tiering file is a mapping with `tiers`, `rules` and `tests`")
    _known_keys(top, _KEYS, "key")
    if "rules" not in top:
        raise root.wrong("the file has no `rules`", "add `rules: |` and the policy below it, indented")
    rules = top["rules"].block_text("`rules` is the text of the policy", "write `rules: |` and the policy below it")
    tiers = _tiers(top["tiers"]) if "tiers" in top else None
    params = _params(top["params"]) if "params" in top else None
    tests = _tests(top["tests"]) if "tests" in top else ()
    return TieringFile(path, rules.text, rules.first_line, rules.column_offset, tiers, params, tests)


def _tiers(node: Node) -> tuple[str, ...]:
    tiers = node.mapping("`tiers` maps each tier to its settings, like `dram: {capacity: 14GiB}`")
    _known_keys(tiers, tuple(TIERS), "tier")
    for name, settings in tiers.items():
        if settings.value() is not None:
            settings.mapping(f"tier `{name}` is a mapping of settings, like `{{capacity: 14GiB}}`")
    return tuple(tiers)


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


def _tests(node: Node) -> tuple[TestCase, ...]:
    if node.value() is None:
        return ()
    return tuple(_test(one) for one in node.sequence("`tests` is a list of records and what is expected of them"))


def _test(node: Node) -> TestCase:
    keys = node.mapping("a test is a mapping: `{record: {tokens: 31}, expect: dram}`")
    _known_keys(keys, ("name", "record", "expect", "by"), "key")
    for needed in ("record", "expect"):
        if needed not in keys:
            raise node.wrong(f"the test has no `{needed}`", "a test is `{record: {tokens: 31}, expect: dram}`")
    record = _record(keys["record"])
    expect, whole = _expect(keys["expect"])
    by = keys["by"].value() if "by" in keys else None
    if by is not None and (isinstance(by, bool) or not isinstance(by, int | str)):
        raise keys["by"].wrong("`by` is the number of a rule or its text", "write it like `by: 2`")
    name = str(keys["name"].value()) if "name" in keys else _default_name(record)
    return TestCase(name, node.line, record, expect, whole, by)


def _default_name(record: RecordFacts) -> str:
    return f"{record.tokens} tokens, {record.kind.name.lower()}"


def _record(node: Node) -> RecordFacts:
    keys = node.mapping("`record` is a mapping of facts, like `{tokens: 31, kind: ngram}`")
    _known_keys(keys, ("tokens", "kind", "namespace", "bytes"), "fact")
    if "tokens" not in keys:
        raise node.wrong("the record has no `tokens`", "write it like `record: {tokens: 31}`")
    default = RecordFacts(_number(keys["tokens"], Dimension.TOKENS, 255))
    kind = _word(keys["kind"], tuple(KINDS), "kind") if "kind" in keys else default.kind.name.lower()
    namespace = str(keys["namespace"].value()) if "namespace" in keys else default.namespace
    nbytes = _number(keys["bytes"], Dimension.BYTES, 2**32 - 1) if "bytes" in keys else default.nbytes
    return RecordFacts(default.tokens, KINDS[kind], namespace, nbytes)


def _number(node: Node, dimension: Dimension, highest: int) -> int:
    try:
        quantity = parse_quantity(str(node.value()))
    except UnitError as error:
        raise node.wrong(error.what, error.fix) from error
    right = quantity.dimension in (Dimension.COUNT, dimension) and isinstance(quantity.value, int)
    if not right or not 1 <= quantity.value <= highest:
        raise node.wrong(f"`{node.value()}` is not a number of {dimension} from 1 to {highest}")
    return int(quantity.value)


def _expect(node: Node) -> tuple[tuple[Tier, ...], bool]:
    """Return the expected tiers, and whether they are the whole chain."""
    if isinstance(node.value(), str):
        word = _word(node, (*TIERS, REJECT), "tier")
        return ((), True) if word == REJECT else ((TIERS[word],), False)
    listed = node.sequence("`expect` is a tier, a list of tiers or `reject`")
    return tuple(TIERS[_word(one, tuple(TIERS), "tier")] for one in listed), True


def _word(node: Node, known: tuple[str, ...], noun: str) -> str:
    word = str(node.value()).lower()
    if word not in known:
        raise node.wrong(*unknown(str(node.value()), noun, known))
    return word


def _known_keys(mapping: Mapping[str, Node], known: tuple[str, ...], noun: str) -> None:
    for key, node in mapping.items():
        if key not in known:
            raise node.wrong(*unknown(key, noun, known))
