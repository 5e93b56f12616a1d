"""An Explanation as lines for people and as plain JSON values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flashnest.policy.explain import Change, Explanation
from flashnest.policy.facts import FACTS, MOVE_FACTS
from flashnest.policy.moves import MoveRule
from flashnest.policy.record_text import record_text
from flashnest.policy.resolved import Rule


def explanation_lines(one: Explanation) -> Iterator[str]:
    """Yield the explanation, for a terminal."""
    yield f"{_record(one)}: {one.answer}"
    yield f"  decided by {_called(one.rule, one.source)}"
    if one.passed:
        yield "rules before it:"
    for passed in one.passed:
        yield f"  {passed.rule.called}: {passed.rule.text}"
        yield f"    {passed.why}"
    yield "what would change the answer:" if one.changes else "no change of one fact would change the answer"
    for change in one.changes:
        by = f" by {change.rule.title}" if change.rule else ", no rule takes it"
        yield f"  {change.fact} {change.old} -> {change.new}: {change.answer}{by}"
    yield "what moves do with such a record:"
    for tier, words in one.moves:
        yield f"  in {tier.name.lower()}: {words}"


def explanation_json(one: Explanation) -> dict[str, Any]:
    """Return the explanation as plain JSON values. `fill` is 0..1."""
    return {
        "policy": one.source,
        "record": record_text(one.record, tuple(MOVE_FACTS if one.tier is not None else FACTS)),
        "tier": None if one.tier is None else one.tier.name.lower(),
        "fill": one.fill,
        "answer": one.answer,
        "rule": _rule_json(one.rule),
        "passed": [{"rule": _rule_json(passed.rule), "why": passed.why} for passed in one.passed],
        "changes": [_change_json(change) for change in one.changes],
        "moves": {tier.name.lower(): words for tier, words in one.moves},
    }


def _record(one: Explanation) -> str:
    if one.tier is None:
        return f"new record {record_text(one.record)}"
    return f"record {record_text(one.record, tuple(MOVE_FACTS))} in {one.tier.name.lower()}, fill {100 * one.fill:.4g}%"


def _called(rule: Rule | MoveRule | None, source: str) -> str:
    return "no rule: none takes it" if rule is None else f"{rule.title} at {source}:{rule.line}: {rule.text}"


def _rule_json(rule: Rule | MoveRule | None) -> dict[str, Any] | None:
    if rule is None:
        return None
    return {"number": rule.number, "name": rule.name, "line": rule.line, "text": rule.text}


def _change_json(change: Change) -> dict[str, Any]:
    return {
        "fact": change.fact,
        "from": change.old,
        "to": change.new,
        "answer": change.answer,
        "rule": _rule_json(change.rule),
    }
