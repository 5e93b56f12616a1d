"""What a rule is at run time: its facts, its brakes, its figures. Moves nothing; the rules themselves are the policy's.

A rule is asked for whole batches. Its brakes are a rate, a cooldown, a least residency and the ping-pong breaker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from flashnest import record
from flashnest.jit import kernel
from flashnest.record import BoolArray, FactArrays, I64Array, U8Array, U32Array, U64Array
from flashnest.storage.ping_pong import NEVER_S, WINDOW_S, Breaker, RecentMoves
from flashnest.storage.rates import TokenBucket
from flashnest.storage.sketch import WindowedCounts
from flashnest.storage.store import MoveRule

_META, _NAMESPACE, _HITS = record.META, record.NAMESPACE, record.HITS
_LAST, _INSERTED = record.LAST_ACCESS, record.INSERTED
_DRAFTED, _ACCEPTED, _REFS = record.DRAFTED, record.ACCEPTED, record.REFS
_BYTE, _EIGHT = np.uint32(0xFF), np.uint32(8)

_FIELDS: Final = {
    "tokens": "tokens",
    "kind": "kind",
    "namespace": "namespace",
    "bytes": "nbytes",
    "hits": "hits",
    "idle": "idle_s",
    "age": "age_s",
    "refs": "refs",
    "accept": "accept_percent",
}
"""The policy's word for a fact, and its array."""


