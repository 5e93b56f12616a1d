"""One policy and many records: what is compiled and what the checks say against the naive interpreter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from naive import acting, first_match, moves
from random_policies import Pool

from flashnest.policy import Policy, PolicyCheckError, RecordFacts, Severity, compile_policy
from flashnest.policy.parse import parse
from flashnest.policy.syntax import Document, Source


def disagreements(text: str, pool: Pool, index: np.ndarray, told: Counter[str] | None = None) -> Iterator[str]:
    """Yield what differs between the compiled policy, or the findings that stop it, and the interpreter.

    `told` counts the pairs of policies that compile, and of those that findings stop.
    """
    told = Counter() if told is None else told
    document, broken = parse(Source(text))
    assert not broken, text
    try:
        policy = compile_policy(text)
    except PolicyCheckError as error:
        told["stopped by findings"] += len(index)
        yield from _wrong_findings(document, error, pool, index)
        return
    told["compiled"] += len(index)
    yield from _wrong_places(document, policy, pool, index)
    yield from _wrong_moves(document, policy, pool, index)


def _wrong_findings(document: Document, error: PolicyCheckError, pool: Pool, index: np.ndarray) -> Iterator[str]:
    """A gap is told wherever a record shows one, and no rule that is told never to act does."""
    errors = [one for one in error.diagnostics if one.severity is Severity.ERROR]
    codes, never = {one.code for one in errors}, {one.line for one in errors if one.code == "T102"}
    if not codes <= {"T101", "T102"}:
        yield f"a policy without mistakes is told {codes}"
    for record in (pool.records[i] for i in index.tolist()):
        rule = first_match(document, record)
        if rule is None and "T101" not in codes:
            yield f"no rule places {record}, and no gap is told"
        if rule is not None and document.places[rule].span.line in never:
            yield f"rule {rule + 1} places {record}, and is told to be unreachable"
        if never and document.moves and can_be(record):
            lines = {
                move.span.line for move, acts in zip(document.moves, acting(document, record), strict=True) if acts
            }
            if lines & never:
                yield f"the moves on lines {lines & never} take {record}, and are told never to act"


def can_be(record: RecordFacts) -> bool:
    """Return whether a record can have its facts: the checks of moves speak of such records alone."""
    counts = [hits for _, hits in sorted(record.window_hits)]
    idle_longer = all(hits == 0 for window_s, hits in record.window_hits if window_s < record.idle_s)
    return record.idle_s <= record.age_s and [*counts, record.hits] == sorted([*counts, record.hits]) and idle_longer


def _wrong_places(document: Document, policy: Policy, pool: Pool, index: np.ndarray) -> Iterator[str]:
    facts = pool.taken(index, ())
    arrays = facts.tokens, facts.kind, facts.namespace, facts.nbytes
    found = policy.placement.rule_codes(*arrays).tolist()
    chains = policy.placement.chain_codes(*arrays).tolist()
    for i, rule, chain in zip(index.tolist(), found, chains, strict=True):
        wanted = first_match(document, pool.records[i])
        if rule != wanted:
            yield f"{pool.records[i]} is placed by rule {rule + 1}, not {wanted}"
        if policy.placement.chains[chain] != policy.rules[rule].chain:
            yield f"{pool.records[i]} does not get the chain of its rule"


def _wrong_moves(document: Document, policy: Policy, pool: Pool, index: np.ndarray) -> Iterator[str]:
    if not document.moves:
        return
    facts = pool.taken(index, policy.moves.windows_s)
    found = [rule.matches(facts).tolist() for rule in policy.moves.rules]
    for position, i in enumerate(index.tolist()):
        wanted = moves(document, pool.records[i])
        if [taken[position] for taken in found] != wanted:
            yield f"{pool.records[i]} is taken by other moves than {wanted}"
