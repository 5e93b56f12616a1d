"""pytest plugin: an ops repo's plain `pytest` checks its own tiering files and runs their tests.

Collected is every `.yaml` or `.yml` file among pytest's paths that has a top-level `rules:` with a text (a `|` block
or a one-line rule) and a top-level `tests:` list. `flashnest_policy = false` in the ini file turns it off. Other files
are told apart by two regular expressions; nothing else is imported before a tiering file is found, because this module
is loaded by every pytest run of the environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flashnest.errors import FlashnestError

if TYPE_CHECKING:
    from flashnest.policy.cases import TestCase
    from flashnest.policy.compile import Policy
    from flashnest.policy.tiering_file import TieringFile

_RULES = re.compile(rb"^rules:[ \t]*[^\s#\[{&*-]", re.MULTILINE)
_TESTS = re.compile(rb"^tests:[ \t]*(?:#.*)?(?:\r?\n|\[)", re.MULTILINE)
_LARGEST_BYTES = 1 << 20
"""People write tiering files by hand; a larger YAML file is data of something else and is not read."""


class PolicyItemError(Exception):
    """Carries the text to show for a failing item, in place of a Python traceback."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the ini option."""
    parser.addini("flashnest_policy", "collect flashnest tiering files as tests", type="bool", default=True)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect tiering files that carry tests."""
    if file_path.suffix not in (".yaml", ".yml") or not parent.config.getini("flashnest_policy"):
        return None
    return PolicyFile.from_parent(parent, path=file_path) if _has_policy_tests(file_path) else None


def _has_policy_tests(path: Path) -> bool:
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            return False
        content = path.read_bytes()
    except OSError:
        return False
    return bool(_RULES.search(content) and _TESTS.search(content))


class PolicyFile(pytest.File):
    """A tiering file: one item for its check, one for each of its tests."""

    def collect(self) -> Iterable[pytest.Item]:
        """Yield the items; a file that cannot be read or compiled yields its check alone, which fails."""
        from flashnest.policy.tiering_file import load_tiering_file

        try:
            file = load_tiering_file(self.path)
            policy = file.compile()
        except FlashnestError as error:
            yield PolicyCheckItem.from_parent(self, name="check", problem=str(error))
            return
        yield PolicyCheckItem.from_parent(self, name="check", problem="")
        for case in file.tests:
            yield PolicyTestItem.from_parent(self, name=case.name, file=file, policy=policy, case=case)


class _Item(pytest.Item):
    """Shows the policy's own message when it fails."""

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **kwargs: Any) -> Any:
        """Return the message of a policy failure, pytest's own view of anything else."""
        if isinstance(excinfo.value, PolicyItemError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *args, **kwargs)


class PolicyCheckItem(_Item):
    """`flash-nest policy check` of the file."""

    def __init__(self, *, problem: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._problem = problem

    def runtest(self) -> None:
        """Fail with the rendered diagnostics."""
        if self._problem:
            raise PolicyItemError(self._problem)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Say where the item comes from."""
        return self.path, 0, f"policy check {self.path.name}"


class PolicyTestItem(_Item):
    """One entry of `tests:`."""

    def __init__(self, *, file: TieringFile, policy: Policy, case: TestCase, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._file = file
        self._policy = policy
        self._case = case

    def runtest(self) -> None:
        """Fail with record, expectation and the rule that decided."""
        from flashnest.policy.testing import run_test

        result = run_test(self._policy, self._file, self._case)
        if not result.passed:
            raise PolicyItemError(result.failure)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Say which line of the file the item is."""
        return self.path, self._case.line - 1, f"policy test {self._case.name}"
