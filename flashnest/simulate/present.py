"""The table as it stands after a trace, for `policy plan`: each record where the policy first found room for it.

Nothing is played: no move, no eviction, no promotion; hits are counted as if every record had stayed. `simulate` plays.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flashnest.policy.compile import Policy
from flashnest.policy.expectations import TierRoom
from flashnest.policy.plan import Present
from flashnest.record import FactArrays, I64Array, Tier, U8Array, U32Array
from flashnest.simulate.expected import first_learnt
from flashnest.simulate.expected_lookups import answered
from flashnest.simulate.trace import INSERT, Trace

_NOWHERE = 255


def present_after(trace: Trace, policy: Policy, rooms: Mapping[Tier, TierRoom], windows_s: tuple[int, ...]) -> Present:
    """Place the records of a trace in the order in which they were learnt, and count what was asked of them since."""
    learns = np.flatnonzero(trace.op == INSERT)
    begun = first_learnt(trace)
    tiers = _placed(trace, policy, rooms, begun)
    stored = tiers != _NOWHERE
    answers = answered(trace, begun, stored)
    asked = trace.record[answers]
    hits = np.bincount(asked, minlength=trace.records)
    times_s = trace.step_time_ms // 1000
    end_s = int(times_s[-1]) if trace.steps else 0
    made = times_s[trace.step[np.minimum(begun, max(0, len(trace) - 1))]]
    used = made.copy()
    np.maximum.at(used, asked, times_s[trace.step[answers]])
    late = [answers[end_s - times_s[trace.step[answers]] <= window_s] for window_s in windows_s]
    windows = [np.bincount(trace.record[part], minlength=trace.records) for part in late]
    facts = FactArrays(
        tokens=trace.tokens[stored],
        kind=trace.kind[stored],
        namespace=trace.namespace[stored],
        nbytes=trace.nbytes[stored],
        hits=_counts(hits, stored),
        idle_s=_counts(end_s - used, stored),
        age_s=_counts(end_s - made, stored),
        refs=_counts(np.bincount(trace.record[learns], minlength=trace.records), stored),
        accept_percent=np.full(int(stored.sum()), 100, np.uint8),
        window_hits=tuple(_counts(window, stored) for window in windows),
    )
    source = f"{len(facts.tokens):,} records after {trace.name}, placed by {policy.source}: {trace.source}"
    return Present(facts, windows_s, tiers[stored], source)


def _placed(trace: Trace, policy: Policy, rooms: Mapping[Tier, TierRoom], begun: I64Array) -> U8Array:
    """Return each record's tier: the first of its chain with room when its turn comes; uint8 (m,), 255 for none."""
    rules = policy.placement.rule_codes(trace.tokens, trace.kind, trace.namespace, trace.nbytes)
    order = np.argsort(begun, kind="stable")
    left = order[begun[order] < len(trace)]
    tiers = np.full(trace.records, _NOWHERE, np.uint8)
    free = {tier: room.records for tier, room in rooms.items()}
    for depth in range(max((len(rule.chain) for rule in policy.rules), default=0)):
        wanted = np.array(
            [rule.chain[depth] if depth < len(rule.chain) else _NOWHERE for rule in policy.rules], np.uint8
        )
        for tier in rooms:
            going = left[wanted[rules[left]] == tier][: free[tier]]
            tiers[going] = tier
            free[tier] -= len(going)
        left = left[tiers[left] == _NOWHERE]
    return tiers


def _counts(values: I64Array, stored: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> U32Array:
    return np.maximum(values[stored], 0).astype(np.uint32)