@kernel
def _facts(
    rows: U32Array,
    now: int,
    tokens: U8Array,
    kind: U8Array,
    accept: U8Array,
    numbers: U32Array,
) -> None:
    """Write the facts of rows; numbers uint32 (5, n): namespace, hits, idle, age, refs."""
    for i in range(rows.shape[0]):
        meta, drafted = rows[i, _META], np.int64(rows[i, _DRAFTED])
        tokens[i], kind[i] = (meta >> _EIGHT) & _BYTE, meta & _BYTE
        accept[i] = 100 if drafted == 0 else min(np.int64(100), 100 * np.int64(rows[i, _ACCEPTED]) // drafted)
        numbers[0, i], numbers[1, i] = rows[i, _NAMESPACE], rows[i, _HITS]
        numbers[2, i] = max(now - int(rows[i, _LAST]), 0)
        numbers[3, i] = max(now - int(rows[i, _INSERTED]), 0)
        numbers[4, i] = rows[i, _REFS]


def read_facts(
    keys: U64Array, rows: U32Array, now_s: int, record_bytes: int, windows: tuple[WindowedCounts, ...]
) -> FactArrays:
    """Return what a policy may ask of stored records at `now_s`: keys (n,), rows (n, words)."""
    n = len(keys)
    tokens, kind, accept = np.empty(n, np.uint8), np.empty(n, np.uint8), np.empty(n, np.uint8)
    numbers = np.empty((5, n), np.uint32)
    _facts(rows, now_s, tokens, kind, accept, numbers)
    return FactArrays(
        tokens=tokens,
        kind=kind,
        namespace=numbers[0],
        nbytes=np.full(n, record_bytes, np.uint32),
        hits=numbers[1],
        idle_s=numbers[2],
        age_s=numbers[3],
        refs=numbers[4],
        accept_percent=accept,
        window_hits=tuple(window.count_many(keys) for window in windows),
    )


@dataclass(frozen=True, slots=True)
class RuleStats:
    """What one rule did so far. moved: records moved or dropped, and their `nbytes`; refused: chosen, but there was no
    room where they should go; ping_pongs: moves of records that had just come the other way; suspensions: times the
    rule was stopped for that, `suspended_s` in all. A trial moves nothing: would_have counts the records it would have
    moved, each once."""

    number: int
    text: str
    action: str
    moved: int
    nbytes: int
    refused: int
    ping_pongs: int
    suspensions: int
    suspended_s: int
    is_trial: bool
    would_have: int


class RuleState:
    """One promote, demote or evict rule with its brakes and counters. One thread owns it.

    A trial has neither rate nor watermarks to obey: it takes each record once, whenever it would take one at all.
    """

    def __init__(self, rule: MoveRule, record_bytes: int) -> None:
        self.rule = rule
        self.breaker = Breaker(rule.text)
        self.moved = self.refused = self.would_have = 0
        self._tried = None if rule.acts else RecentMoves()
        self.stopped = False
        """Its target took no more: it waits for the next sweep."""
        self._record_bytes = record_bytes
        rates = [rule.most_records_per_s]
        if rule.most_bytes_per_s is not None:
            rates.append(rule.most_bytes_per_s / record_bytes)
        self._buckets = [TokenBucket(rate) for rate in rates if rate is not None]

    @property
    def return_window_s(self) -> int:
        """Within this time a record that goes back is a ping-pong."""
        return max(WINDOW_S, int(self.rule.min_residency_s))

    @property
    def is_trial(self) -> bool:
        """Whether the rule only counts."""
        return self._tried is not None

    def is_awake(self, records: int, room: int) -> bool:
        """Whether a rule that looks at every record of a tier does so now: `records` of `room` are above its mark."""
        when = self.rule.when_fill
        return when is None or records > when * room

    def try_many(self, keys: U64Array, now_s: int) -> None:
        """Count the records that a trial would have moved now; one in some 100 K is forgotten and counted again."""
        assert self._tried is not None
        new = keys[self._tried.ages_many(keys, now_s) == NEVER_S]
        self._tried.note_many(new, now_s, self.rule.source, self.rule.target, 0)
        self.would_have += len(new)

    def most_now(self, now_s: float, wanted: int) -> int:
        """Return how many of `wanted` records the rule may move now."""
        if self.stopped or self.breaker.is_open(int(now_s)):
            return 0
        for bucket in self._buckets:
            wanted = min(wanted, int(bucket.available(now_s)))
        return wanted

    @property
    def asks_for_rest(self) -> bool:
        """Whether the rule leaves records alone that moved lately."""
        return bool(self.rule.cooldown_s or self.rule.min_residency_s)

    def rested(self, facts: FactArrays, ages_s: U32Array | None, at: I64Array) -> I64Array:
        """Return those of the records `at` that did not move (`ages_s`), or came into their tier, too lately."""
        rule = self.rule
        if ages_s is None or not self.asks_for_rest:
            return at
        ok: BoolArray = ages_s[at] >= max(rule.cooldown_s, rule.min_residency_s)
        if rule.min_residency_s:
            ok &= facts.age_s[at] >= rule.min_residency_s
        return at[ok]

    def note(self, moved: int, refused: int, returned: int, now_s: int) -> None:
        """Count what became of the records chosen."""
        self.moved += moved
        self.refused += refused
        for bucket in self._buckets:
            bucket.take(moved)
        if moved:
            self.breaker.note(moved, returned, now_s)

    def stats(self) -> RuleStats:
        """Return the rule's figures."""
        rule, breaker = self.rule, self.breaker
        return RuleStats(
            number=rule.number,
            text=rule.text,
            action=rule.action,
            moved=self.moved,
            nbytes=self.moved * self._record_bytes,
            refused=self.refused,
            ping_pongs=breaker.ping_pongs,
            suspensions=breaker.suspensions,
            suspended_s=breaker.suspended_s,
            is_trial=self.is_trial,
            would_have=self.would_have,
        )


def first_by(facts: FactArrays, order: tuple[str, bool] | None, at: I64Array, most: int) -> I64Array:
    """Return `most` of the records `at`: those that come first by `order`, (fact, descending), or just the first."""
    if len(at) <= most:
        return at
    if order is None:
        return at[:most]
    if not most:
        return at[:0]
    values = fact_of(facts, order[0])[at]
    return at[np.argpartition(~values if order[1] else values, most - 1)[:most]]


def fact_of(facts: FactArrays, name: str) -> U8Array | U32Array:
    """Return the array of the fact that a policy calls `name`."""
    values: U8Array | U32Array = getattr(facts, _FIELDS[name])
    return values


def first_unused(facts: FactArrays, using: str, at: I64Array, most: int) -> I64Array:
    """Return `most` of the records `at` that an eviction algorithm would take first, judged by their facts alone.

    Cold records have no queue: what was never hit goes first, as S3-FIFO and SIEVE would have it, then the oldest
    (`fifo`) or the longest idle (the others).
    """
    if len(at) <= most:
        return at
    waited = facts.age_s if using == "fifo" else facts.idle_s
    hit = np.zeros(len(at), np.bool_) if using in {"fifo", "lru"} else facts.hits[at] > 0
    return at[np.lexsort((-waited[at].astype(np.int64), hit))[:most]]
