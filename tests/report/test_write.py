"""report.json is whole or not there, and a place that cannot take it is one clear error."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from flashnest.errors import ConfigError
from flashnest.report.write import check_writable, write_report


def test_report_is_written_into_folders_that_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "r.json"
    write_report({"x": [1, None, "é"]}, path)
    assert json.loads(path.read_text()) == {"x": [1, None, "é"]}
    assert path.stat().st_mode & 0o777 == 0o644


def test_old_report_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    write_report({"n": 1}, path)
    write_report({"n": 2}, path)
    assert json.loads(path.read_text()) == {"n": 2}
    assert os.listdir(tmp_path) == ["r.json"]


def test_failure_keeps_the_old_report_and_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.json"
    write_report({"n": 1}, path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ConfigError) as caught:
        write_report({"n": 2}, path)
    assert caught.value.why == "No space left on device"
    assert json.loads(path.read_text()) == {"n": 1}
    assert os.listdir(tmp_path) == ["r.json"]


def test_not_a_number_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_report({"n": float("nan")}, tmp_path / "r.json")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("where", ["file/r.json", "."])
def test_impossible_place_is_one_clear_error_in_both(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("a file, not a folder")
    for attempt in (check_writable, lambda path: write_report({}, path)):
        with pytest.raises(ConfigError) as caught:
            attempt(tmp_path / where)
        assert "cannot write the report" in caught.value.what
        assert caught.value.why
        assert "report.path" in caught.value.fix


def test_check_makes_folders_and_leaves_no_file(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "r.json")
    assert (tmp_path / "new").is_dir()
    assert os.listdir(tmp_path / "new") == []
