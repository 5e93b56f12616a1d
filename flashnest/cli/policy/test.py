"""`flash-nest policy test`: the tests that tiering files carry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from flashnest.cli.policy.files import FAILED, OK, Files, count, for_each, say

if TYPE_CHECKING:
    from flashnest.policy.tiering_file import TieringFile


def test(files: Files) -> None:
    """Run the tests that tiering files carry."""
    raise typer.Exit(for_each(files, _test))


def _test(file: TieringFile) -> int:
    from flashnest.policy.testing import run_tests

    results = run_tests(file)
    failed = [result for result in results if not result.passed]
    for result in failed:
        say(f"FAILED {result.failure}")
    passed = len(results) - len(failed)
    say(f"{'FAILED' if failed else 'ok '} {file.path}: {passed} of {count(len(results), 'test')} passed")
    return FAILED if failed else OK
