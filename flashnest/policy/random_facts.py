"""Records drawn for a policy: half of each fact at and beside the policy's own constants, half from the whole range.

For benchmarks and for tests that compare two answers: uniform records would hardly ever meet a threshold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from flashnest.policy.compile import Policy
from flashnest.policy.facts import MOVE_FACTS, Fact, hits_within
from flashnest.policy.resolved import ranges
from flashnest.record import FactArrays, I64Array


def random_facts(policy: Policy, count: int, random: np.random.Generator) -> FactArrays:
    """Return the facts of `count` records, each fact drawn by itself, as far as one record can have them.

    Idle times are never longer than ages, and hits within a time never more than hits.
    """
    meanings = [rule.meaning for rule in policy.rules] + [rule.meaning for rule in policy.moves.rules]
    cuts: dict[str, set[int]] = {}
    for atom in (atom for meaning in meanings for atom in ranges(meaning)):
        cuts.setdefault(atom.fact.name, set()).update((atom.low - 1, atom.low, atom.high, atom.high + 1))

    def drawn(fact: Fact) -> I64Array:
        return _drawn(fact, cuts.get(fact.name, set()), count, random)

    codes = {name: drawn(fact) for name, fact in MOVE_FACTS.items()}
    windows = [drawn(hits_within(window_s)) for window_s in policy.moves.windows_s]
    facts = FactArrays(
        tokens=codes["tokens"].astype(np.uint8),
        kind=codes["kind"].astype(np.uint8),
        namespace=codes["namespace"].astype(np.uint32),
        nbytes=codes["bytes"].astype(np.uint32),
        hits=codes["hits"].astype(np.uint32),
        idle_s=np.minimum(codes["idle"], codes["age"]).astype(np.uint32),
        age_s=codes["age"].astype(np.uint32),
        refs=codes["refs"].astype(np.uint32),
        accept_percent=codes["accept"].astype(np.uint8),
    )
    return replace(facts, window_hits=tuple(np.minimum(hits, codes["hits"]).astype(np.uint32) for hits in windows))


def _drawn(fact: Fact, cuts: Iterable[int], count: int, random: np.random.Generator) -> I64Array:
    """Return codes of one fact, int64 (count,)."""
    drawn: I64Array = random.integers(fact.low, fact.high, count, endpoint=True)
    near = np.array(sorted({cut for cut in cuts if fact.low <= cut <= fact.high}), np.int64)
    if len(near):
        beside = random.random(count) < 0.5
        drawn[beside] = random.choice(near, int(beside.sum()))
    return drawn
