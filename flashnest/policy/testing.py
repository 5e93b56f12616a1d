"""Runs the `tests:` of a tiering file against its own rules. Prints nothing: results carry their message."""

from __future__ import annotations

from dataclasses import dataclass

from flashnest.policy.cases import STAY, Stored, TestCase
from flashnest.policy.compile import Policy
from flashnest.policy.facts import FACTS, MOVE_FACTS, REJECT, time_words
from flashnest.policy.format import format_statement
from flashnest.policy.moves import KEEP, MoveRule
from flashnest.policy.parse import parse
from flashnest.policy.reasons import first_false, why_not
from flashnest.policy.record_text import record_text
from flashnest.policy.resolved import Rule
from flashnest.policy.syntax import Source
from flashnest.policy.tiering_file import TieringFile
from flashnest.record import Admission, Tier


@dataclass(frozen=True, slots=True)
class TestResult:
    """What became of one test. `rule` is the one that decided, None where a record stays without one.

    `failure` is "" where the test passed, else several lines for people.
    """

    __test__ = False  # not a pytest class

    case: TestCase
    rule: Rule | MoveRule | None
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
    if case.stored is None:
        rule = policy.place(case.record, _trial(policy, case))
        same = goes_there(case, rule)
        return _result(policy, file, case, rule, _placed_words(rule.chain, rule.admission, case), _wanted(case), same)
    moved = policy.move(case.record, case.stored.tier, case.stored.fill, _trial(policy, case))
    wanted, outcome = _outcome_words(case.stored), _moved_words(moved)
    return _result(policy, file, case, moved, outcome, wanted, goes_there(case, moved))


def _result(
    policy: Policy, file: TieringFile, case: TestCase, rule: Rule | MoveRule | None, got: str, wanted: str, same: bool
) -> TestResult:
    problem = _wrong_rule(policy, case, rule, wanted) if same else wanted
    if not problem:
        return TestResult(case, rule, "")
    by = f" by rule {rule.number} (line {rule.line}): {rule.text}" if rule else ", no rule takes it"
    lines = [
        f"{file.path}:{case.line}: {case.name}",
        f"  record:   {_record_words(case)}",
        f"  expected: {problem}",
        f"  got:      {got}{by}",
    ]
    wanted_rule = rule_number(policy, case.by) if case.by is not None else None
    if wanted_rule is not None and (rule is None or rule.number != wanted_rule):
        lines += _why_not(policy, case, wanted_rule, rule)
    return TestResult(case, rule, "\n".join(lines))


def _wrong_rule(policy: Policy, case: TestCase, rule: Rule | MoveRule | None, expected: str) -> str:
    """Return what the test expected where another rule than its `by` decided, else ""."""
    if case.by is None:
        return ""
    wanted = rule_number(policy, case.by)
    if wanted is None:
        return f"{expected} by `{case.by}`, which is no rule of the policy"
    return "" if rule and wanted == rule.number else f"{expected} by rule {wanted}"


def goes_there(case: TestCase, rule: Rule | MoveRule | None) -> bool:
    """Return whether a rule does to the test's record what the test expects; its `by` is not looked at."""
    if case.stored is not None:
        return not isinstance(rule, Rule) and _moved_words(rule) == _outcome_words(case.stored)
    if not isinstance(rule, Rule):
        return False
    got = rule.chain if case.whole_chain else rule.chain[:1]
    return got == case.expect and case.after in (None, rule.admission)


def _why_not(policy: Policy, case: TestCase, wanted: int, got: Rule | MoveRule | None) -> tuple[str, ...]:
    """Say why the rule that the test names did not decide: its first false atom, or who came before."""
    rules: tuple[Rule | MoveRule, ...] = (*policy.rules, *policy.moves.rules)
    rule = rules[wanted - 1]
    named = f"  rule {wanted}:   " if wanted < 10 else f"  rule {wanted}:  "
    why = f"{' ' * len(named)}not taken: "
    lines = f"{named}{rule.text} (line {rule.line})"
    if isinstance(rule, Rule) is (case.stored is not None):
        return lines, f"{why}{'it places new records' if isinstance(rule, Rule) else 'it is about stored records'}"
    if isinstance(rule, Rule):
        words = first_false(rule.meaning, case.record, policy.namespace_names)
    elif case.stored is not None and rule.source is not case.stored.tier:
        words = f"it looks at records in {rule.source.name.lower()}"
    else:
        words = why_not(rule, case.record, case.stored.fill if case.stored else 0.0, policy.namespace_names)
    return lines, f"{why}{words or (f'{got.title} comes first' if got else 'it is a trial')}"


def rule_number(policy: Policy, by: int | str) -> int | None:
    """Return the number of the rule that `by` names by its number, label or text, compared in canonical form."""
    rules: tuple[Rule | MoveRule, ...] = (*policy.rules, *policy.moves.rules)
    if isinstance(by, int):
        return by if 1 <= by <= len(rules) else None
    labelled = next((rule.number for rule in rules if rule.name == by), None)
    if labelled is not None:
        return labelled
    document, _ = parse(Source(by))
    wanted = {format_statement(statement) for statement in document.statements}
    return next((rule.number for rule in rules if rule.text in wanted), None)


def _trial(policy: Policy, case: TestCase) -> int | None:
    """Return the number of the rule that `by` names: a test asks what a trial would do by naming it."""
    return None if case.by is None else rule_number(policy, case.by)


def _record_words(case: TestCase) -> str:
    if case.stored is None:
        return record_text(case.record, tuple(FACTS))
    tier, fill = case.stored.tier.name.lower(), case.stored.fill
    return f"{record_text(case.record, tuple(MOVE_FACTS))} in {tier}, fill {100 * fill:.4g}%"


def _chain_words(chain: tuple[Tier, ...]) -> str:
    return " else ".join(tier.name.lower() for tier in chain) or REJECT


def _placed_words(chain: tuple[Tier, ...], admission: Admission | None, case: TestCase) -> str:
    """Return where a record goes, with its admission where the test asks for one."""
    if case.after is None:
        return _chain_words(chain)
    if admission is None:
        return f"{_chain_words(chain)} at once"
    return f"{_chain_words(chain)} after {admission.hits} hits in {time_words(admission.window_s)}"


def _wanted(case: TestCase) -> str:
    return _placed_words(case.expect, case.after, case)


def _outcome_words(stored: Stored) -> str:
    return stored.action if stored.target is None else f"{stored.action} to {stored.target.name.lower()}"


def _moved_words(rule: MoveRule | None) -> str:
    if rule is None or rule.action == KEEP:
        return STAY
    return rule.action if rule.target is None else f"{rule.action} to {rule.target.name.lower()}"
