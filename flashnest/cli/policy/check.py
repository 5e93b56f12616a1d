"""`flash-nest policy check`: what is wrong with a policy, before it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from flashnest.cli.policy.files import FAILED, OK, Files, count, for_each, say

if TYPE_CHECKING:
    from flashnest.policy.tiering_file import TieringFile


def check(
    files: Files,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count: exit 1.")] = False,
) -> None:
    """Check policies: syntax, names, units, records without a rule, rules without records."""
    raise typer.Exit(for_each(files, lambda file: _check(file, strict=strict)))


def _check(file: TieringFile, *, strict: bool) -> int:
    from flashnest.policy.render import render

    policy = file.compile()
    if policy.diagnostics:
        say(render(policy.diagnostics))
    moves = f", {count(len(policy.moves.rules), 'move')}" if policy.moves.rules else ""
    say(f"ok  {file.path}: {count(len(policy.rules), 'rule')}{moves}, {count(len(file.tests), 'test')}")
    return FAILED if strict and policy.diagnostics else OK
