"""Why a policy decides about one record as it does, and the smallest changes of the record that would change that.

For people and programs: `Policy.explain` returns an Explanation, `explain_output` makes it text or JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flashnest.policy.cells import make_grid
from flashnest.policy.compile import Policy
from flashnest.policy.evaluate import holds
from flashnest.policy.facts import FACTS, Fact, FactType, RecordFacts
from flashnest.policy.moves import KEEP, MoveRule
from flashnest.policy.outcomes import Placed, moved
from flashnest.policy.reasons import first_false, record_value, value_words, why_not
from flashnest.policy.resolved import Rule, ranges
from flashnest.record import Kind, Tier, namespace_id

STAY = "stay"


@dataclass(frozen=True, slots=True)
class Passed:
    """A rule that might have decided and did not: `why` is its first false atom and the record's value."""

    rule: Rule | MoveRule
    why: str


@dataclass(frozen=True, slots=True)
class Change:
    """One fact changed as little as changes the answer: `fact` from `old` to `new`, then `answer` by `rule`."""

    fact: str
    old: str
    new: str
    answer: str
    rule: Rule | MoveRule | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """What becomes of one record and why. `tier` is where it is stored, None: it is new; `fill` 0..1 of that tier.

    `rule` decides, None: no rule, the record stays. `passed` are the acting rules before it in the order of their
    rank; `changes` the nearest changes of each fact; `moves` what moves would do with the record in each tier.
    """

    record: RecordFacts
    tier: Tier | None
    fill: float
    rule: Rule | MoveRule | None
    answer: str
    passed: tuple[Passed, ...]
    changes: tuple[Change, ...]
    moves: tuple[tuple[Tier, str], ...]
    source: str


def explain(policy: Policy, record: RecordFacts, tier: Tier | None = None, fill: float = 0.0) -> Explanation:
    """Explain what a policy does with a record: where a new one is placed, or what moves do to one stored in `tier`
    while that is `fill` full, 0..1."""
    rule = _decides(policy, record, tier, fill)
    return Explanation(
        record=record,
        tier=tier,
        fill=fill,
        rule=rule,
        answer=_answer(rule, tier),
        passed=tuple(_passed(policy, record, tier, fill, rule)),
        changes=tuple(_changes(policy, record, tier, fill)),
        moves=tuple(_in_each_tier(policy, record)),
        source=policy.source,
    )


def _decides(policy: Policy, record: RecordFacts, tier: Tier | None, fill: float) -> Rule | MoveRule | None:
    return policy.place(record) if tier is None else policy.move(record, tier, fill)


def _answer(rule: Rule | MoveRule | None, tier: Tier | None) -> str:
    if isinstance(rule, Rule):
        return str(Placed(rule.chain, rule.admission))
    if rule is None or rule.action == KEEP:
        return STAY if tier is None else f"{STAY} in {tier.name.lower()}"
    return rule.action if rule.target is None else f"{rule.action} to {rule.target.name.lower()}"


def _passed(
    policy: Policy, record: RecordFacts, tier: Tier | None, fill: float, decided: Rule | MoveRule | None
) -> Iterator[Passed]:
    """Yield the acting rules that rank before the one that decided, with what kept each from it."""
    spaces = policy.namespace_names
    if tier is None:
        for rule in policy.rules:
            if rule is decided:
                return
            if rule.acts:
                yield Passed(rule, first_false(rule.meaning, record, spaces))
        return
    here = [rule for rule in policy.moves.rules if rule.acts and rule.source is tier]
    for move in sorted(here, key=lambda one: one.action != KEEP):
        if move is decided:
            return
        yield Passed(move, why_not(move, record, fill, spaces))


def _in_each_tier(policy: Policy, record: RecordFacts) -> Iterator[tuple[Tier, str]]:
    for tier in sorted(policy.tiers):
        here = [rule for rule in policy.moves.rules if rule.acts and rule.source is tier]
        outcome, parts = moved([rule for rule in here if holds(rule.meaning, record)])
        by = f" ({', '.join(rule.title for rule in parts)})" if parts else ""
        yield tier, f"{outcome}{by}"


