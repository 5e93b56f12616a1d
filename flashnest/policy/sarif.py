"""Findings as a SARIF 2.1.0 log (OASIS) for `policy check --format sarif`: what code scanning services read.

One run, one tool, a rule for every code of `codes`, a result for every finding. Columns count Unicode code points.
Section numbers below are those of the standard. Writes nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Final
from urllib.parse import quote

from flashnest import __version__
from flashnest.errors import FlashnestError
from flashnest.policy.checked_file import CheckedFile
from flashnest.policy.codes import CODES, Code
from flashnest.policy.diagnostics import Diagnostic
from flashnest.policy.json_output import UNREADABLE, Json, place_of
from flashnest.policy.syntax import Span

SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_INDEX: Final = {code: i for i, code in enumerate(CODES)}


def sarif_log(files: Sequence[CheckedFile], *, strict: bool = False) -> dict[str, Json]:
    """Return the log of all files. `strict` decides the exit code that it states."""
    results: list[Json] = []
    for file in files:
        results += [_result(file.path, one) for one in file.diagnostics]
        if file.failure is not None:
            results.append(_failure(file.path, file.failure))
    code = max((file.exit_code(strict=strict) for file in files), default=0)
    run: dict[str, Json] = {
        "tool": {"driver": _driver()},
        "columnKind": "unicodeCodePoints",
        "artifacts": [{"location": _artifact(path)} for path in dict.fromkeys(file.path for file in files)],
        "results": results,
        "invocations": [{"executionSuccessful": all(file.failure is None for file in files), "exitCode": code}],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _driver() -> dict[str, Json]:
    """The tool (3.19) with its rules (3.49), in the order of `_INDEX`."""
    return {
        "name": "flash-nest policy check",
        "version": __version__,
        "semanticVersion": __version__,
        "rules": [_rule(code) for code in CODES.values()],
    }


def _rule(code: Code) -> dict[str, Json]:
    return {
        "id": code.code,
        "name": "".join(word.capitalize() for word in code.name.split("-")),
        "shortDescription": {"text": code.wrong},
        "fullDescription": {"text": f"{code.wrong} {code.help}"},
        "help": {"text": code.help, "markdown": code.help},
        "defaultConfiguration": {"level": code.severity.value},
    }


def _result(path: str, finding: Diagnostic) -> dict[str, Json]:
    """One finding (3.27): the message carries the witness and the advice, `relatedLocations` the other labels."""
    label = f" ({finding.primary.text})" if finding.primary and finding.primary.text else ""
    notes = [f"{note.kind}: {note.text}" for note in finding.notes]
    span = finding.primary.span if finding.primary else None
    region = _region(span) if span else _start(finding.line, finding.column)
    related: list[Json] = [
        {"id": i, "physicalLocation": _location(path, _region(one.span)), "message": {"text": one.text or "see also"}}
        for i, one in enumerate(finding.secondary)
    ]
    result: dict[str, Json] = {
        "ruleId": finding.code,
        "ruleIndex": _INDEX[finding.code],
        "level": finding.severity.value,
        "message": {"text": "\n".join([finding.message + label, *notes])},
        "locations": [{"physicalLocation": _location(path, region)}],
    }
    return {**result, "relatedLocations": related} if related else result


def _failure(path: str, failure: FlashnestError) -> dict[str, Json]:
    return {
        "ruleId": UNREADABLE,
        "ruleIndex": _INDEX[UNREADABLE],
        "level": "error",
        "message": {"text": str(failure)},
        "locations": [{"physicalLocation": _location(path, _start(*place_of(failure)))}],
    }


def _location(path: str, region: dict[str, Json]) -> dict[str, Json]:
    return {"artifactLocation": _artifact(path), "region": region}


def _artifact(path: str) -> dict[str, Json]:
    """Where a file is (3.4): a relative path as a relative URI, an absolute one as a file URI."""
    pure = PurePath(path)
    return {"uri": pure.as_uri() if pure.is_absolute() else quote(pure.as_posix())}


def _region(span: Span) -> dict[str, Json]:
    """A stretch of text (3.30); `endColumn` is exclusive there too."""
    end: dict[str, Json] = {"endLine": span.end_line, "endColumn": span.end_column}
    return {**_start(span.line, span.column), **end}


def _start(line: int, column: int) -> dict[str, Json]:
    return {"startLine": line, "startColumn": column}
