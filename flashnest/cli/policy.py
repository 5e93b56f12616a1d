"""`flash-nest policy check` and `flash-nest policy test`: the policy tools on the command line.

Output is plain text, never wrapped or coloured, so that carets stay under what they point at and logs can be compared.
Exit codes: 0 fine; 1 a test failed, or `--strict` met a warning; 2 a file does not check or cannot be read.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flashnest.errors import FlashnestError, PolicyError

if TYPE_CHECKING:
    from flashnest.policy.tiering_file import TieringFile

OK, FAILED, WRONG = 0, 1, 2

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)

Files = Annotated[
    list[str], typer.Argument(metavar="FILE...", help="Tiering files, policy texts, or names of shipped options.")
]


@app.command()
def check(
    files: Files,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count: exit 1.")] = False,
) -> None:
    """Check policies: syntax, names, units, records without a rule, rules without records."""
    raise typer.Exit(_for_each(files, lambda file: _check(file, strict=strict)))


@app.command()
def test(files: Files) -> None:
    """Run the tests that tiering files carry."""
    raise typer.Exit(_for_each(files, _test))


def tiering_path(name: str) -> Path:
    """Return the file that an argument names: a path as it is, a bare name from the shipped options."""
    if "/" in name or Path(name).suffix:
        return Path(name)
    folder = Path(str(resources.files("flashnest"))) / "conf" / "tiering"
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        from flashnest.policy.diagnostics import unknown

        what, fix = unknown(name, "tiering option", known)
        raise PolicyError(what, why="a bare name is a shipped option; a file has an ending such as .yaml", fix=fix)
    path = folder / f"{name}.yaml"
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _for_each(names: list[str], act: Callable[[TieringFile], int]) -> int:
    """Do one thing to every file, also after one that failed; return the worst exit code."""
    from flashnest.policy.diagnostics import PolicyCheckError
    from flashnest.policy.tiering_file import load_tiering_file

    worst = OK
    for name in names:
        try:
            code = act(load_tiering_file(tiering_path(name)))
        except PolicyCheckError as error:
            _say(str(error))
            code = WRONG
        except FlashnestError as error:
            print(f"error: {error}", file=sys.stderr)
            code = WRONG
        worst = max(worst, code)
    return worst


def _check(file: TieringFile, *, strict: bool) -> int:
    from flashnest.policy.render import render

    policy = file.compile()
    if policy.diagnostics:
        _say(render(policy.diagnostics))
    moves = f", {_count(len(policy.moves.rules), 'move')}" if policy.moves.rules else ""
    _say(f"ok  {file.path}: {_count(len(policy.rules), 'rule')}{moves}, {_count(len(file.tests), 'test')}")
    return FAILED if strict and policy.diagnostics else OK


def _test(file: TieringFile) -> int:
    from flashnest.policy.testing import run_tests

    results = run_tests(file)
    failed = [result for result in results if not result.passed]
    for result in failed:
        _say(f"FAILED {result.failure}")
    passed = len(results) - len(failed)
    _say(f"{'FAILED' if failed else 'ok '} {file.path}: {passed} of {_count(len(results), 'test')} passed")
    return FAILED if failed else OK


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _say(text: str) -> None:
    """Print, with a `?` for each sign that the terminal's encoding lacks: as wide as the sign, so carets stay put."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    print(text)
