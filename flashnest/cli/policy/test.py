"""`flash-nest policy test`: the tests that tiering files carry, what they exercise, and mutants that they miss."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashnest.cli.policy.files import FAILED, OK, WRONG, Files, count, for_each, say, tiering_path
from flashnest.errors import FlashnestError

if TYPE_CHECKING:
    from flashnest.policy.tested_file import TestedFile
    from flashnest.policy.tiering_file import TieringFile


class Format(StrEnum):
    """How the results are printed."""

    TEXT = "text"
    JSON = "json"


def run_policy_tests(
    files: Files,
    coverage: Annotated[bool, typer.Option("--coverage", help="Say what of the policy no test exercises.")] = False,
    least: Annotated[
        float | None,
        typer.Option("--min", min=0, max=100, metavar="N", help="End with 1 where coverage is below N per cent."),
    ] = None,
    mutate: Annotated[bool, typer.Option("--mutate", help="End with 1 where no test tells a mutant apart.")] = False,
    form: Annotated[Format, typer.Option("--format", help="text for people, json for programs.")] = Format.TEXT,
) -> None:
    """Run the tests that tiering files carry."""
    if form is Format.JSON:
        raise typer.Exit(_as_json(files, coverage or least is not None, least, mutate))
    wanted = coverage or least is not None
    raise typer.Exit(for_each(files, lambda file: _as_text(_tested(file, wanted, mutate), coverage, least)))


def _tested(file: TieringFile, coverage: bool, mutate: bool) -> TestedFile:
    from flashnest.policy.tested_file import run_file

    with _progress(file, mutate) as progress:
        return run_file(file, coverage=coverage, mutants=mutate, progress=progress)


@contextmanager
def _progress(file: TieringFile, mutate: bool) -> Iterator[Callable[[float], None] | None]:
    """Show how far the mutants are on a terminal; nothing where nobody watches."""
    if not mutate or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"mutants of {file.path.name}", total=1.0)
        yield lambda share: bar.update(task, completed=share)


def _as_text(one: TestedFile, listed: bool, least: float | None) -> int:
    for result in one.failed:
        say(f"FAILED {result.failure}")
    passed = len(one.results) - len(one.failed)
    say(f"{'FAILED' if one.failed else 'ok '} {one.path}: {passed} of {count(len(one.results), 'test')} passed")
    if one.exercised is not None:
        found = one.exercised
        short = least is not None and found.percent < least
        for missing in found.missing if listed or short else ():
            say(missing.text(one.path))
        bound = f", less than {least:g} %" if short else ""
        say(f"coverage of {one.path}: {found.percent:.1f} % ({found.seen} of {found.items}){bound}")
    if one.mutants is not None:
        for survivor in one.mutants.survivors:
            say(survivor.text(one.path))
        report = one.mutants
        say(
            f"mutants of {one.path}: {report.killed} of {report.counted} killed, {len(report.survivors)} survived"
            f" ({report.equivalent} equivalent, {report.refused} refused by the check)"
        )
    return FAILED if one.fails(least) else OK


def _as_json(names: list[str], coverage: bool, least: float | None, mutate: bool) -> int:
    import json

    from flashnest.policy.tested_file import file_json
    from flashnest.policy.tiering_file import load_tiering_file

    listed: list[dict[str, Any]] = []
    worst = OK
    for name in names:
        try:
            one = _tested(load_tiering_file(tiering_path(name)), coverage, mutate)
        except FlashnestError as error:
            listed.append({"path": name, "error": str(error)})
            worst = WRONG
            continue
        listed.append(file_json(one, least))
        worst = max(worst, FAILED if one.fails(least) else OK)
    say(json.dumps({"files": listed}, indent=2))
    return worst
