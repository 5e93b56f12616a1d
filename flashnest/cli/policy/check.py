"""`flash-nest policy check`: what is wrong with a policy, before it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from flashnest.cli.policy.budget import DEFAULT_LENGTHS, Budget, BudgetOptions
from flashnest.cli.policy.files import Files, count, say, tiering_path
from flashnest.errors import FlashnestError

if TYPE_CHECKING:
    from flashnest.policy.checked_file import CheckedFile
    from flashnest.policy.compile import Policy
    from flashnest.policy.diagnostics import Diagnostic
    from flashnest.policy.tiering_file import TieringFile


class Format(StrEnum):
    """How findings are printed."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"


def check(
    files: Files,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count: exit 1.")] = False,
    form: Annotated[
        Format, typer.Option("--format", help="text for people; json and sarif (2.1.0): one document for all files.")
    ] = Format.TEXT,
    platform: Annotated[
        str | None, typer.Option("--platform", help="Also check room, latency and endurance there: rtx4090, or a file.")
    ] = None,
    records: Annotated[str | None, typer.Option("--records", help="So many records come: 100M.")] = None,
    shares: Annotated[
        str | None, typer.Option("--shares", help="Their lengths: 8=20%,32=70%,chunk=10%. Not given: see --lengths.")
    ] = None,
    within: Annotated[str | None, typer.Option("--within", help="They come within that time: 14d.")] = None,
    workload: Annotated[str | None, typer.Option("--workload", help="Count those of a workload: repeat_50.")] = None,
    requests: Annotated[int | None, typer.Option("--requests", min=1, help="Its requests; not given: 256.")] = None,
    trace: Annotated[str | None, typer.Option("--trace", help="Count those of a trace file.")] = None,
    lengths: Annotated[str, typer.Option("--lengths", help="N-gram lengths that are looked up.")] = DEFAULT_LENGTHS,
) -> None:
    """Check policies: syntax, names, units, records without a rule, rules without records.

    With --platform also whether the records expected fit, whether `require` can hold, and how long the drive lasts.
    """
    given = BudgetOptions(platform, records, shares, within, workload, requests, trace, lengths)
    given.check()
    checked = _each(files, None if platform is None else Budget(given))
    if form is Format.TEXT:
        raise typer.Exit(max(_told(file, strict=strict) for file in checked))
    done = list(checked)
    say(_document(form, done, strict=strict))
    raise typer.Exit(max(file.exit_code(strict=strict) for file in done))


def _each(names: list[str], budget: Budget | None) -> Iterator[CheckedFile]:
    """Check every file, also after one that failed."""
    from flashnest.policy.checked_file import CheckedFile
    from flashnest.policy.diagnostics import PolicyCheckError
    from flashnest.policy.tiering_file import load_tiering_file

    for name in names:
        path = name
        try:
            path = str(tiering_path(name))
            file = load_tiering_file(tiering_path(name))
            policy = file.compile()
            yield CheckedFile(
                path, _found(file, policy, budget), len(policy.rules), len(policy.moves.rules), len(file.tests)
            )
        except PolicyCheckError as error:
            yield CheckedFile(path, error.diagnostics)
        except FlashnestError as error:
            yield CheckedFile(path, failure=error)


def _found(file: TieringFile, policy: Policy, budget: Budget | None) -> tuple[Diagnostic, ...]:
    """Return what is to say about a policy that compiles, on a platform where one was named."""
    return policy.diagnostics if budget is None else (*policy.diagnostics, *budget.findings(file, policy))


def _told(file: CheckedFile, *, strict: bool) -> int:
    """Print what was found in one file; return its exit code."""
    from flashnest.policy.render import render

    if file.failure is not None:
        print(f"error: {file.failure}", file=sys.stderr)
    if file.diagnostics:
        say(render(file.diagnostics))
    if not file.errors:
        moves = f", {count(file.moves, 'move')}" if file.moves else ""
        say(f"ok  {file.path}: {count(file.rules, 'rule')}{moves}, {count(file.tests, 'test')}")
    return file.exit_code(strict=strict)


def _document(form: Format, files: list[CheckedFile], *, strict: bool) -> str:
    import json

    if form is Format.JSON:
        from flashnest.policy.json_output import json_document

        return json.dumps(json_document(files, strict=strict), indent=2)
    from flashnest.policy.sarif import sarif_log

    return json.dumps(sarif_log(files, strict=strict), indent=2)
