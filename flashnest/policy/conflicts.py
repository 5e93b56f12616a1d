"""What the moves do to each other: rules that never act (T102), ping-pong (T301), cycles (T304), idle sources (T307).

Exact by cells over the facts that the moves at hand name, as `coverage` is for `place`; only conditions that two or
three moves share are compared, so the cells stay few. Time stands still: what a record's facts will be later is not
looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, islice
from typing import Final

from flashnest.policy.boxes import boxes, sample
from flashnest.policy.check import Checked
from flashnest.policy.diagnostics import Diagnostic, Label, Note, Severity
from flashnest.policy.moves import KEEP, MoveRule
from flashnest.policy.possible import MAX_MOVE_CELLS, grid_of, laws, named
from flashnest.policy.record_text import record_text
from flashnest.policy.resolved import AllOf, AnyOf, Meaning, Negated
from flashnest.policy.syntax import Span
from flashnest.record import Tier

_SHOWN: Final = 3


def check_conflicts(checked: Checked) -> tuple[Diagnostic, ...]:
    """Return the findings about the moves of a policy whose names are right."""
    rules = checked.moves.rules
    too_large = [_too_large(checked, rule) for rule in rules if grid_of([rule.meaning]) is None]
    if too_large:
        return tuple(too_large)
    able = [rule for rule in rules if _record(_in_effect(rule, rules), checked.namespaces) is not None]
    never = [_never_acts(checked, rule) for rule in rules if rule not in able]
    movers = [rule for rule in able if rule.action != KEEP and rule.acts]
    rounds = islice(_rounds(checked, movers), _SHOWN)
    return (*never, *rounds, *_idle_sources(checked), *_idle_goals(checked))


def _in_effect(rule: MoveRule, rules: Sequence[MoveRule]) -> Meaning:
    """Return the condition of a move without the records that a `keep` holds in its source."""
    if rule.action == KEEP:
        return rule.meaning
    kept = tuple(one.meaning for one in _keeps(rule.source, rules))
    return AllOf((rule.meaning, Negated(AnyOf(kept)))) if kept else rule.meaning


def _keeps(tier: Tier, rules: Sequence[MoveRule]) -> list[MoveRule]:
    """Return the rules that hold records in a tier; a trial holds none."""
    return [one for one in rules if one.action == KEEP and one.source is tier and one.acts]


def _record(meaning: Meaning, spaces: Mapping[int, str]) -> str | None:
    """Return a record that satisfies a condition, None without one; "" where the cells are too many to look."""
    grid = grid_of([meaning])
    if grid is None:
        return ""
    possible = grid.mask(AllOf((meaning, *laws([meaning]))))
    box = next(boxes(possible), None)
    return None if box is None else record_text(sample(box, grid, spaces), named(grid))


def _rounds(checked: Checked, movers: Sequence[MoveRule]) -> Iterator[Diagnostic]:
    """Yield a warning for each round trip that nothing slows down, and each promotion into an eviction."""
    free = [rule for rule in movers if not rule.cooldown_s and not rule.min_residency_s]
    effect = {rule.number: _in_effect(rule, checked.moves.rules) for rule in free}
    for up in (rule for rule in free if rule.action == "promote"):
        for back in (rule for rule in free if rule.source is up.target):
            if back.action == "evict" or back.target is up.source:
                record = _record(AllOf((effect[up.number], effect[back.number])), checked.namespaces)
                if record:
                    yield _ping_pong(checked, up, back, record)
    for trio in combinations(free, 3):
        if _is_cycle(trio):
            record = _record(AllOf(tuple(effect[rule.number] for rule in trio)), checked.namespaces)
            if record:
                yield _cycle(checked, trio, record)


def _is_cycle(rules: Sequence[MoveRule]) -> bool:
    """Whether moves lead from a tier over others back to it."""
    ways = {rule.source: rule.target for rule in rules}
    at: Tier | None = rules[0].source
    for _ in rules:
        at = None if at is None else ways.get(at)
    return len(ways) == len(rules) and at is rules[0].source and set(ways.values()) == set(ways)


def _ping_pong(checked: Checked, up: MoveRule, back: MoveRule, record: str) -> Diagnostic:
    what = "promotes records that it evicts at once" if back.action == "evict" else "moves the same record to and fro"
    message = f"{up.title} with {back.called} {what}"
    return _warning(checked, "T301", message, (up, back), record)


def _cycle(checked: Checked, trio: Sequence[MoveRule], record: str) -> Diagnostic:
    names = ", ".join(str(rule.number) for rule in trio)
    return _warning(checked, "T304", f"rules {names} move the same record round and round", trio, record)


def _warning(checked: Checked, code: str, message: str, rules: Sequence[MoveRule], record: str) -> Diagnostic:
    first, *others = rules
    labels = tuple(Label(_place(rule), "takes it too") for rule in others)
    help_text = "add `cooldown 30s` or `min residency 60s` to one of them, or let their conditions exclude each other"
    notes = (Note("example", f"record: {record}"), Note("help", help_text))
    primary = Label(_place(first), "takes it")
    return Diagnostic(code, message, checked.source, primary, labels, notes, severity=Severity.WARNING)


def _place(rule: MoveRule) -> Span:
    condition = rule.statement.condition
    return rule.statement.span if condition is None else condition.span


def _never_acts(checked: Checked, rule: MoveRule) -> Diagnostic:
    record = _record(rule.meaning, checked.namespaces)
    if record is None:
        note = Note("help", "its condition contradicts itself: no record can satisfy it")
        primary = Label(_place(rule), "no record")
        return Diagnostic("T102", "this rule can never match", checked.source, primary, notes=(note,))
    keeps = _keeps(rule.source, checked.moves.rules)
    names = " and ".join(one.called for one in keeps)
    tier = rule.source.name.lower()
    message = f"this rule never acts: {names} {'keeps' if len(keeps) == 1 else 'keep'} all its records in `{tier}`"
    labels = tuple(Label(_place(one), "keeps them") for one in keeps)
    notes = (Note("example", f"record: {record}"), Note("help", f"narrow the `keep`, or remove this {rule.action}"))
    return Diagnostic("T102", message, checked.source, Label(rule.statement.span, "never acts"), labels, notes)


def _idle_sources(checked: Checked) -> Iterator[Diagnostic]:
    """Yield a warning for each rule about a tier into which nothing places or moves records."""
    filled = _filled(checked)
    for rule in checked.moves.rules:
        if rule.source not in filled:
            message = f"nothing places or moves records into `{rule.source.name.lower()}`"
            label = Label(rule.statement.span, f"looks at the records of `{rule.source.name.lower()}`")
            note = Note("help", f"name `{rule.source.name.lower()}` in a `place`, or remove this rule")
            severity = Severity.WARNING
            yield Diagnostic("T307", message, checked.source, label, notes=(note,), severity=severity)


def _idle_goals(checked: Checked) -> Iterator[Diagnostic]:
    """Yield a warning for each `flush` and `require` about a tier without records."""
    filled = _filled(checked)
    for tier, span in checked.asked:
        if tier not in filled:
            name = tier.name.lower()
            message = f"nothing places or moves records into `{name}`"
            note = Note("help", f"name `{name}` in a `place`, or remove this")
            label = Label(span, f"is about `{name}`")
            yield Diagnostic("T307", message, checked.source, label, notes=(note,), severity=Severity.WARNING)


def _filled(checked: Checked) -> set[Tier]:
    """Return the tiers that rules which act put records into."""
    filled = {tier for rule in checked.rules if rule.acts for tier in rule.chain}
    return filled | {rule.target for rule in checked.moves.rules if rule.acts and rule.target is not None}


def _too_large(checked: Checked, rule: MoveRule) -> Diagnostic:
    message = "this condition tells too many sorts of records apart to be checked"
    note = Note("help", f"at most {MAX_MOVE_CELLS} sorts; name fewer facts or constants")
    return Diagnostic("T003", message, checked.source, Label(_place(rule)), notes=(note,))
