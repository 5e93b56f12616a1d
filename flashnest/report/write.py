"""`report.json` on disk, whole or not at all: written beside its name, then renamed over it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from flashnest.errors import ConfigError
from flashnest.report.model import Json


def write_report(report: Mapping[str, Json], path: Path) -> None:
    """Write `report` to `path` as indented JSON; folders on the way are made, an old file is replaced.

    A reader sees the old file or the new one, never a part. Raises ConfigError where it cannot be written.
    """
    write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", path)


def write_text(text: str, path: Path, *, option: str = "report.path=") -> None:
    """Write `text` to `path` whole or not at all, as `write_report` does. `option` is what names the place."""
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=".report-", delete=False
        ) as file:
            temporary = file.name
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise _cannot_write(path, error, option) from error


def check_writable(path: Path, *, option: str = "report.path=") -> None:
    """Make the folders of `path` and try its place, so that a long run does not end without its report.

    Raises ConfigError where `write_report` would.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise _cannot_write(path, error, option) from error


def _cannot_write(path: Path, error: OSError, option: str) -> ConfigError:
    return ConfigError(
        f"cannot write the report to {path}" if option == "report.path=" else f"cannot write {path}",
        why=error.strerror or str(error),
        fix=f"give another place: {option}{'' if option.endswith('=') else ' '}FILE{path.suffix or '.json'}",
    )
