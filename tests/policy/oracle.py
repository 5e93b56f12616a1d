"""What the warnings about `place` rules have to find, by their definitions and record by record: slow and obvious."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from naive import acts, holds, words_of

from flashnest.policy.facts import RecordFacts
from flashnest.policy.format import format_chain, format_value
from flashnest.policy.syntax import And, Condition, Document, Not, Or, Otherwise, Place
from flashnest.record import Kind

Truths = list[bool]
"""What a condition says of each record of the domain."""


class Oracle:
    """A policy and a domain that has a record for every case that the policy tells apart."""

    def __init__(self, document: Document, domain: Sequence[RecordFacts]) -> None:
        self._words = words_of(document)
        self._domain = domain
        self._places = document.places
        self._truths = [self._truth(place.condition) for place in self._places]

    def overlaps(self) -> Iterator[tuple[int, int]]:
        """Yield the pairs of rules whose order decides about a record that can be (T103)."""
        possible = [record.kind is Kind.NGRAM or record.tokens == 32 for record in self._domain]
        for later, place in enumerate(self._places):
            for earlier in range(later):
                one, other = self._truths[earlier], self._truths[later]
                contains = all(b for a, b in zip(one, other, strict=True) if a) or all(
                    a for a, b in zip(one, other, strict=True) if b
                )
                same = first_tier(self._places[earlier]) == first_tier(place)
                if contains or same or not (acts(place) and acts(self._places[earlier])):
                    continue
                if any(possible[k] and b and self._match(k) == earlier for k, b in enumerate(other)):
                    yield earlier, later

    def is_redundant(self, index: int) -> bool:
        """Return whether every record goes the same way without a rule (T104)."""
        place = self._places[index]
        if not acts(place) or place.label is not None:
            return False
        mine = [k for k in range(len(self._domain)) if self._match(k) == index]
        after = {self._match(k, without=index) for k in mine}
        if None in after or any(target(self._places[other]) != target(place) for other in after):
            return False
        last = max(after)
        between = self._places[index + 1 : last]
        lists_cases = isinstance(self._places[last].condition, Otherwise) and any(
            acts(one) and target(one) != target(place) for one in between
        )
        return not lists_cases

    def has_constant_part(self, index: int) -> bool:
        """Return whether a part of a rule's condition decides nothing (T105)."""
        condition = self._places[index].condition
        if isinstance(condition, Otherwise):
            return False
        whole = self._truths[index]
        if any(self._truth(condition, (part, value)) == whole for part in parts(condition) for value in (True, False)):
            return True
        left = [k for k in range(len(self._domain)) if (match := self._match(k)) is None or match >= index]
        return any(
            all(whole[k] == without[k] for k in left)
            for part in alternatives(condition)
            for without in [self._truth(condition, (part, False))]
        )

    def _truth(self, condition: Condition, swap: tuple[Condition, bool] | None = None) -> Truths:
        return [self._says(condition, record, swap) for record in self._domain]

    def _says(self, node: Condition, record: RecordFacts, swap: tuple[Condition, bool] | None) -> bool:
        if swap is not None and node is swap[0]:
            return swap[1]
        if isinstance(node, And):
            return all(self._says(part, record, swap) for part in node.parts)
        if isinstance(node, Or):
            return any(self._says(part, record, swap) for part in node.parts)
        if isinstance(node, Not):
            return not self._says(node.part, record, swap)
        return holds(node, record, self._words)

    def _match(self, k: int, without: int | None = None) -> int | None:
        rules = (i for i, place in enumerate(self._places) if acts(place) and i != without and self._truths[i][k])
        return next(rules, None)


def parts(node: Condition) -> Iterator[Condition]:
    """Yield a condition and all conditions inside it."""
    yield node
    inside = node.parts if isinstance(node, And | Or) else (node.part,) if isinstance(node, Not) else ()
    for part in inside:
        yield from parts(part)


def alternatives(node: Condition) -> Iterator[Condition]:
    """Yield the parts of every `or` that is not inside a `not`."""
    if isinstance(node, And | Or):
        for part in node.parts:
            if isinstance(node, Or):
                yield part
            yield from alternatives(part)


def target(place: Place) -> tuple[str, ...]:
    """Return where a rule puts records and what it asks of them first."""
    chain = format_chain(place.chain).removesuffix(" else reject")
    after = place.after
    return (chain,) if after is None else (chain, format_value(after.count), format_value(after.window))


def first_tier(place: Place) -> str:
    """Return the first tier of a rule's chain."""
    return place.chain.tiers[0].text.lower()
