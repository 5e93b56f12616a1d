"""Kept stores read whole: every record of both engines, nothing changed, and a clear refusal where a run is at work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flashnest.app.plan import present_in_store
from flashnest.errors import StoreCorruptError, StoreError
from flashnest.record import CHAIN, HITS, META, REFS, Kind, Tier, pack_meta, row_words
from flashnest.storage.lmdb import LmdbStore
from flashnest.storage.slots import SlotsStore
from flashnest.storage.store_reading import find_store, open_for_reading

WORDS = row_words()
CAPACITY = 8 << 20
Store = LmdbStore | SlotsStore
Open = Callable[[Path], Store]


def open_lmdb(path: Path) -> Store:
    return LmdbStore(path, CAPACITY, words=WORDS, owner="tiny", clock_s=lambda: 1000)


def open_slots(path: Path) -> Store:
    return SlotsStore(path, CAPACITY, words=WORDS, owner="tiny", clock_s=lambda: 1000, io="threads")


ENGINES = pytest.mark.parametrize("open_store", [open_lmdb, open_slots])


def filled(path: Path, open_store: Open, n: int = 700) -> tuple[np.ndarray, np.ndarray]:
    """Write n records, remove ten, write ten again: some in buckets, some in segments. Returns what is stored."""
    rng = np.random.default_rng(7)
    keys = rng.integers(1, 2**63, n, dtype=np.uint64)
    rows = np.zeros((n, WORDS), np.uint32)
    rows[:, META] = [pack_meta(Kind.NGRAM, int(length), 8) for length in rng.choice([8, 32], n)]
    rows[:, HITS], rows[:, REFS], rows[:, CHAIN] = np.arange(n) % 5, 3, 9
    store = open_store(path)
    store.insert_many(keys[: n // 2], rows[: n // 2])
    if isinstance(store, SlotsStore):
        store.merge()
    store.insert_many(keys[n // 2 :], rows[n // 2 :])
    store.remove_many(keys[:10])
    store.close()
    order = np.argsort(keys[10:])
    return keys[10:][order], rows[10:][order]


def files_of(path: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(file.relative_to(path)): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


@ENGINES
def test_every_record_is_read_and_nothing_changes(tmp_path: Path, open_store: Open) -> None:
    keys, rows = filled(tmp_path / "s", open_store)
    before = files_of(tmp_path / "s")
    with open_for_reading(tmp_path / "s") as kept:
        parts = list(kept.scan)
        assert (kept.owner, kept.words, kept.records) == ("tiny", WORDS, len(keys))
    found, held = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    order = np.argsort(found)
    assert np.array_equal(found[order], keys)
    assert np.array_equal(held[order][:, [META, HITS, REFS, CHAIN]], rows[:, [META, HITS, REFS, CHAIN]])
    assert files_of(tmp_path / "s") == before
    reopened = open_store(tmp_path / "s")
    assert len(reopened) == len(keys)
    reopened.close()


@ENGINES
def test_a_store_without_the_note_of_a_clean_close_is_examined_and_read(tmp_path: Path, open_store: Open) -> None:
    keys, _ = filled(tmp_path / "s", open_store)
    (tmp_path / "s" / "clean").unlink()
    with open_for_reading(tmp_path / "s") as kept:
        assert sum(len(part[0]) for part in kept.scan) == len(keys)
    assert not (tmp_path / "s" / "clean").exists()


@ENGINES
def test_a_store_that_a_run_holds_is_refused(tmp_path: Path, open_store: Open) -> None:
    filled(tmp_path / "s", open_store, 20)
    running = open_store(tmp_path / "s")
    with pytest.raises(StoreError, match="already open in this process"), open_for_reading(tmp_path / "s"):
        pass
    running.close()
    with open_for_reading(tmp_path / "s"), pytest.raises(StoreError, match="already open"):
        open_store(tmp_path / "s")


@ENGINES
def test_facts_are_those_of_the_policy(tmp_path: Path, open_store: Open) -> None:
    _, rows = filled(tmp_path / "s", open_store)
    shares: list[float] = []
    present = present_in_store(tmp_path, (60, 600), now_s=1100, progress=shares.append)
    assert set(present.tier.tolist()) == {Tier.NVME}
    assert sorted(present.facts.hits.tolist()) == sorted(rows[:, HITS].tolist())
    assert present.facts.age_s.tolist() == present.facts.idle_s.tolist() == [100] * len(rows)
    assert not present.facts.window_hits[0].any()
    assert np.array_equal(present.facts.window_hits[1], present.facts.hits)
    assert np.all(present.facts.nbytes == 72)
    assert shares[-1] == 1.0
    assert "s (" in present.source
    assert "tiny)" in present.source


def test_a_folder_is_searched_for_its_one_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no folder"):
        find_store(tmp_path / "none")
    with pytest.raises(StoreError, match="holds no store"):
        find_store(tmp_path)
    with pytest.raises(StoreError, match="holds no store"), open_for_reading(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
    filled(tmp_path / "a", open_slots, 20)
    assert find_store(tmp_path) == tmp_path / "a"
    filled(tmp_path / "b", open_lmdb, 20)
    with pytest.raises(StoreError, match="holds several stores"):
        find_store(tmp_path)


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    filled(tmp_path / "s", open_slots, 20)
    with (tmp_path / "s" / "slots.dat").open("r+b") as file:
        file.write(b"\0" * 64)
    with pytest.raises(StoreCorruptError, match="not a superblock"), open_for_reading(tmp_path / "s"):
        pass
    filled(tmp_path / "t", open_lmdb, 20)
    with (tmp_path / "t" / "data.mdb").open("r+b") as file:
        file.write(b"\0" * 8192)
    with pytest.raises(StoreCorruptError), open_for_reading(tmp_path / "t"):
        pass


def test_an_empty_store_has_no_records(tmp_path: Path) -> None:
    open_lmdb(tmp_path / "s").close()
    assert len(present_in_store(tmp_path / "s", (60,))) == 0
