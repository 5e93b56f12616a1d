"""`flash-nest policy diff` as it is called: text, JSON, exit codes, settings and the records of a trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flashnest.cli.commands import flash_nest

OLD = """tiers:
  dram: {capacity: 16GiB}
  nvme: {capacity: "${platform.table.nvme}", engine: lmdb}
rules: |
  place tokens >= 32 in dram
  place otherwise in nvme
  evict idle > 1d from nvme
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(OLD)
    new.write_text(OLD)
    return old, new


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = flash_nest(["policy", "diff", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_same_behaviour_is_no_difference(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    old, new = files
    new.write_text(OLD.replace("tokens >= 32 in dram", "tokens > 31 in DRAM  # long").replace(", engine: lmdb", ""))
    code, out, _ = run(capsys, old, new)
    assert (code, out) == (0, f"{old} -> {new}: no difference\n")


def test_a_difference_names_records_rules_and_an_example(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = files
    new.write_text(OLD.replace("32", "16").replace("1d", "2d").replace("16GiB", "8GiB"))
    code, out, _ = run(capsys, old, new)
    assert code == 1
    assert (
        out
        == f"""new records with tokens = 16..31
  - in nvme
      rule 2 (line 6): place otherwise in nvme
  + in dram
      rule 1 (line 5): place tokens >= 16 in dram
  = example: record: {{tokens: 16, kind: ngram}}

records in nvme with idle = 86401s..2d
  - evict
      rule 3 (line 7): evict idle > 1d from nvme
  + stay
      no rule takes them
  = example: record: {{tokens: 1, kind: ngram, idle: 86401s}} in nvme

tiers.dram.capacity: 16GiB -> 8GiB

{old} -> {new}: 2 regions and 1 setting differ
"""
    )


def test_settings_count_defaults_as_what_they_are(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    old, new = files
    new.write_text(OLD.replace("engine: lmdb", "engine: slots, depth: 32").replace("16GiB", "16384MiB"))
    code, out, _ = run(capsys, old, new)
    assert code == 1
    assert "tiers.nvme.engine: lmdb -> slots\ntiers.nvme.depth: 64 (default) -> 32\n" in out
    assert "capacity" not in out
    new.write_text(OLD.replace("engine: lmdb", "motor: lmdb"))
    code, _, err = run(capsys, old, new)
    assert code == 2
    assert "tiers.nvme.motor" in err


def test_json_says_the_same_and_counts_a_trace(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    old, new = files
    new.write_text(OLD.replace("tokens >= 32", "tokens >= 16").replace("rules: |", "rules: |\n  flush every 5min"))
    code, out, _ = run(capsys, old, new, "--trace", "smoke", "--requests", "4", "--format", "json")
    found = json.loads(out)
    (region,) = found["regions"]
    assert (code, found["same"], found["more"]) == (1, False, False)
    assert (region["where"], region["records"]) == ("place", "tokens = 16..31")
    assert region["new"] == {
        "outcome": "in dram",
        "rules": [{"number": 1, "line": 6, "text": "place tokens >= 16 in dram"}],
    }
    assert found["statements"] == [{"old": "", "new": "flush every 5min"}]
    assert 0 < region["trace_records"] == found["trace"]["moved"] < found["trace"]["records"]
    _, text, _ = run(capsys, old, new, "--trace", "smoke", "--requests", "4")
    assert f"= trace: {region['trace_records']:,} of {found['trace']['records']:,} records" in text
    assert "records of smoke (" in text.splitlines()[-1]


def test_a_policy_that_does_not_check_is_an_error(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    old, new = files
    new.write_text(OLD.replace("otherwise", "tokens < 9"))
    code, out, err = run(capsys, old, new)
    assert (code, out) == (2, "")
    assert "T101" in err
    assert run(capsys, "hotcold", "nosuch")[0] == 2
