"""`policy fmt` on files: the rules of a tiering file alone, in place, as a diff, as a check, from stdin; exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer.testing
import yaml
from hypothesis import given, settings
from pages import played, steps
from untidy import TIDY, UNTIDY, meaning, untidy

from flashnest.cli.policy import app
from flashnest.errors import PolicyError
from flashnest.policy.layout_yaml import layout_text

SHIPPED = sorted((Path(__file__).parents[2] / "flashnest" / "conf" / "tiering").glob("*.yaml"))
FILE = """\
# what it is
tiers:   {dram: {capacity: 14GiB}}

rules: |   # the policy

    tokens>=8 in DRAM   # long
      # the rest
    otherwise in dram


tests:
  - {record: {tokens: 8},   expect: dram}
"""


def fmt(*args: str, stdin: str = "") -> typer.testing.Result:
    return typer.testing.CliRunner().invoke(app, ["fmt", *args], input=stdin)


def written(folder: Path, text: str, name: str) -> Path:
    (folder / name).write_bytes(text.encode())
    return folder / name


@settings(max_examples=25, deadline=None)
@given(untidy())
def test_layout_of_yaml_changes_the_rules_alone(text):
    block = "".join(f"   {line}\n" if line.strip() else "\n" for line in text.strip("\n").split("\n"))
    file = f"a:   1 # x\nrules: |3\n{block}\n\n# end\ntests:   []\n"

    done = layout_text(file, "x.yaml", is_yaml=True)

    before, after = yaml.safe_load(file), yaml.safe_load(done)
    assert meaning(after.pop("rules")) == meaning(before.pop("rules"))
    assert after == before
    assert done.startswith("a:   1 # x\nrules: |3\n   ")
    assert done.endswith("\n\n\n# end\ntests:   []\n")
    assert layout_text(done, "x.yaml", is_yaml=True) == done


def test_layout_of_a_tiering_file():
    wanted = FILE.replace("tokens>=8 in DRAM   # long", "place tokens >= 8 in dram  # long")
    wanted = wanted.replace("      # the rest\n    otherwise in dram", "    # the rest\n    place otherwise in dram")

    assert layout_text(FILE, "x.yaml", is_yaml=True) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "rules: otherwise   in dram\n",
        "rules: |\n\ntests: []\n",
        "rules: '  otherwise in dram'",
        "{rules: otherwise in dram}",
    ],
)
def test_rules_on_one_line_and_no_rules_stay(text):
    assert layout_text(text, "x.yaml", is_yaml=True) == text


def test_line_ends_and_byte_order_mark_stay():
    text = "\ufeffrules: |\r\n  tokens >=8  in dram\r\n  otherwise in nvme\r\ntests: []\r\n"

    done = layout_text(text, "x.yaml", is_yaml=True)

    assert done == "\ufeffrules: |\r\n  place tokens >= 8 in dram\r\n  place otherwise   in nvme\r\ntests: []\r\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tiers: {}\n", "the file has no `rules`"),
        ("rules: [1]\n", "`rules` is the text of the policy"),
        ("rules: >\n  a\n  b\n", "needs a `|` block"),
        ("rules: &x\n  |\n  otherwise in dram\n", "cannot tell where"),
        ("a: [\n", "not YAML"),
    ],
)
def test_yaml_of_the_wrong_shape_is_a_policy_error_with_its_place(text, message):
    with pytest.raises(PolicyError, match=r"^x\.yaml:\d+:\d+: ") as caught:
        layout_text(text, "x.yaml", is_yaml=True)
    assert message in str(caught.value)


def test_fmt_writes_in_place_and_keeps_the_mode(tmp_path):
    path = written(tmp_path, UNTIDY, "mine.tier")
    path.chmod(0o640)

    result = fmt(str(path))

    assert (result.exit_code, result.stdout) == (0, f"formatted {path}\n")
    assert path.read_text(encoding="utf-8") == TIDY
    assert path.stat().st_mode & 0o777 == 0o640
    assert [one.name for one in tmp_path.iterdir()] == ["mine.tier"]
    assert fmt(str(path)).stdout == f"unchanged {path}\n"


def test_fmt_through_a_link_writes_its_target(tmp_path):
    path = written(tmp_path, "otherwise in dram", "mine.tier")
    (tmp_path / "link.tier").symlink_to(path)

    assert fmt(str(tmp_path / "link.tier")).exit_code == 0

    assert (tmp_path / "link.tier").is_symlink()
    assert path.read_text() == "place otherwise in dram\n"


def test_diff_and_check_write_nothing_and_end_with_1(tmp_path):
    path = written(tmp_path, FILE, "mine.yaml")

    diff, check, both = fmt("--diff", str(path)), fmt("--check", str(path)), fmt("--diff", "--check", str(path))

    assert (diff.exit_code, check.exit_code, both.exit_code) == (1, 1, 1)
    assert diff.stdout.splitlines()[:2] == [f"--- {path}", f"+++ {path} (formatted)"]
    assert "\n-    tokens>=8 in DRAM   # long\n" in diff.stdout
    assert "\n+    place tokens >= 8 in dram  # long\n" in diff.stdout
    assert check.stdout == f"would format {path}\n"
    assert both.stdout == diff.stdout + check.stdout
    assert path.read_text() == FILE


def test_check_of_a_tidy_file_says_nothing(tmp_path):
    result = fmt("--check", "--diff", str(written(tmp_path, TIDY, "mine.txt")))

    assert (result.exit_code, result.stdout) == (0, "")


@pytest.mark.parametrize(("text", "tidy"), [(UNTIDY, TIDY), (FILE, layout_text(FILE, "", is_yaml=True))])
def test_stdin_goes_to_stdout(text, tidy):
    result = fmt("-", stdin=text)

    assert (result.exit_code, result.stdout) == (0, tidy)


def test_wrong_files_end_with_2_and_the_others_are_formatted(tmp_path):
    wrong = written(tmp_path, "place tokens in", "wrong.tier")
    good = written(tmp_path, "otherwise in dram", "good.tier")
    other = written(tmp_path, "x", "notes.md")
    binary = written(tmp_path, "x", "binary.tier")
    binary.write_bytes(b"\xff\xfe")

    result = fmt(str(wrong), str(other), str(binary), str(tmp_path / "none.tier"), str(good))

    assert result.exit_code == 2
    assert f"--> {wrong}:1:16" in result.stderr
    assert "notes.md is not a tiering file" in result.stderr
    assert "binary.tier is not UTF-8 text" in result.stderr
    assert "cannot read" in result.stderr
    assert result.stdout == f"formatted {good}\n"
    assert wrong.read_text() == "place tokens in"


def test_shipped_options_are_not_rewritten_by_name(monkeypatch):
    monkeypatch.setattr("flashnest.policy.layout_yaml.layout_text", lambda text, name, *, is_yaml: text + "#\n")

    result = fmt("dram_only")

    assert result.exit_code == 2
    assert "fmt does not rewrite it by name" in result.stderr


def test_the_page_prints_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    for command, said in steps("fmt.md"):
        assert played(command, said) == said, command


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_options_are_laid_out(path):
    """`flash-nest policy fmt flashnest/conf/tiering/*.yaml` puts it right."""
    text = path.read_text(encoding="utf-8")

    assert layout_text(text, str(path), is_yaml=True) == text
