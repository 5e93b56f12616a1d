"""Runs the `tests:` of a tiering file against its own rules. Prints nothing: results carry their message."""

from __future__ import annotations

from dataclasses import dataclass

from flashnest.policy.compile import Policy
from flashnest.policy.facts import REJECT, RecordFacts
from flashnest.policy.format import format_statement
from flashnest.policy.parse import parse
from flashnest.policy.resolved import Rule
from flashnest.policy.syntax import Source
from flashnest.policy.tiering_file import TestCase, TieringFile
from flashnest.record import Tier


@dataclass(frozen=True, slots=True)
class TestResult:
    """What became of one test. `failure` is "" where it passed, else several lines for people."""

    __test__ = False  # not a pytest class

    case: TestCase
    rule: Rule
    failure: str

    @property
    def passed(self) -> bool:
        """Whether the record went where the test expects, by the rule it expects."""
        return not self.failure


def run_tests(file: TieringFile) -> tuple[TestResult, ...]:
    """Compile the file's rules and run its tests in order. Raises PolicyCheckError when the rules do not compile."""
    policy = file.compile()
    return tuple(run_test(policy, file, case) for case in file.tests)


def run_test(policy: Policy, file: TieringFile, case: TestCase) -> TestResult:
    """Run one test against a compiled policy."""
    rule = policy.place(case.record)
    problem = _problem(policy, case, rule)
    return TestResult(case, rule, _failure(file, case, rule, problem) if problem else "")


def _problem(policy: Policy, case: TestCase, rule: Rule) -> str:
    """Return what the test expected, "" where it got it."""
    got = rule.chain if case.whole_chain else rule.chain[:1]
    if got != case.expect:
        return _chain_words(case.expect)
    if case.by is None:
        return ""
    wanted = _rule_number(policy, case.by)
    if wanted is None:
        return f"{_chain_words(case.expect)} by `{case.by}`, which is no rule of the policy"
    return "" if wanted == rule.number else f"{_chain_words(case.expect)} by rule {wanted}"


def _rule_number(policy: Policy, by: int | str) -> int | None:
    """Return the number of the rule that `by` names; a text is compared in canonical form."""
    if isinstance(by, int):
        return by if 1 <= by <= len(policy.rules) else None
    document, _ = parse(Source(by))
    wanted = {format_statement(place) for place in document.places}
    return next((rule.number for rule in policy.rules if rule.text in wanted), None)


def _failure(file: TieringFile, case: TestCase, rule: Rule, expected: str) -> str:
    return "\n".join(
        (
            f"{file.path}:{case.line}: {case.name}",
            f"  record:   {record_words(case.record)}",
            f"  expected: {expected}",
            f"  got:      {_chain_words(rule.chain)} by rule {rule.number} (line {rule.line}): {rule.text}",
        )
    )


def record_words(record: RecordFacts) -> str:
    """Return a record as a test would write it."""
    kind = record.kind.name.lower()
    return f"{{tokens: {record.tokens}, kind: {kind}, namespace: {record.namespace}, bytes: {record.nbytes}}}"


def _chain_words(chain: tuple[Tier, ...]) -> str:
    return " else ".join(tier.name.lower() for tier in chain) or REJECT
