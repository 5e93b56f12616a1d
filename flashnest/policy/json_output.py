"""Findings as plain data for `policy check --format json`: one document for all files. Writes nothing itself.

    {"flashnest": "0.1.0", "exit_code": 2, "errors": 1, "warnings": 0, "files": [
      {"path": ..., "ok": false, "rules": 0, "moves": 0, "tests": 0, "findings": [
        {"code": "T101", "name": "gap", "severity": "error", "message": ...,
         "line": 1, "column": 29, "end_line": 1, "end_column": 46, "text": "covers tokens = 1..8",
         "related": [{"line": ..., "column": ..., "end_line": ..., "end_column": ..., "text": ...}],
         "example": "record: {tokens: 9, kind: ngram}", "notes": [...], "help": ...}]}]}

Lines and columns are counted from 1, in characters; ends are exclusive. Later releases add keys and rename none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from flashnest import __version__
from flashnest.errors import FlashnestError
from flashnest.policy.checked_file import CheckedFile
from flashnest.policy.codes import CODES
from flashnest.policy.diagnostics import Diagnostic, Label, Severity

Json: TypeAlias = str | int | float | bool | list["Json"] | dict[str, "Json"] | None

UNREADABLE = "T004"
"""The code of a file that could not be read; as text it is a plain `error:`."""


def json_document(files: Sequence[CheckedFile], *, strict: bool = False) -> dict[str, Json]:
    """Return the document of all files."""
    return {
        "flashnest": __version__,
        "exit_code": max((file.exit_code(strict=strict) for file in files), default=0),
        "errors": sum(file.errors for file in files),
        "warnings": sum(file.warnings for file in files),
        "files": [_file(file) for file in files],
    }


def _file(file: CheckedFile) -> dict[str, Json]:
    found = [json_finding(one) for one in file.diagnostics]
    if file.failure is not None:
        found.append(_failure(file.failure))
    return {
        "path": file.path,
        "ok": file.errors == 0,
        "rules": file.rules,
        "moves": file.moves,
        "tests": file.tests,
        "findings": [*found],
    }


def json_finding(finding: Diagnostic) -> dict[str, Json]:
    """Return one finding as plain data."""
    start: dict[str, Json] = {"line": finding.line, "column": finding.column}
    return {
        "code": finding.code,
        "name": CODES[finding.code].name,
        "severity": finding.severity.value,
        "message": finding.message,
        **(_label(finding.primary) if finding.primary else start),
        "related": [_label(label) for label in finding.secondary],
        "example": _noted(finding, "example"),
        "notes": [note.text for note in finding.notes if note.kind == "note"],
        "help": _noted(finding, "help"),
    }


def place_of(failure: FlashnestError) -> tuple[int, int]:
    """Return line and column of a failure, the start of the file where it has none."""
    return getattr(failure, "line", 1), getattr(failure, "column", 1)


def _failure(failure: FlashnestError) -> dict[str, Json]:
    line, column = place_of(failure)
    return {
        "code": UNREADABLE,
        "name": CODES[UNREADABLE].name,
        "severity": Severity.ERROR.value,
        "message": failure.what,
        "line": line,
        "column": column,
        "related": [],
        "example": None,
        "notes": [failure.why] if failure.why else [],
        "help": failure.fix or None,
    }


def _label(label: Label) -> dict[str, Json]:
    span = label.span
    place = {"line": span.line, "column": span.column, "end_line": span.end_line, "end_column": span.end_column}
    return {**place, "text": label.text}


def _noted(finding: Diagnostic, kind: str) -> str | None:
    return "\n".join(note.text for note in finding.notes if note.kind == kind) or None
