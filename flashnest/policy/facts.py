"""The words a policy may name: facts of a record with their ranges, kinds, tiers, and the words of the language.

Ranges are those of the row layout in `flashnest.record`. Nothing here looks at a policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from flashnest.record import Kind, Tier, namespace_id, record_bytes
from flashnest.units import Dimension

DEFAULT_NAMESPACE: Final = "default"


class FactType(StrEnum):
    """What may stand on the other side of a comparison."""

    NUMBER = "number"
    KIND = "kind"
    NAMESPACE = "namespace"


@dataclass(frozen=True, slots=True)
class Fact:
    """A property of every record: integer codes from `low` to `high`, both included.

    A constant is `scale` of its dimension's base units for each code; the largest that a policy may name is `top`, and
    `reason` says why, where that needs saying. `window_s` is the time of `hits in TIME`, 0 for other facts.
    """

    name: str
    type: FactType
    low: int
    high: int
    noun: str
    dimension: Dimension = Dimension.COUNT
    scale: int = 1
    top: int | None = None
    reason: str = ""
    window_s: int = 0


FACTS: Final = {
    fact.name: fact
    for fact in (
        Fact("tokens", FactType.NUMBER, 1, 255, "a number of tokens", Dimension.TOKENS),
        Fact("kind", FactType.KIND, min(Kind), max(Kind), "a kind of record"),
        Fact("namespace", FactType.NAMESPACE, 0, 2**32 - 1, "a namespace"),
        Fact("bytes", FactType.NUMBER, 1, 2**32 - 1, "a size in bytes", Dimension.BYTES),
    )
}
"""Facts fixed at insert, in the order of the placement table's axes."""

MAX_HITS: Final = 4095
MAX_REFS: Final = 1023
"""The DRAM table keeps hits in 12 bits and refs in 10; both stop at their highest number."""

MAX_WINDOW_HITS: Final = 255
"""Hits within a time are counted in a sketch of eight bits a counter: more are counted, but not all of them."""

MAX_TIME_S: Final = 180 * 86400
"""The DRAM table keeps times modulo 2^24 seconds, 194 days; 180 leaves two weeks to notice an old record."""

_TIME_REASON: Final = "the DRAM table keeps times modulo 194 days"
_HITS_NOUN: Final = "a number of hits"
_WINDOW_REASON: Final = "hits within a time are counted in 8 bits and stop there"
_HITS_REASON: Final = "the DRAM table counts hits in 12 bits and stops there"
_NS: Final = 10**9

CHANGING_FACTS: Final = {
    fact.name: fact
    for fact in (
        Fact("hits", FactType.NUMBER, 0, MAX_HITS, _HITS_NOUN, reason=_HITS_REASON),
        Fact("idle", FactType.NUMBER, 0, 2**24 - 1, "a duration", Dimension.DURATION, _NS, MAX_TIME_S, _TIME_REASON),
        Fact("age", FactType.NUMBER, 0, 2**24 - 1, "a duration", Dimension.DURATION, _NS, MAX_TIME_S, _TIME_REASON),
        Fact(
            "refs",
            FactType.NUMBER,
            0,
            MAX_REFS,
            "a number of references",
            reason="the DRAM table counts them in 10 bits and stops there",
        ),
        Fact("accept", FactType.NUMBER, 0, 100, "a percentage", Dimension.PERCENT),
    )
}
"""Facts that change while a record lives: moves may ask for them, `place` may not."""

MOVE_FACTS: Final = {**FACTS, **CHANGING_FACTS}
FILL: Final = "fill"
"""The fact of a tier, not of a record: for `when` and `until`."""

ALGORITHMS: Final = ("s3fifo", "sieve", "lru", "fifo")
"""Eviction algorithms that `using` takes."""


def hits_within(window_s: int) -> Fact:
    """Return the fact `hits in TIME`."""
    name = f"hits in {time_words(window_s)}"
    return Fact(name, FactType.NUMBER, 0, MAX_WINDOW_HITS, _HITS_NOUN, reason=_WINDOW_REASON, window_s=window_s)


def time_words(seconds: int) -> str:
    """Return a time as a policy would write it, in the largest unit that leaves it whole: `10min`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


KINDS: Final = {kind.name.lower(): kind for kind in Kind}
TIERS: Final = {tier.name.lower(): tier for tier in Tier}
REJECT: Final = "reject"

_STATEMENT_WORDS: Final = ("param", "class", "place", "keep", "promote", "demote", "evict", "flush", "require")
_CLAUSE_WORDS: Final = ("after", "by", "using", "when", "until", "at", "most", "cooldown", "min", "residency")
_GOAL_WORDS: Final = ("every", "warn", "enforce")
RESERVED: Final = frozenset(
    (*MOVE_FACTS, FILL, REJECT, *KINDS, *TIERS, *_STATEMENT_WORDS, *_CLAUSE_WORDS, *_GOAL_WORDS)
)
"""Names that a param or a class cannot take."""


@dataclass(frozen=True, slots=True)
class RecordFacts:
    """One record as a policy sees it, for tests and explanations; batches go to placement and moves as arrays.

    `idle_s` and `age_s` are seconds since the last access and since the record was first stored; `window_hits` are
    (window_s, hits) pairs for `hits in TIME`. A window that is not among them holds all hits, or none where the record
    was idle longer.
    """

    tokens: int
    kind: Kind = Kind.NGRAM
    namespace: str = DEFAULT_NAMESPACE
    nbytes: int = record_bytes()
    hits: int = 0
    window_hits: tuple[tuple[int, int], ...] = ()
    idle_s: int = 0
    age_s: int = 0
    refs: int = 0
    accept_percent: int = 100

    def codes(self) -> dict[str, int]:
        """Return the integer code of every fact, by fact name."""
        return {
            "tokens": self.tokens,
            "kind": int(self.kind),
            "namespace": namespace_id(self.namespace),
            "bytes": self.nbytes,
            "hits": self.hits,
            "idle": self.idle_s,
            "age": self.age_s,
            "refs": self.refs,
            "accept": self.accept_percent,
        }

    def code(self, fact: Fact) -> int:
        """Return the integer code of a fact, inside the fact's range: counters stop at their highest number."""
        found = self.hits_in(fact.window_s) if fact.window_s else self.codes()[fact.name]
        return min(max(found, fact.low), fact.high)

    def hits_in(self, window_s: int) -> int:
        """Return the lookups that found the record within a time."""
        given = dict(self.window_hits).get(window_s)
        if given is not None:
            return given
        return 0 if self.idle_s > window_s else self.hits
