"""Pages of docs/policy-tools: their ```console blocks, run as a reader would."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import typer.testing

from flashnest.cli.commands import app

PAGES = Path(__file__).parents[2] / "docs" / "policy-tools"


def steps(page: str) -> list[tuple[str, str]]:
    """Return (command, what it prints) for each command of a page."""
    text = (PAGES / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [tuple(step.split("\n", 1)) for block in blocks for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]


def played(command: str, said: str) -> str:
    """Run a command in the current folder and return what it prints; `cat FILE` makes the file that it shows."""
    words = shlex.split(command)
    if words[0] == "cat":
        Path(words[1]).write_text(said, encoding="utf-8")
        return said
    assert words[0] == "flash-nest"
    return typer.testing.CliRunner().invoke(app, words[1:]).stdout
