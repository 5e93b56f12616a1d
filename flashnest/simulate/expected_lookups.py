"""A step's lookups as a policy first places the records, predicted from a trace or from shares, without playing it.

As the router does, memory is asked for all candidates of a question first, then the drive for those that are stored
there and longer than what memory found: all of them at once (async), or the longest alone (blocking). Nothing is
promoted and nothing waits in a write buffer, so reads are an upper bound; the filter's false positives are left out.
Seconds are those that `simulate` uses (`latency`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from flashnest.policy.compile import Policy
from flashnest.policy.expectations import ExpectedLookups
from flashnest.policy.platform_facts import PlatformFacts
from flashnest.record import BoolArray, I32Array, I64Array, Kind, Tier
from flashnest.simulate.expected import Demand, first_learnt, first_tiers, rule_codes
from flashnest.simulate.latency import lookup_seconds
from flashnest.simulate.tier_options import TierOptions
from flashnest.simulate.trace import LOOKUP, Trace

_STEPS_OF_ONE: Final = 100
"""Equal steps that stand for one, so that one in a hundred meets the drive's p99."""


def expected_lookups(
    policy: Policy, demand: Demand, platform: PlatformFacts, options: TierOptions
) -> ExpectedLookups | None:
    """Predict a step's lookups. None where a trace asks nothing."""
    if demand.trace is not None:
        return _of_trace(policy, demand.trace, platform, options)
    streams = platform.concurrency
    by_rule = {number: streams * reads for number, reads in _reads_a_question(policy, demand, options).items()}
    keys = np.full(_STEPS_OF_ONE, streams * len(demand.lengths), np.int32)
    answers = np.full(_STEPS_OF_ONE, streams, np.int32)
    reads = np.full(_STEPS_OF_ONE, round(sum(by_rule.values())), np.int32)
    return _lookups(keys, answers, reads, by_rule, platform, options)


def answered(trace: Trace, begun: I64Array, stored: BoolArray) -> I64Array:
    """Return the lookups that answer a question, int64: its longest candidate that was learnt before and is `stored`.

    begun int64 (m,) as of `first_learnt`, stored bool (m,).
    """
    found = _found(trace, begun, stored)
    return found[_first_of_group(trace.group[found])]


def _reads_a_question(policy: Policy, demand: Demand, options: TierOptions) -> dict[int, float]:
    """Return, by the rule that placed them, the records read for a question that finds one: of each length as often as
    records have it, with all shorter ones stored too."""
    records = demand.records
    tiers, rules = first_tiers(policy, records), rule_codes(policy, records)
    ngrams = np.flatnonzero((records.kind == Kind.NGRAM) & (tiers >= 0))
    ordered = ngrams[np.argsort(records.tokens[ngrams], kind="stable")]
    shares = records.counts[ordered] / max(1e-9, float(records.counts[ordered].sum()))
    reads: dict[int, float] = {}
    for i in range(len(ordered)):
        for at in reversed(ordered[: i + 1].tolist()):
            if tiers[at] != Tier.NVME:
                break
            number = int(rules[at]) + 1
            reads[number] = reads.get(number, 0.0) + float(shares[i])
            if options.blocking:
                break
    return reads


def _of_trace(policy: Policy, trace: Trace, platform: PlatformFacts, options: TierOptions) -> ExpectedLookups | None:
    """Answer each question from what was learnt before, each record in the first tier of its chain."""
    at = np.flatnonzero(trace.op == LOOKUP)
    if not len(at):
        return None
    rules = policy.placement.rule_codes(trace.tokens, trace.kind, trace.namespace, trace.nbytes).astype(np.int64)
    placed = np.array([rule.chain[0] if rule.chain else -1 for rule in policy.rules], np.int64)[rules]
    found = _found(trace, first_learnt(trace), placed >= 0)
    groups = trace.group[found]
    answer, cold = found[_first_of_group(groups)], found[_before_memory(groups, placed[trace.record[found]])]
    if options.blocking:
        cold = answer[placed[trace.record[answer]] == Tier.NVME]
    keys, answers, reads = (
        np.bincount(trace.step[part], minlength=trace.steps).astype(np.int32) for part in (at, answer, cold)
    )
    steps = max(1, int(np.count_nonzero(keys)))
    parts = np.bincount(rules[trace.record[cold]], minlength=len(policy.rules)) / steps
    by_rule = {i + 1: float(part) for i, part in enumerate(parts) if part}
    return _lookups(keys, answers, reads, by_rule, platform, options)


def _found(trace: Trace, begun: I64Array, stored: BoolArray) -> I64Array:
    """Return the lookups whose record is stored and was learnt before them, int64."""
    lookups = np.flatnonzero(trace.op == LOOKUP)
    records = trace.record[lookups]
    return lookups[(begun[records] < lookups) & stored[records]]


def _first_of_group(groups: I64Array) -> BoolArray:
    first = np.ones(len(groups), np.bool_)
    first[1:] = groups[1:] != groups[:-1]
    return first


def _before_memory(groups: I64Array, tiers: I64Array) -> BoolArray:
    """Return which candidates found, longest first in each group, are on NVMe with none in memory in front of them."""
    warm = tiers != Tier.NVME
    so_far = np.cumsum(warm)
    starts = np.flatnonzero(_first_of_group(groups))
    sizes = np.diff(np.append(starts, len(groups)))
    before = np.repeat(so_far[starts] - warm[starts], sizes)
    cold: BoolArray = so_far == before
    return cold


def _lookups(
    keys: I32Array,
    answers: I32Array,
    reads: I32Array,
    by_rule: Mapping[int, float],
    platform: PlatformFacts,
    options: TierOptions,
) -> ExpectedLookups:
    none = np.zeros_like(reads)
    took = lookup_seconds(keys, answers, reads, platform, blocking=options.blocking)
    waiting = lookup_seconds(keys, answers, reads, platform, blocking=False)
    alone = lookup_seconds(keys, answers, none, platform, blocking=False)
    p50_s, p99_s = np.quantile(took, (0.5, 0.99), method="higher")
    return ExpectedLookups(
        keys=float(keys[keys > 0].mean()),
        reads=float(reads[keys > 0].mean()),
        reads_by_rule=by_rule,
        p50_s=float(p50_s),
        p99_s=float(p99_s),
        async_p99_s=float(np.quantile(waiting, 0.99, method="higher")),
        without_reads_s=float(np.quantile(alone, 0.99, method="higher")),
        blocking=options.blocking,
    )
