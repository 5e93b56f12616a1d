"""`flash-nest policy plan` as it is called: a kept store, a trace, an old policy, and what it refuses."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from flashnest.cli.commands import flash_nest
from flashnest.record import HITS, LAST_ACCESS, META, Kind, pack_meta, row_words
from flashnest.storage.lmdb import LmdbStore

POLICY = """tiers:
  dram: {capacity: 16MiB}
  nvme: {capacity: 64MiB}
rules: |
  place tokens >= 32 in dram
  place otherwise in nvme
  promote hits in 10min >= 3 from nvme to dram at most 100 rec/s
  evict idle > 1d from nvme
"""


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = flash_nest(["policy", "plan", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "new.yaml"
    path.write_text(POLICY)
    return path


def store(path: Path) -> LmdbStore:
    return LmdbStore(path, 64 << 20, words=row_words(), owner="tiny", clock_s=lambda: int(time.time()))


def test_a_kept_store_is_planned_and_left_alone(
    tmp_path: Path, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = store(tmp_path / "nvme" / "tiny")
    rows = np.zeros((300, row_words()), np.uint32)
    rows[:, META] = [pack_meta(Kind.NGRAM, 32 if i < 100 else 8, 8) for i in range(300)]
    rows[:, LAST_ACCESS] = int(time.time())
    rows[:40, HITS] = 5
    kept.insert_many(np.arange(1, 301, dtype=np.uint64), rows)
    running = run(capsys, policy, "--store", tmp_path / "nvme")
    assert running[0] == 2
    assert "already open in this process" in running[2]
    kept.close()
    code, out, _ = run(capsys, policy, "--store", tmp_path / "nvme", "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert [(move["action"], move["records"]) for move in found["moves"]] == [("promote", 40), ("evict", 0)]
    assert found["moves"][0]["seconds"] == pytest.approx(0.4)
    assert [(one["rule"], one["tier"], one["records"], one["moved"]) for one in found["misplaced"]] == [
        (1, "nvme", 100, 40)
    ]
    _, text, _ = run(capsys, policy, "--store", tmp_path / "nvme" / "tiny")
    assert "present: 300 records in" in text
    assert "promote 40 records, 2.8 KiB, nvme -> dram, 400.0 ms at 100 rec/s" in text


def test_a_trace_is_placed_by_the_old_policy(tmp_path: Path, policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "old.yaml"
    old.write_text(POLICY.replace("place tokens >= 32 in dram\n  ", "").replace(">= 3", ">= 2"))
    code, out, _ = run(capsys, policy, "--from", old, "--trace", "smoke", "--requests", 8, "--format", "json")
    found = json.loads(out)
    assert code == 0
    (misplaced,) = found["misplaced"]
    (promote, _) = found["moves"]
    assert misplaced["records"] > 0
    assert promote["already"] == promote["matching"] == promote["records"] > 0
    tiers = {one["tier"]: one for one in found["tiers"]}
    assert tiers["dram"]["before"] == 0
    assert tiers["dram"]["after"] == promote["records"]
    code, text, _ = run(capsys, policy, "--trace", "smoke", "--requests", 8)
    assert "placed elsewhere" not in text
    assert f"placed by {policy}" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "a plan needs a table"),
        (("--store", "a", "--trace", "b"), "a plan needs a table"),
        (("--store", "/nowhere"), "there is no folder"),
        (("--trace", "smok"), "did you mean `smoke`"),
    ],
)
def test_what_cannot_be_planned_is_one_clear_error(
    policy: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, policy, *words)
    assert (code, out) == (2, "")
    assert said in err
