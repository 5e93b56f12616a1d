"""The `tests:` of a tiering file as read: records, where they are, and what is expected of them. Runs nothing.

A test without `in` asks where a new record is placed; one with `in` asks what the moves do with a record stored there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from flashnest.policy.diagnostics import unknown
from flashnest.policy.facts import (
    CHANGING_FACTS,
    FACTS,
    KINDS,
    MAX_HITS,
    MAX_REFS,
    MOVE_FACTS,
    REJECT,
    TIERS,
    RecordFacts,
    time_words,
)
from flashnest.policy.yaml_nodes import Node
from flashnest.record import Admission, Tier
from flashnest.units import Dimension, UnitError, parse_quantity

STAY = "stay"
EVICT = "evict"
_WAYS = ("promote", "demote")
_LONGEST_S = 2**24 - 1
_AFTER = re.compile(r"(\d{1,3}) hits? in (\S+)")


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a record is, how full that tier is (0..1), and what is expected: an action and where it leads."""

    tier: Tier
    fill: float
    action: str
    target: Tier | None = None


@dataclass(frozen=True, slots=True)
class TestCase:
    """One entry of `tests:`. `expect` is the first tier of the chain, a whole chain, or `()` for reject.

    A test of moves has `stored` in place of `expect`.
    """

    __test__ = False  # not a pytest class

    name: str
    line: int
    record: RecordFacts
    expect: tuple[Tier, ...]
    whole_chain: bool
    by: int | str | None
    stored: Stored | None = None
    after: Admission | None = None
    """What the record has to do before it is stored; None: the test does not ask."""


def read_tests(node: Node) -> tuple[TestCase, ...]:
    """Read the value of `tests:`. Raises YamlShapeError."""
    if node.value() is None:
        return ()
    return tuple(_test(one) for one in node.sequence("`tests` is a list of records and what is expected of them"))


def known_keys(mapping: Mapping[str, Node], known: tuple[str, ...], noun: str) -> None:
    """Raise YamlShapeError at the first key that is not known."""
    for key, node in mapping.items():
        if key not in known:
            raise node.wrong(*unknown(key, noun, known))


def read_record(node: Node, *, stored: bool) -> RecordFacts:
    """Read one `record` of a test; `stored` allows the facts that change. Raises YamlShapeError."""
    return _record(node, stored=stored)


def _test(node: Node) -> TestCase:
    keys = node.mapping("a test is a mapping: `{record: {tokens: 31}, expect: dram}`")
    known_keys(keys, ("name", "record", "in", "fill", "expect", "by", "after"), "key")
    for needed in ("record", "expect"):
        if needed not in keys:
            raise node.wrong(f"the test has no `{needed}`", "a test is `{record: {tokens: 31}, expect: dram}`")
    record = _record(keys["record"], stored="in" in keys)
    stored = _stored(keys) if "in" in keys else None
    if stored is None and "fill" in keys:
        raise keys["fill"].wrong("`fill` is how full the record's tier is", "say which: `in: dram`")
    expect, whole = ((), False) if stored else _expect(keys["expect"])
    by = keys["by"].value() if "by" in keys else None
    if by is not None and (isinstance(by, bool) or not isinstance(by, int | str)):
        raise keys["by"].wrong("`by` is a rule's number, label or text", "write it like `by: 2`")
    name = str(keys["name"].value()) if "name" in keys else _default_name(record, stored)
    after = _after(keys["after"], stored) if "after" in keys else None
    return TestCase(name, node.line, record, expect, whole, by, stored, after)


def _after(node: Node, stored: Stored | None) -> Admission:
    """Read `2 hits in 10min`, as a `place` rule has it."""
    if stored is not None:
        raise node.wrong("`after` is about new records; this one is stored already", "take `in` or `after` out")
    found = _AFTER.fullmatch(str(node.value()).strip())
    if found is None:
        raise node.wrong(f"`{node.value()}` is no admission", "write it like `2 hits in 10min`")
    return Admission(int(found[1]), _window(found[2], node))


def _default_name(record: RecordFacts, stored: Stored | None) -> str:
    name = f"{record.tokens} tokens, {record.kind.name.lower()}"
    return name if stored is None else f"{name} in {stored.tier.name.lower()}"


def _record(node: Node, *, stored: bool) -> RecordFacts:
    keys = node.mapping("`record` is a mapping of facts, like `{tokens: 31, kind: ngram}`")
    known_keys(keys, tuple(MOVE_FACTS), "fact")
    for name in CHANGING_FACTS:
        if name in keys and not stored:
            what = f"`{name}` changes while a record is stored: only a test of moves can give it"
            raise keys[name].wrong(what, "say where the record is: `in: nvme`")
    if "tokens" not in keys:
        raise node.wrong("the record has no `tokens`", "write it like `record: {tokens: 31}`")
    default = RecordFacts(_number(keys["tokens"], Dimension.TOKENS, 1, 255))
    kind = _word(keys["kind"], tuple(KINDS), "kind") if "kind" in keys else default.kind.name.lower()
    namespace = str(keys["namespace"].value()) if "namespace" in keys else default.namespace
    nbytes = _number(keys["bytes"], Dimension.BYTES, 1, FACTS["bytes"].high) if "bytes" in keys else default.nbytes
    placed = RecordFacts(default.tokens, KINDS[kind], namespace, nbytes)
    return _with_changing(placed, keys) if stored else placed


