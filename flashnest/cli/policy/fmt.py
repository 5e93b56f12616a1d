"""`flash-nest policy fmt`: the canonical layout of policies, in place, as a diff, or as a check."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from flashnest.cli.policy.files import FAILED, OK, WRONG, say, tiering_path
from flashnest.errors import FlashnestError, PolicyError

_STDIN = "-"


def fmt(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Tiering files, policy texts, or - for stdin.")],
    diff: Annotated[
        bool, typer.Option("--diff", help="Print what would change, write nothing; exit 1 if any.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Name what would change, write nothing; exit 1 if any.")
    ] = False,
) -> None:
    """Lay policies out: canonical words, spaces and columns; comments stay, in YAML all but the rules stays too."""
    raise typer.Exit(max(_told(name, diff=diff, check=check) for name in files))


def _told(name: str, *, diff: bool, check: bool) -> int:
    """Format one file; return its exit code."""
    from flashnest.policy.diagnostics import PolicyCheckError

    try:
        return _formatted(name, diff=diff, check=check)
    except PolicyCheckError as error:
        print(error, file=sys.stderr)
    except FlashnestError as error:
        print(f"error: {error}", file=sys.stderr)
    return WRONG


def _formatted(name: str, *, diff: bool, check: bool) -> int:
    shown = "<stdin>" if name == _STDIN else str(tiering_path(name))
    before = _read(name)
    after = _laid_out(before, shown)
    if diff and before != after:
        say(_diff(before, after, shown))
    if check and before != after:
        say(f"would format {shown}")
    if diff or check:
        return FAILED if before != after else OK
    if name == _STDIN:
        sys.stdout.write(after)
        return OK
    if before != after:
        _write(name, after)
    say(f"{'formatted' if before != after else 'unchanged'} {shown}")
    return OK


def _read(name: str) -> str:
    try:
        data = sys.stdin.buffer.read() if name == _STDIN else tiering_path(name).read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        raise PolicyError(f"cannot read {name}", why=str(error.strerror)) from error
    except UnicodeDecodeError as error:
        raise PolicyError(f"{name} is not UTF-8 text", why=f"byte {error.start} is not UTF-8") from error


def _laid_out(text: str, shown: str) -> str:
    from flashnest.policy.layout_yaml import is_tiering_yaml, layout_text
    from flashnest.policy.tiering_file import TEXT_SUFFIXES, YAML_SUFFIXES

    suffix = Path(shown).suffix
    if suffix not in (*YAML_SUFFIXES, *TEXT_SUFFIXES, ""):
        endings = ", ".join(YAML_SUFFIXES + TEXT_SUFFIXES)
        raise PolicyError(f"{shown} is not a tiering file", fix=f"its name must end in one of {endings}")
    is_yaml = suffix in YAML_SUFFIXES or (not suffix and is_tiering_yaml(text))
    return layout_text(text, shown, is_yaml=is_yaml)


def _diff(before: str, after: str, shown: str) -> str:
    import difflib

    pieces = difflib.unified_diff(before.splitlines(True), after.splitlines(True), shown, f"{shown} (formatted)")
    ended = (piece if piece.endswith("\n") else f"{piece}\n\\ No newline at end of file\n" for piece in pieces)
    return "".join(ended).rstrip("\n")


def _write(name: str, text: str) -> None:
    """Replace a file in one step, so that a crash leaves the old text or the new one; its mode stays."""
    if "/" not in name and not Path(name).suffix:
        fix = "give its path, or --diff or --check"
        raise PolicyError(f"`{name}` is an option that flash-nest ships: fmt does not rewrite it by name", fix=fix)
    path = tiering_path(name).resolve()
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(text.encode())
        fresh.chmod(path.stat().st_mode & 0o7777)
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise PolicyError(f"cannot write {path}", why=str(error.strerror)) from error
