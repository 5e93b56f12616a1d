"""Mutants of a checked policy, run against the file's tests: a mutant that no test tells from the policy is a boundary
that nobody tested.

A mutant differs in one place. Changes are made to what the rules mean, not to their text, so `>=` to `>` and a constant
plus one are one mutant, and a class is changed in one rule at a time. Mutation analysis as in DeMillo, Lipton, Sayward,
"Hints on test data selection" (1978); equivalence is undecidable for programs, here cells decide it exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from flashnest.policy.cases import TestCase
from flashnest.policy.compile import Policy
from flashnest.policy.difference import Region, difference
from flashnest.policy.evaluate import holds
from flashnest.policy.facts import time_words
from flashnest.policy.moves import MovePlan, MoveRule
from flashnest.policy.mutant_conditions import changed_conditions
from flashnest.policy.outcomes import Moved, Placed
from flashnest.policy.refusals import refused
from flashnest.policy.resolved import Rule
from flashnest.policy.testing import goes_there, rule_number
from flashnest.policy.tiering_file import TieringFile
from flashnest.record import Tier

__all__ = ["Mutant", "MutationReport", "Survivor", "mutants", "mutate"]

_POINT = 0.01


@dataclass(frozen=True, slots=True)
class Mutant:
    """A policy changed in one place: which rule, how in words, and its rules as they would be, numbers kept."""

    rule: Rule | MoveRule
    change: str
    policy: Policy


@dataclass(frozen=True, slots=True)
class Survivor:
    """A mutant that no test tells from the policy, and a test, as YAML, that would."""

    line: int
    rule: str
    change: str
    test: str

    def text(self, path: object) -> str:
        """Return two lines: the mutant, and the test that would kill it."""
        return f"{path}:{self.line}: survived: {self.rule}: {self.change}\n  kill it: - {self.test}"


@dataclass(frozen=True, slots=True)
class MutationReport:
    """How many mutants tests killed, the check refused and cells proved equal; and those that survived."""

    killed: int
    refused: int
    equivalent: int
    survivors: tuple[Survivor, ...]

    @property
    def counted(self) -> int:
        """The mutants that a test could kill."""
        return self.killed + len(self.survivors)


def mutate(file: TieringFile, policy: Policy, *, progress: Callable[[float], None] | None = None) -> MutationReport:
    """Run a file's tests against every mutant of its policy; `progress` is told the share done, 0..1.

    Raises PolicyError where a survivor cannot be compared because it tells too many sorts of records apart.
    """
    cases = [(case, None if case.by is None else rule_number(policy, case.by)) for case in file.tests]
    found = list(mutants(policy))
    killed = rejected = equivalent = 0
    survivors: list[Survivor] = []
    for i, mutant in enumerate(found):
        if progress is not None:
            progress(i / len(found))
        if any(_fails(mutant.policy, case, by) for case, by in cases):
            killed += 1
        elif refused(mutant.policy, file.tiers):
            rejected += 1
        elif region := _told_apart(policy, mutant):
            rule = mutant.rule
            survivors.append(Survivor(rule.line, rule.title, mutant.change, _test(region)))
        else:
            equivalent += 1
    return MutationReport(killed, rejected, equivalent, tuple(survivors))


def mutants(policy: Policy) -> Iterator[Mutant]:
    """Yield every mutant, rule by rule.

    `until`, rates, `by`, `using`, cooldown and residency are left alone: what becomes of one record does not show them.
    """
    tiers = tuple(sorted(policy.tiers))
    for rule in policy.rules:
        for change, place in _changed_places(rule, policy, tiers):
            rules = [(place if one is rule else one) for one in policy.rules]
            yield Mutant(rule, change, replace(policy, rules=tuple(one for one in rules if one is not None)))
    for move in policy.moves.rules:
        for change, moved in _changed_moves(move, policy):
            moves = [(moved if one is move else one) for one in policy.moves.rules]
            plan = MovePlan(tuple(one for one in moves if one is not None), policy.moves.windows_s)
            yield Mutant(move, change, replace(policy, moves=plan))


def _changed_places(rule: Rule, policy: Policy, tiers: Sequence[Tier]) -> Iterator[tuple[str, Rule | None]]:
    yield "dropped", None
    for change, meaning in changed_conditions(rule.meaning, policy.namespace_names):
        yield change, replace(rule, meaning=meaning)
    for chain in _changed_chains(rule.chain, tiers):
        words = f"`in {Placed(rule.chain)!s}` becomes `in {Placed(chain)!s}`".replace("in in ", "in ")
        yield words, replace(rule, chain=chain, admission=rule.admission if chain else None)
    if rule.admission is not None:
        hits, window = rule.admission.hits, time_words(rule.admission.window_s)
        for other in (hits - 1, hits + 1):
            words = f"`after {hits} hits in {window}` becomes `after {other} hits in {window}`"
            yield words, replace(rule, admission=replace(rule.admission, hits=other))


def _changed_chains(chain: tuple[Tier, ...], tiers: Sequence[Tier]) -> Iterator[tuple[Tier, ...]]:
    """Yield a chain with neighbours swapped, each tier taken out, and its tier, if single, replaced."""
    for i in range(len(chain) - 1):
        yield (*chain[:i], chain[i + 1], chain[i], *chain[i + 2 :])
    if len(chain) > 1:
        yield from (chain[:i] + chain[i + 1 :] for i in range(len(chain)))
    else:
        yield from ((tier,) for tier in tiers if (tier,) != chain)
        if chain:
            yield ()


def _changed_moves(rule: MoveRule, policy: Policy) -> Iterator[tuple[str, MoveRule | None]]:
    yield "dropped", None
    for change, meaning in changed_conditions(rule.meaning, policy.namespace_names):
        yield change, replace(rule, meaning=meaning)
    if rule.when_fill is not None:
        for points in (-_POINT, _POINT):
            other = round(rule.when_fill + points, 6)
            if 0 <= other <= 1:
                words = f"`when fill > {100 * rule.when_fill:.4g}%` becomes `when fill > {100 * other:.4g}%`"
                yield words, replace(rule, when_fill=other)
    for tier in _other_targets(rule, policy.tiers):
        yield f"`to {_target(rule)}` becomes `to {tier.name.lower()}`", replace(rule, target=tier)


def _other_targets(rule: MoveRule, tiers: frozenset[Tier]) -> Iterator[Tier]:
    """Yield the open tiers on the same side of a move's source, but its own target."""
    if rule.target is None:
        return
    for tier in sorted(tiers - {rule.source, rule.target}):
        if (tier < rule.source) is (rule.target < rule.source):
            yield tier


