"""The words a policy may name: facts of a record with their ranges, kinds, tiers, and words of later releases.

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
    """A property of every record: integer codes from `low` to `high`, both included."""

    name: str
    type: FactType
    low: int
    high: int
    noun: str
    dimension: Dimension = Dimension.COUNT


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

LATER_FACTS: Final = ("hits", "idle", "age", "refs", "accept", "fill")
"""Facts that change while a record lives: `place` cannot ask for them."""

KINDS: Final = {kind.name.lower(): kind for kind in Kind}
TIERS: Final = {tier.name.lower(): tier for tier in Tier}
REJECT: Final = "reject"

LATER_STATEMENTS: Final = ("class", "keep", "promote", "demote", "evict", "flush", "require")
LATER_WORDS: Final = ("after", "by", "using", "when", "until", "at", "most", "cooldown", "every", "warn", "enforce")
RESERVED: Final = frozenset((*FACTS, *LATER_FACTS, *KINDS, *TIERS, *LATER_STATEMENTS, *LATER_WORDS))
"""Names that a param cannot take."""


@dataclass(frozen=True, slots=True)
class RecordFacts:
    """One record as a policy sees it, for tests and explanations; batches go to the placement as arrays."""

    tokens: int
    kind: Kind = Kind.NGRAM
    namespace: str = DEFAULT_NAMESPACE
    nbytes: int = record_bytes()

    def codes(self) -> dict[str, int]:
        """Return the integer code of every fact, by fact name."""
        space = namespace_id(self.namespace)
        return {"tokens": self.tokens, "kind": int(self.kind), "namespace": space, "bytes": self.nbytes}
