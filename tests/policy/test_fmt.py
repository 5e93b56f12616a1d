"""`policy fmt`: the layout, what it keeps, that it is stable and never changes the meaning; files and exit codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.testing
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from moving import texts as moving_texts
from pages import played, steps
from policies import policies

import flashnest.policy.layout as layout_module
from flashnest.cli.policy import app
from flashnest.errors import PolicyError
from flashnest.policy import PolicyCheckError
from flashnest.policy.layout import layout
from flashnest.policy.layout_words import COMMENT, shape, words_of
from flashnest.policy.layout_yaml import layout_text
from flashnest.policy.parse import lex, parse
from flashnest.policy.syntax import Source

SHIPPED = sorted((Path(__file__).parents[2] / "flashnest" / "conf" / "tiering").glob("*.yaml"))
UNTIDY = """\


# heading
  param   long=32tokens   # a comment
param short = 8
class   popular = hits in 60s>=3 or refs >=64
>=32-token  records in DRAM ,<=8-token records on   NVMe   # prose


tokens==16 in DRAM else  NVMe, place tokens in 9 .. 12 on NVME after 2 hits in 10min   # two
  # about the rest
place "x" : \u226520-token records in Dram
place 'yy': namespace='acme' and not ( kind = chunk or bytes>= 4 KiB) on nvme
place otherwise    in dram else nvme    # 9 to 31 tokens
promote popular from nvme to dram      at   most 2000rec/s cooldown 30s
demote  not popular from dram to nvme  when fill>90 % until fill < 80% by idle desc at most 20MB/s # go
evict   from nvme   when fill > 95% until fill < 90% using S3FIFO warn
flush every 5min at most 20MB/s
require lookup p99<=150us
place (kind = chunk or   # why
  tokens >=16
    # alone

   )
  and not namespace = "batch"    in dram # so
     else NVMe
keep refs >= 1000 in dram
# end


"""
TIDY = """\
# heading
param long  = 32 tokens  # a comment
param short = 8
class popular = hits in 60s >= 3 or refs >= 64
>=32-token records in DRAM, <=8-token records on NVMe  # prose

place tokens = 16     in dram else nvme
place tokens in 9..12 on nvme            after 2 hits in 10min  # two
# about the rest
place   "x": tokens >= 20   in dram
place   "yy": namespace = "acme" and not (kind = chunk or bytes >= 4KiB) on nvme
place   otherwise           in dram else nvme  # 9 to 31 tokens
promote popular             from nvme to dram  at most 2000 rec/s cooldown 30s
demote  not popular         from dram to nvme  when fill > 90% until fill < 80% by idle desc at most 20 MB/s  # go
evict                       from nvme          when fill > 95% until fill < 90% using s3fifo warn
flush   every 5min          at most 20 MB/s
require lookup p99 <= 150us
place (kind = chunk or  # why
       tokens >= 16
       # alone
      )
      and not namespace = "batch" in dram  # so
      else nvme
keep refs >= 1000 in dram
# end
"""
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


def comments(text: str) -> list[str]:
    return [word.text for word in words_of(text, lex(text)) if word.kind == COMMENT]


def meaning(text: str) -> object:
    document, broken = parse(Source(text))
    assert not broken
    return shape(document.statements)


def written(folder: Path, text: str, name: str) -> Path:
    (folder / name).write_bytes(text.encode())
    return folder / name


def test_layout_of_everything():
    assert layout(Source(UNTIDY)) == TIDY
    assert layout(Source(TIDY)) == TIDY


@pytest.mark.parametrize(
    ("text", "tidy"),
    [
        ("", ""),
        ("\n\n # alone\n\n", "# alone\n"),
        ("otherwise in DRAM else REJECT", "place otherwise in dram else reject\n"),
        (">=9-token records in DRAM,otherwise in NVMe", ">=9-token records in DRAM, otherwise in NVMe\n"),
        ("9 .. 31-tokens record on NVMe", "9..31-tokens record on NVMe\n"),
        (
            ">=9-token records in DRAM, place otherwise on NVMe",
            "place tokens >= 9 in dram\nplace otherwise   on nvme\n",
        ),
        ("place >=9-token records in DRAM\n", "place tokens >= 9 in dram\n"),
        ("tokens in DRAM, # one\n\n, # two\n", "place tokens in dram  # one\n\n# two\n"),
        ("place namespace = 'say \"x\"' in dram", "place namespace = 'say \"x\"' in dram\n"),
        ("param x = 1_000 B # 'q", "param x = 1_000B  # 'q\n"),
        ("place (tokens >= 32\n tokens) in dram", "place (tokens >= 32\n       tokens) in dram\n"),
        ("(\n>=9-token records\n) in DRAM", "place (\n       tokens >= 9\n      ) in dram\n"),
        (
            "place tokens >= 8 # a\n # b\n\n\n # c\n in dram",
            "place tokens >= 8  # a\n      # b\n      # c\n      in dram\n",
        ),
    ],
)
def test_layout_of_one_thing(text, tidy):
    assert layout(Source(text)) == tidy
    assert layout(Source(tidy)) == tidy


def test_long_condition_stands_aside_of_the_columns():
    long = " and ".join(f'namespace != "tenant{i}"' for i in range(4))

    lines = layout(Source(f"place tokens = 3 in dram\nplace {long} in dram\nplace tokens = 12 in dram")).splitlines()

    assert lines == ["place tokens = 3  in dram", f"place {long} in dram", "place tokens = 12 in dram"]


def test_what_does_not_follow_the_grammar_is_refused_with_its_place():
    with pytest.raises(PolicyCheckError) as caught:
        layout(Source("place tokens >= in dram", "x.tier", first_line=4, column_offset=2))

    assert [(one.code, one.line, one.column) for one in caught.value.diagnostics] == [("T001", 4, 19)]


def test_layout_that_would_change_the_meaning_is_refused(monkeypatch):
    monkeypatch.setattr(layout_module, "aligned", lambda lines: ["place otherwise in nvme"])

    with pytest.raises(PolicyError, match="would change what the policy means"):
        layout(Source("place otherwise in dram"))


spaces = st.sampled_from((" ", " ", " ", "  ", "\t ", "   "))
breaks = st.sampled_from(("\n", "\n", "\n\n\n", " # why: (x, 'y\n", ", ", "  ,\n", '\n  # alone, "z\n', ",#,\n\n#\n"))
inner = st.sampled_from((" ", "\n", " # inside\n  ", "\n\n # inside\n"))


@st.composite
def untidy(draw: st.DrawFn) -> str:
    """Policies as nobody writes them: spaces, line ends, commas and comments wherever they may stand."""
    done = ""
    for statement in draw(moving_texts if draw(st.booleans()) else policies).split("\n"):
        parts = re.split(r" (?=and |or |else |when |by |at most |cooldown |from |to )", statement)
        whole = "".join(part + draw(inner) for part in parts[:-1]) + parts[-1]
        done += re.sub(" ", lambda _: draw(spaces), whole) + draw(breaks)
    return done


@settings(max_examples=50, deadline=None)
@given(untidy())
def test_layout_keeps_meaning_and_comments_and_is_stable(text):
    done = layout(Source(text))

    assert layout(Source(done)) == done
    assert meaning(done) == meaning(text)
    assert comments(done) == comments(text)
    assert "\n\n\n" not in done
    assert not done.startswith("\n")
    assert all(line == line.rstrip() for line in done.split("\n"))


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