def _target(rule: MoveRule) -> str:
    return "" if rule.target is None else rule.target.name.lower()


def _fails(policy: Policy, case: TestCase, by: int | None) -> bool:
    """Return whether a test fails on a mutant. Its placement is not compiled: rules are asked one by one."""
    rule: Rule | MoveRule | None
    if case.stored is None:
        acting = (one for one in policy.rules if one.acts or one.number == by)
        rule = next((one for one in acting if holds(one.meaning, case.record)), None)
    else:
        rule = policy.moves.first(case.record, case.stored.tier, case.stored.fill, by)
    return not goes_there(case, rule) or (by is not None and (rule is None or rule.number != by))


def _told_apart(policy: Policy, mutant: Mutant) -> Region | None:
    """Return a region of records that policy and mutant treat differently, None where they are equivalent.

    Mutants of a trial (level `warn`) are equivalent unless a test's `by` kills them: a trial decides about no record.
    """
    return next(iter(difference(policy, mutant.policy).regions), None)


def _test(region: Region) -> str:
    """Return a test that holds for the policy and fails for the mutant, as YAML."""
    parts = [region.example if region.tier is None else region.example.split(" in ")[0]]
    words = [f"record: {parts[0]}"]
    outcome = region.old.outcome
    if isinstance(outcome, Placed):
        chain = ", ".join(tier.name.lower() for tier in outcome.chain)
        words.append(f"expect: [{chain}]" if chain else "expect: reject")
        if outcome.admission is not None:
            words.append(f"after: {outcome.admission.hits} hits in {time_words(outcome.admission.window_s)}")
    elif region.tier is not None:
        words += [f"in: {region.tier.name.lower()}", f"fill: {100 * region.fill:.4g}%"]
        words.append(f"expect: {_act(outcome, region)}")
    return f"{{{', '.join(words)}}}"


def _act(outcome: Moved, region: Region) -> str:
    act = outcome.at(region.fill)
    if act is None:
        return "stay"
    return act.action if act.target is None else f"{{{act.action}: {act.target.name.lower()}}}"
