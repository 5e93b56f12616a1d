"""What the policy commands share: which file an argument names, one after the other, and how they speak.

Exit codes: 0 fine; 1 a test failed, or `--strict` met a warning; 2 a file does not check or cannot be read.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flashnest.errors import FlashnestError, PolicyError

if TYPE_CHECKING:
    from flashnest.policy.tiering_file import TieringFile

OK, FAILED, WRONG = 0, 1, 2

Files = Annotated[
    list[str], typer.Argument(metavar="FILE...", help="Tiering files, policy texts, or names of shipped options.")
]


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


def for_each(names: Iterable[str], act: Callable[[TieringFile], int]) -> int:
    """Do one thing to every file, also after one that failed; return the worst exit code."""
    from flashnest.policy.diagnostics import PolicyCheckError
    from flashnest.policy.tiering_file import load_tiering_file

    worst = OK
    for name in names:
        try:
            code = act(load_tiering_file(tiering_path(name)))
        except PolicyCheckError as error:
            say(str(error))
            code = WRONG
        except FlashnestError as error:
            print(f"error: {error}", file=sys.stderr)
            code = WRONG
        worst = max(worst, code)
    return worst


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def say(text: str) -> None:
    """Print, with a `?` for each sign that the terminal's encoding lacks: as wide as the sign, so carets stay put."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    print(text)