def _with_changing(record: RecordFacts, keys: Mapping[str, Node]) -> RecordFacts:
    hits, windows = _hits(keys["hits"]) if "hits" in keys else (0, ())
    idle_s = _seconds(keys["idle"]) if "idle" in keys else 0
    age_s = _seconds(keys["age"]) if "age" in keys else idle_s
    if age_s < idle_s:
        raise keys["age"].wrong("the record is idle for longer than it is old", "make `age` at least `idle`")
    refs = _number(keys["refs"], Dimension.COUNT, 0, MAX_REFS) if "refs" in keys else 0
    accept = _number(keys["accept"], Dimension.PERCENT, 0, 100, bare=False) if "accept" in keys else 100
    return replace(record, hits=hits, window_hits=windows, idle_s=idle_s, age_s=age_s, refs=refs, accept_percent=accept)


def _hits(node: Node) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Read `5` or `{total: 5, 60s: 3}`; without `total` it is the most of the times given."""
    if not isinstance(node.value(), dict):
        return _number(node, Dimension.COUNT, 0, MAX_HITS), ()
    keys = node.mapping("`hits` is a number, or `{total: 5, 60s: 3}`")
    counts = {key: _number(one, Dimension.COUNT, 0, MAX_HITS) for key, one in keys.items()}
    windows = sorted((_window(key, keys[key]), count) for key, count in counts.items() if key != "total")
    most = max((count for _, count in windows), default=0)
    total = counts.get("total", most)
    rising = [count for _, count in windows] + [total]
    if rising != sorted(rising):
        raise node.wrong("there are more hits within a shorter time than within a longer one or in all")
    return total, tuple(windows)


def _window(key: str, node: Node) -> int:
    seconds = _read(node, key, Dimension.DURATION, bare=False) / 10**9
    if seconds < 1 or seconds != int(seconds):
        raise node.wrong(f"`{key}` is not a time in whole seconds", "write it like `60s`")
    return int(seconds)


def _seconds(node: Node) -> int:
    seconds = _read(node, str(node.value()), Dimension.DURATION, bare=False) / 10**9
    if seconds != int(seconds) or seconds > _LONGEST_S:
        raise node.wrong(f"`{node.value()}` is not a time in whole seconds up to {time_words(_LONGEST_S)}")
    return int(seconds)


def _number(node: Node, dimension: Dimension, lowest: int, highest: int, *, bare: bool = True) -> int:
    value = _read(node, str(node.value()), dimension, bare=bare)
    if not isinstance(value, int) or not lowest <= value <= highest:
        raise node.wrong(f"`{node.value()}` is not {_a(dimension)} from {lowest} to {highest}")
    return value


def _read(node: Node, text: str, dimension: Dimension, *, bare: bool) -> int | float:
    try:
        quantity = parse_quantity(text)
    except UnitError as error:
        raise node.wrong(error.what, error.fix) from error
    except (ValueError, OverflowError) as error:  # Python reads 4300 digits at most and floats end at 1e308
        raise node.wrong("this number is too long to read") from error
    if quantity.dimension is not dimension and not (bare and quantity.dimension is Dimension.COUNT):
        raise node.wrong(f"`{text}` is not {_a(dimension)}")
    return quantity.value


def _a(dimension: Dimension) -> str:
    if dimension in (Dimension.COUNT, Dimension.TOKENS, Dimension.BYTES):
        return "a number" if dimension is Dimension.COUNT else f"a number of {dimension}"
    return "a time such as `60s`" if dimension is Dimension.DURATION else "a share such as `95%`"


def _stored(keys: Mapping[str, Node]) -> Stored:
    tier = TIERS[_word(keys["in"], tuple(TIERS), "tier")]
    fill = 0.0
    if "fill" in keys:
        percent = _read(keys["fill"], str(keys["fill"].value()), Dimension.PERCENT, bare=False)
        if percent > 100:
            raise keys["fill"].wrong(f"a tier is never `{keys['fill'].value()}` full")
        fill = percent / 100
    return _outcome(keys["expect"], Stored(tier, fill, STAY))


def _outcome(node: Node, stored: Stored) -> Stored:
    value = node.value()
    if isinstance(value, dict) and len(value) == 1:
        ((word, target),) = node.mapping("").items()
        if word in _WAYS:
            return replace(stored, action=word, target=TIERS[_word(target, tuple(TIERS), "tier")])
    elif value in (STAY, EVICT):
        return replace(stored, action=str(value))
    fix = "a test with `in` expects `stay`, `evict`, `{promote: dram}` or `{demote: nvme}`"
    raise node.wrong("this is not what a move can do", fix)


def _expect(node: Node) -> tuple[tuple[Tier, ...], bool]:
    """Return the expected tiers, and whether they are the whole chain."""
    value = node.value()
    if isinstance(value, str) and value not in (STAY, EVICT):
        word = _word(node, (*TIERS, REJECT), "tier")
        return ((), True) if word == REJECT else ((TIERS[word],), False)
    if not isinstance(value, list):
        fix = "for a move say where the record is: `in: nvme`" if value in (STAY, EVICT) or _is_way(value) else ""
        raise node.wrong("`expect` is a tier, a list of tiers or `reject`", fix)
    listed = node.sequence("`expect` is a tier, a list of tiers or `reject`")
    return tuple(TIERS[_word(one, tuple(TIERS), "tier")] for one in listed), True


def _is_way(value: object) -> bool:
    return isinstance(value, dict) and any(word in value for word in _WAYS)


def _word(node: Node, known: tuple[str, ...], noun: str) -> str:
    word = str(node.value()).lower()
    if word not in known:
        raise node.wrong(*unknown(str(node.value()), noun, known))
    return word