def _changes(policy: Policy, record: RecordFacts, tier: Tier | None, fill: float) -> Iterator[Change]:
    """Yield, for every fact that rules name, its nearest value below and above at which the answer is another."""
    now = _answer(_decides(policy, record, tier, fill), tier)
    for fact, below, above in _candidates(policy, record, tier):
        for values in (below, above):
            for value in values:
                other = _with(record, fact, value, policy)
                rule = _decides(policy, other, tier, fill)
                answer = _answer(rule, tier)
                if answer != now:
                    spaces = {**policy.namespace_names, namespace_id(other.namespace): other.namespace}
                    old = record_value(fact, record, policy.namespace_names)
                    yield Change(fact.name, old, value_words(fact, value, spaces), answer, rule)
                    break
    if tier is not None:
        yield from _fill_changes(policy, record, tier, fill, now)


def _candidates(
    policy: Policy, record: RecordFacts, tier: Tier | None
) -> Iterator[tuple[Fact, Sequence[int], Sequence[int]]]:
    """Yield each fact that the rules cut, with the values nearest to the record's in the intervals below and above."""
    rules: Sequence[Rule | MoveRule] = policy.rules
    if tier is not None:
        rules = [rule for rule in policy.moves.rules if rule.source is tier]
    meanings = [rule.meaning for rule in rules if rule.acts]
    named = dict.fromkeys(atom.fact for meaning in meanings for atom in ranges(meaning))
    grid = make_grid([*FACTS.values(), *(fact for fact in named if fact.name not in FACTS)], meanings)
    for axis in grid.axes:
        fact, code = axis.fact, record.code(axis.fact)
        if fact not in named:
            continue
        if fact.type is FactType.KIND:
            yield fact, [], [int(kind) for kind in Kind if kind != code]
        elif fact.type is FactType.NAMESPACE:
            yield fact, [], [one for one in policy.namespaces if one != code]
        else:
            starts = axis.starts.tolist()
            below = [start - 1 for start in reversed(starts) if fact.low < start <= code]
            yield fact, below, [start for start in starts if start > code]


def _with(record: RecordFacts, fact: Fact, value: int, policy: Policy) -> RecordFacts:
    """Return the record with one fact changed, and what has to follow: never longer idle than old, no more hits within
    a time than within a longer one or in all."""
    if fact.window_s:
        return _with_hits_within(record, fact.window_s, value)
    match fact.name:
        case "tokens":
            return replace(record, tokens=value)
        case "kind":
            return replace(record, kind=Kind(value))
        case "namespace":
            return replace(record, namespace=policy.namespace_names[value])
        case "bytes":
            return replace(record, nbytes=value)
        case "hits":
            windows = tuple((window_s, min(hits, value)) for window_s, hits in record.window_hits)
            return replace(record, hits=value, window_hits=windows)
        case "idle":
            return replace(record, idle_s=value, age_s=max(record.age_s, value))
        case "age":
            return replace(record, age_s=value, idle_s=min(record.idle_s, value))
        case "refs":
            return replace(record, refs=value)
        case _:
            return replace(record, accept_percent=value)


def _with_hits_within(record: RecordFacts, window_s: int, value: int) -> RecordFacts:
    shorter = [(one, min(hits, value)) for one, hits in record.window_hits if one < window_s]
    longer = [(one, max(hits, value)) for one, hits in record.window_hits if one > window_s]
    idle = min(record.idle_s, window_s) if value else record.idle_s
    windows = (*shorter, (window_s, value), *longer)
    return replace(record, hits=max(record.hits, value), window_hits=windows, idle_s=idle)


def _fill_changes(policy: Policy, record: RecordFacts, tier: Tier, fill: float, now: str) -> Iterator[Change]:
    """Yield the nearest fill below and above at which the answer is another; above a watermark, one point above it."""
    marks = sorted(
        {rule.when_fill for rule in policy.moves.rules if rule.source is tier and rule.when_fill is not None}
    )
    for values in ([m for m in reversed(marks) if m < fill], [min(1.0, m + 0.01) for m in marks if m >= fill]):
        for value in values:
            rule = policy.move(record, tier, value)
            answer = _answer(rule, tier)
            if answer != now:
                yield Change("fill", f"{100 * fill:.4g}%", f"{100 * value:.4g}%", answer, rule)
                break
