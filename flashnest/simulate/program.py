"""A compiled policy as arrays for the kernels: conditions in postfix order, limits and brakes of each move.

The conditions are those of `policy.resolved`; a test holds their evaluation here against `policy.evaluate`. Moves
nothing, reads no trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

from flashnest.policy import Policy
from flashnest.policy.facts import Fact
from flashnest.policy.moves import MoveRule
from flashnest.policy.resolved import AllOf, AnyOf, InRange, Meaning, Negated
from flashnest.record import F64Array, I64Array, Tier, U8Array

IN_RANGE, NEGATE, ALL_OF, ANY_OF, YES, NO = range(6)
"""What a row of a program does: compare a fact, or take values off the stack and put one on it."""
TOKENS, KIND, NAMESPACE, NBYTES, HITS, IDLE, AGE, REFS, ACCEPT, FIRST_WINDOW = range(10)
FACTS: Final = {
    "tokens": TOKENS,
    "kind": KIND,
    "namespace": NAMESPACE,
    "bytes": NBYTES,
    "hits": HITS,
    "idle": IDLE,
    "age": AGE,
    "refs": REFS,
    "accept": ACCEPT,
}
"""The policy's word for a fact, and its number in a program; windows follow from FIRST_WINDOW on."""

KEEP, PROMOTE, DEMOTE, EVICT = range(4)
ACTIONS: Final = {"keep": KEEP, "promote": PROMOTE, "demote": DEMOTE, "evict": EVICT}
NO_USING, UNUSED_FIRST, IDLE_FIRST, OLD_FIRST = range(4)
USING: Final = {None: NO_USING, "s3fifo": UNUSED_FIRST, "sieve": UNUSED_FIRST, "lru": IDLE_FIRST, "fifo": OLD_FIRST}

ACTION, SOURCE, TARGET, START, END, BY, DESCENDING, USES, TRIAL = range(9)
ACTION_WORDS: Final = 9
"""Columns of `Rules.words`. TARGET and BY are -1 where there is none; TRIAL is -1 for a rule that acts."""
RECORDS_PER_S, BYTES_PER_S, WHEN, UNTIL, COOLDOWN_S, RESIDENCY_S = range(6)
LIMITS: Final = 6
"""Columns of `Rules.limits`. Rates are in records a second, -1 where there is none; so is WHEN."""
UNITS, UNITS_AT = 0, 2
"""Of `Rules.brakes`: two token buckets, what they hold and when that was."""
JUDGED, RETURNED, NEXT_S, OPEN_UNTIL_S = 4, 5, 6, 7
ACTIVE, SHARE, SEEN, RESTS_UNTIL_S, MOVED_BEFORE, PASS_NEED, LEFT, STOPPED = range(8, 16)
BRAKES: Final = 16
MOVED, REFUSED, PING_PONGS, SUSPENSIONS, SUSPENDED_S, WOULD_HAVE = range(6)
COUNT_WORDS: Final = 6
"""Columns of `Rules.counts`."""
ROW_WORDS: Final = 4
MAX_TRIALS: Final = 31

_ANY_LOW: Final = -(2**62)
_ANY_HIGH: Final = 2**62


class Rules(NamedTuple):
    """The moves whose tiers are open, in file order.

    words int64 (rules, 9) and limits float64 (rules, 6): what they say; program int64 (p, 4): (what, fact, low, high)
    of all conditions, one after the other; brakes float64 (rules, 16) and counts int64 (rules, 6): what became of them;
    stack uint8: room for the deepest condition.
    """

    words: I64Array
    limits: F64Array
    program: I64Array
    brakes: F64Array
    counts: I64Array
    stack: U8Array


def open_rules(policy: Policy, tiers: Iterable[Tier]) -> tuple[MoveRule, ...]:
    """Return the moves whose tiers are all open, trials among them."""
    there = set(tiers)
    return tuple(
        rule for rule in policy.moves.rules if rule.source in there and (rule.target is None or rule.target in there)
    )


def make_rules(moves: tuple[MoveRule, ...], windows_s: tuple[int, ...], record_bytes: float) -> Rules:
    """Turn moves into arrays. `record_bytes`: of a record on average, for rates in bytes."""
    fact_of: dict[str | int, int] = dict(FACTS.items())
    fact_of.update((window, FIRST_WINDOW + at) for at, window in enumerate(windows_s))
    program: list[tuple[int, int, int, int]] = []
    words, limits, trials = [], [], 0
    for rule in moves:
        start = len(program)
        _add(program, rule.meaning, fact_of)
        words.append(_words(rule, start, len(program), -1 if rule.acts else min(trials, MAX_TRIALS - 1)))
        limits.append(_limits(rule, record_bytes))
        trials += not rule.acts
    brakes = np.zeros((len(moves), BRAKES))
    brakes[:, UNITS_AT : UNITS_AT + 2] = -1.0
    brakes[:, NEXT_S] = 0.0
    return Rules(
        words=np.array(words, np.int64).reshape(-1, ACTION_WORDS),
        limits=np.array(limits, np.float64).reshape(-1, LIMITS),
        program=np.array(program, np.int64).reshape(-1, ROW_WORDS),
        brakes=brakes,
        counts=np.zeros((len(moves), COUNT_WORDS), np.int64),
        stack=np.zeros(len(program) + 1, np.uint8),
    )


def _words(rule: MoveRule, start: int, end: int, trial: int) -> tuple[int, ...]:
    by, descending = (-1, 0) if rule.order is None else (FACTS[rule.order[0]], int(rule.order[1]))
    target = -1 if rule.target is None else int(rule.target)
    return (ACTIONS[rule.action], int(rule.source), target, start, end, by, descending, USING[rule.using], trial)


def _limits(rule: MoveRule, record_bytes: float) -> tuple[float, ...]:
    return (
        -1.0 if rule.most_records_per_s is None else rule.most_records_per_s,
        -1.0 if rule.most_bytes_per_s is None else rule.most_bytes_per_s / record_bytes,
        -1.0 if rule.when_fill is None else rule.when_fill,
        (rule.when_fill or 0.0) if rule.until_fill is None else rule.until_fill,
        rule.cooldown_s,
        rule.min_residency_s,
    )


def _add(program: list[tuple[int, int, int, int]], meaning: Meaning, fact_of: Mapping[str | int, int]) -> None:
    """Append a condition: its parts first, then what joins them; high is how many parts."""
    match meaning:
        case InRange(fact, low, high):
            program.append(_compare(fact, low, high, fact_of))
        case Negated(part):
            _add(program, part, fact_of)
            program.append((NEGATE, 0, 0, 1))
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                _add(program, part, fact_of)
            joined = (ALL_OF if isinstance(meaning, AllOf) else ANY_OF, 0, 0, len(parts))
            program.append(joined if parts else (YES if isinstance(meaning, AllOf) else NO, 0, 0, 0))


def _compare(fact: Fact, low: int, high: int, fact_of: Mapping[str | int, int]) -> tuple[int, int, int, int]:
    """Compare with the ends that the fact can pass; the ends of its range bound nothing: see `policy.evaluate`."""
    low, high = max(low, fact.low), min(high, fact.high)
    if low > high:
        return (NO, 0, 0, 0)
    number = fact_of[fact.window_s or fact.name]
    return (IN_RANGE, number, low if low > fact.low else _ANY_LOW, high if high < fact.high else _ANY_HIGH)
