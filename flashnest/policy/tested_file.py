"""What `policy test` found in one file: results, what they exercise, mutants; and the same as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flashnest.policy.exercised import Exercised, exercised
from flashnest.policy.mutants import MutationReport, mutate
from flashnest.policy.testing import TestResult, run_test
from flashnest.policy.tiering_file import TieringFile


@dataclass(frozen=True, slots=True)
class TestedFile:
    """One file after its tests. `exercised` and `mutants` are None where nobody asked."""

    __test__ = False  # not a pytest class

    path: Path
    results: tuple[TestResult, ...]
    exercised: Exercised | None = None
    mutants: MutationReport | None = None

    @property
    def failed(self) -> tuple[TestResult, ...]:
        """The tests that did not pass."""
        return tuple(result for result in self.results if not result.passed)

    def fails(self, least: float | None = None) -> bool:
        """Return whether a test failed, a mutant survived, or less than `least` per cent is exercised."""
        survived = self.mutants is not None and bool(self.mutants.survivors)
        short = least is not None and self.exercised is not None and self.exercised.percent < least
        return bool(self.failed) or survived or short


def run_file(
    file: TieringFile,
    *,
    coverage: bool = False,
    mutants: bool = False,
    progress: Callable[[float], None] | None = None,
) -> TestedFile:
    """Run a file's tests and what else is asked for. Raises PolicyCheckError where its rules do not compile.

    Mutants are run only where every test passes: a test that fails anyway tells no mutant apart.
    """
    policy = file.compile()
    results = tuple(run_test(policy, file, case) for case in file.tests)
    seen = exercised(policy, results) if coverage else None
    passed = all(result.passed for result in results)
    return TestedFile(file.path, results, seen, mutate(file, policy, progress=progress) if mutants and passed else None)


def file_json(one: TestedFile, least: float | None = None) -> dict[str, Any]:
    """Return one file's results as plain JSON values."""
    found: dict[str, Any] = {
        "path": str(one.path),
        "ok": not one.fails(least),
        "tests": [
            {
                "name": result.case.name,
                "line": result.case.line,
                "passed": result.passed,
                "rule": result.rule.number if result.rule else None,
                "failure": result.failure,
            }
            for result in one.results
        ],
    }
    if one.exercised is not None:
        found["coverage"] = {"percent": round(one.exercised.percent, 2), **asdict(one.exercised)}
    if one.mutants is not None:
        found["mutants"] = asdict(one.mutants)
    return found
