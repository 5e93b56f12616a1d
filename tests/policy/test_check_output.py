"""`policy check --format json|sarif`: one document for all files, shapes, places, exit codes; the registry of codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from pages import played, steps

import flashnest.policy
from flashnest.cli.policy import app
from flashnest.policy.codes import CODES

ROOT = Path(__file__).parents[2]
CARD = "rules: |\n  >=32-token records in DRAM, <=8-token records on NVMe\n"
WARNED = "param long = 3\nplace otherwise in dram\n"
SHAPES = {
    "log": ({"version", "runs"}, {"$schema"}),
    "run": ({"tool"}, {"columnKind", "artifacts", "results", "invocations"}),
    "driver": ({"name"}, {"version", "semanticVersion", "rules"}),
    "rule": ({"id"}, {"name", "shortDescription", "fullDescription", "help", "defaultConfiguration"}),
    "result": ({"message"}, {"ruleId", "ruleIndex", "level", "locations", "relatedLocations"}),
    "region": (set(), {"startLine", "startColumn", "endLine", "endColumn"}),
}
"""Properties that SARIF 2.1.0 asks for, and those of the rest that we write; no others are allowed in its objects."""


def run(*args: str) -> typer.testing.Result:
    return typer.testing.CliRunner().invoke(app, ["check", *args])


def document(form: str, *args: str) -> dict[str, Any]:
    return json.loads(run(*args, "--format", form).stdout)


def written(folder: Path, text: str, name: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def has_shape(name: str, found: dict[str, Any]) -> bool:
    needed, more = SHAPES[name]
    return needed <= found.keys() <= needed | more


def test_json_is_one_document_for_all_files(tmp_path):
    paths = [
        written(tmp_path, CARD, "card.yaml"),
        written(tmp_path, WARNED, "warned.tier"),
        str(tmp_path / "missing.yaml"),
        written(tmp_path, "tiers: 3\nrules: |\n  place otherwise in dram\n", "shape.yaml"),
    ]

    result = run(*paths, "--format", "json")

    found = json.loads(result.stdout)
    assert result.exit_code == found["exit_code"] == 2
    assert result.stderr == ""
    assert [file["path"] for file in found["files"]] == paths
    assert [file["ok"] for file in found["files"]] == [False, True, False, False]
    assert [[one["code"] for one in file["findings"]] for file in found["files"]] == [
        ["T101"],
        ["T409"],
        ["T004"],
        ["T004"],
    ]
    assert (found["errors"], found["warnings"]) == (3, 1)
    assert found["files"][3]["findings"][0]["line"] == 1
    assert "`tiers` maps each tier" in found["files"][3]["findings"][0]["message"]


def test_json_finding_says_what_text_says(tmp_path):
    found = document("json", written(tmp_path, CARD, "card.yaml"))

    (gap,) = found["files"][0]["findings"]
    assert gap == {
        "code": "T101",
        "name": "gap",
        "severity": "error",
        "message": "no rule places records with tokens = 9..31",
        "line": 2,
        "column": 31,
        "end_line": 2,
        "end_column": 48,
        "text": "covers tokens = 1..8",
        "related": [{"line": 2, "column": 3, "end_line": 2, "end_column": 21, "text": "covers tokens = 32.."}],
        "example": "record: {tokens: 9, kind: ngram}",
        "notes": [],
        "help": "widen `tokens >= 32` to `tokens >= 9`, or add `place otherwise in dram else nvme` as the last rule",
    }


@pytest.mark.parametrize("form", ["text", "json", "sarif"])
@pytest.mark.parametrize(("flags", "code"), [((), 0), (("--strict",), 1)])
def test_every_format_has_the_same_exit_codes(tmp_path, form, flags, code):
    warned, card = written(tmp_path, WARNED, "warned.tier"), written(tmp_path, CARD, "card.yaml")

    assert run(warned, *flags, "--format", form).exit_code == code
    assert run("dram_only", *flags, "--format", form).exit_code == 0
    assert run(warned, card, *flags, "--format", form).exit_code == 2


def test_sarif_has_the_shape_of_2_1_0(tmp_path):
    paths = (written(tmp_path, CARD, "card.yaml"), written(tmp_path, WARNED, "warned.tier"), str(tmp_path / "no.tier"))

    log = document("sarif", *paths)

    (sarif_run,) = log["runs"]
    driver = sarif_run["tool"]["driver"]
    assert has_shape("log", log)
    assert has_shape("run", sarif_run)
    assert has_shape("driver", driver)
    assert all(has_shape("rule", rule) for rule in driver["rules"])
    assert log["version"] == "2.1.0"
    assert sarif_run["columnKind"] in {"utf16CodeUnits", "unicodeCodePoints"}
    assert sarif_run["invocations"] == [{"executionSuccessful": False, "exitCode": 2}]
    assert [result["ruleId"] for result in sarif_run["results"]] == ["T101", "T409", "T004"]
    for result in sarif_run["results"]:
        assert has_shape("result", result)
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in {"none", "note", "warning", "error"}
        for location in result["locations"] + result.get("relatedLocations", []):
            physical = location["physicalLocation"]
            assert has_shape("region", physical["region"])
            assert all(isinstance(number, int) and number >= 1 for number in physical["region"].values())
            assert physical["artifactLocation"]["uri"].startswith("file:///")


def test_sarif_names_relative_files_relatively(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, CARD, "my card.yaml")

    (sarif_run,) = document("sarif", "my card.yaml")["runs"]

    assert sarif_run["artifacts"] == [{"location": {"uri": "my%20card.yaml"}}]
    (result,) = sarif_run["results"]
    region = {"startLine": 2, "startColumn": 31, "endLine": 2, "endColumn": 48}
    assert result["locations"][0]["physicalLocation"]["region"] == region
    assert "example: record: {tokens: 9, kind: ngram}" in result["message"]["text"]


def test_every_rule_of_sarif_has_help(tmp_path):
    (sarif_run,) = document("sarif", "dram_only")["runs"]

    rules = sarif_run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == sorted(CODES)
    for rule in rules:
        assert re.fullmatch(r"[A-Z][A-Za-z0-9]+", rule["name"])
        assert rule["help"]["text"].endswith(".")
        assert rule["defaultConfiguration"]["level"] in {"error", "warning"}
    assert sarif_run["results"] == []


def test_every_code_that_the_source_names_is_registered():
    sources = Path(flashnest.policy.__file__).parent.glob("*.py")
    used = {code for path in sources for code in re.findall(r'"(T\d{3})"', path.read_text())}

    assert used <= CODES.keys()


def test_every_code_of_the_docs_is_registered_with_its_severity():
    rows = re.findall(r"^\| (T\d{3}) \| (\(warning\))?", (ROOT / "docs" / "policy.md").read_text(), re.MULTILINE)

    assert len(rows) >= 20
    assert {code: CODES[code].severity.value == "warning" for code, _ in rows} == {
        code: bool(warned) for code, warned in rows
    }


def test_the_page_prints_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    for command, said in steps("check.md"):
        assert played(command, said) == said, command
