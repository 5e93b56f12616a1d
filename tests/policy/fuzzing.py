"""What fuzzing does with one input: everything that reads it. Only a PolicyError may come out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random

from random_texts import policy_bytes, tiering_bytes

from flashnest.errors import PolicyError
from flashnest.policy.checked_file import CheckedFile
from flashnest.policy.diagnostics import PolicyCheckError
from flashnest.policy.json_output import json_document
from flashnest.policy.layout_yaml import layout_text
from flashnest.policy.sarif import sarif_log
from flashnest.policy.testing import run_tests
from flashnest.policy.tiering_file import read_tiering


@dataclass(frozen=True, slots=True)
class Input:
    """An input and what it is for: "check" it with its tests, or "fmt" it."""

    data: bytes
    suffix: str
    tool: str


def drawn(random: Random) -> Input:
    """Return an input: one in ten is a tiering file; half of them are checked and half formatted."""
    tool = random.choice(("check", "fmt"))
    if random.random() < 0.1:
        return Input(tiering_bytes(random), ".yaml", tool)
    return Input(policy_bytes(random), ".tier", tool)


def outcome(one: Input) -> str:
    """Return "ok", or what was found first: a code, or the error's name. Raises what is no PolicyError."""
    try:
        (checked if one.tool == "check" else formatted)(one)
    except PolicyError as error:
        return told(error)
    return "ok"


def told(error: PolicyError) -> str:
    """Return an error's code or name, once it says what and where."""
    assert error.what
    if not isinstance(error, PolicyCheckError):
        return type(error).__name__
    assert all(found.line >= 1 and found.column >= 1 for found in error.diagnostics)
    assert str(error).startswith(("error[T", "warning[T"))
    return error.diagnostics[0].code


def checked(one: Input) -> None:
    """Read, compile and test a file."""
    file = read_tiering(one.data, Path(f"fuzz{one.suffix}"))
    assert file.compile().rules
    assert all(result.passed == (not result.failure) for result in run_tests(file))


def formatted(one: Input) -> None:
    """Format as `policy fmt` does; what was formatted once stays as it is."""
    name, is_yaml = f"fuzz{one.suffix}", one.suffix == ".yaml"
    try:
        text = one.data.decode("utf-8")
    except UnicodeDecodeError:
        return
    done = layout_text(text, name, is_yaml=is_yaml)
    assert layout_text(done, name, is_yaml=is_yaml) == done


def documents(one: Input) -> str:
    """Return both documents that a program may ask of a check."""
    try:
        policy = read_tiering(one.data, Path(f"fuzz{one.suffix}")).compile()
        file = CheckedFile("fuzz", policy.diagnostics, len(policy.rules))
    except PolicyCheckError as error:
        file = CheckedFile("fuzz", error.diagnostics)
    except PolicyError as error:
        file = CheckedFile("fuzz", failure=error)
    return json.dumps([json_document([file]), sarif_log([file])])
