"""The slots store's files: damage, ownership, one process, disks that fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from records import WORDS, rows_of, same_chains, spread
from slots_setup import MIB, SLOTS, crowd, fill, look, open_store

from flashnest.errors import StoreCorruptError, StoreError, StoreFullError
from flashnest.storage import slots_file
from flashnest.storage.slots import SlotsStore
from flashnest.storage.store import State


@pytest.mark.parametrize("place", [0, 70, 600, 4000])
def test_damaged_bucket_is_a_miss_counted_once_and_heals(tmp_path: Path, place: int) -> None:
    store = open_store(tmp_path / "db")
    keys = crowd(40)
    store.insert_many(keys, rows_of(keys))
    fill(store, 0, 500)
    store.merge()
    with (tmp_path / "db" / "slots.dat").open("r+b") as file:
        file.seek(4096 + place)
        byte = file.read(1)
        file.seek(4096 + place)
        file.write(bytes([byte[0] ^ 4]))
    for _ in range(2):
        assert (look(store, keys).state == State.MISS).all()
    assert store.corrupt == 1
    assert (look(store, spread(0, 500)).state == State.HIT).sum() == len(store) > 480
    store.insert_many(keys, rows_of(keys))
    store.merge()
    assert same_chains(look(store, keys).rows, keys)
    assert (store.corrupt, len(store)) == (1, sum(len(part) for part in store.scan_keys()))
    store.close()


def test_page_written_to_the_wrong_place_is_damaged(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    fill(store, 0, 2000)
    store.merge()
    store.close()
    data = tmp_path / "db" / "slots.dat"
    content = bytearray(data.read_bytes())
    content[4096:8192] = content[8192:12288]
    data.write_bytes(content)
    store = open_store(tmp_path / "db")
    assert store.corrupt == 1
    assert same_chains(*[np.concatenate(part) for part in zip(*[(r, k) for k, r in store.scan()], strict=True)])
    assert 0 < 2000 - len(store) < SLOTS
    store.close()


@pytest.mark.parametrize("damage", ["superblock", "truncated", "empty"])
def test_file_that_is_not_a_store_is_a_clean_error(tmp_path: Path, damage: str) -> None:
    open_store(tmp_path / "db").close()
    data = tmp_path / "db" / "slots.dat"
    content = bytearray(data.read_bytes())
    content[20] ^= 1 if damage == "superblock" else 0
    data.write_bytes(content[: {"superblock": len(content), "truncated": 50_000, "empty": 0}[damage]])
    for _ in range(2):  # the failed open has let go of the directory
        with pytest.raises(StoreCorruptError, match="damaged") as error:
            open_store(tmp_path / "db")
    assert "move" in error.value.fix


def test_damaged_note_of_a_clean_close_only_costs_an_examination(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    fill(store, 0, 2000)
    store.close()
    note = tmp_path / "db" / "clean"
    note.write_bytes(note.read_bytes()[:-3] + b"abc")
    store = open_store(tmp_path / "db")
    assert (len(store), store.corrupt) == (2000, 0)
    store.close()


@pytest.mark.parametrize(
    ("options", "name"),
    [({"words": WORDS + 1}, "words"), ({"owner": "other model"}, "owner"), ({"capacity_bytes": 3 * MIB}, "capacity")],
)
def test_file_of_another_setup_is_refused(tmp_path: Path, options: dict[str, object], name: str) -> None:
    open_store(tmp_path / "db").close()
    setup = {"capacity_bytes": 2 * MIB, "words": WORDS, "clock_s": lambda: 5} | options
    with pytest.raises(StoreError, match="another setup") as error:
        SlotsStore(tmp_path / "db", **setup)  # type: ignore[arg-type]
    assert name in error.value.why


def test_directory_of_an_lmdb_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "data.mdb").touch()
    with pytest.raises(StoreError, match="another setup"):
        open_store(tmp_path / "db")


@pytest.mark.parametrize(("capacity", "log_bytes"), [(MIB - 1, None), (MIB, 2 * MIB), (MIB, 10)])
def test_capacity_that_cannot_hold_a_store_is_a_clear_error(
    tmp_path: Path, capacity: int, log_bytes: int | None
) -> None:
    with pytest.raises(StoreFullError):
        open_store(tmp_path / "db", capacity, log_bytes=log_bytes)


def test_disk_without_room_for_the_file_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(StoreError, match="cannot make") as error:
        open_store(tmp_path / "db")
    assert "capacity" in error.value.fix
    assert not list((tmp_path / "db").glob("slots.*"))


def test_second_open_in_this_process_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    with pytest.raises(StoreError, match="already open in this process"):
        open_store(tmp_path / "db")
    store.close()
    open_store(tmp_path / "db").close()


def test_second_process_is_refused(tmp_path: Path) -> None:
    directory = slots_file.SlotsDirectory(tmp_path / "db")
    script = "import sys; from pathlib import Path; from flashnest.storage.slots_file import SlotsDirectory;"
    script += "SlotsDirectory(Path(sys.argv[1]))"
    other = subprocess.run([sys.executable, "-c", script, str(tmp_path / "db")], capture_output=True, check=False)
    assert b"in use by another process" in other.stderr
    directory.release()


def test_unusable_directory_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot use"):
        open_store(tmp_path / "file" / "db")


def test_forked_child_cannot_use_the_store(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    fill(store, 0, 10)
    child = os.fork()
    if child == 0:  # only os._exit below: pytest must not go on in the child
        try:
            store.contains_many(spread(0, 1))
        except StoreError as error:
            store.close()
            os._exit(7 if "fork" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert store.contains_many(spread(0, 10)).all()
    store.close()


def test_files_are_private(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    fill(store, 0, 10)
    for path in [tmp_path / "db", *(tmp_path / "db").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0 or path.name == "clean", path
    store.close()
    assert (tmp_path / "db").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("call", ["segment", "page"])
def test_failed_sync_is_reported_and_never_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    store = open_store(tmp_path / "db")
    fill(store, 0, 10)
    calls = []

    def fail(*args: object) -> None:
        calls.append(args)
        raise OSError(5, "Input/output error")

    target = store._segments if call == "segment" else store._buckets.writer.file
    monkeypatch.setattr(type(target), "sync", fail)
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot be written"):
            fill(store, 100, 10) if call == "segment" else store.merge()
    assert len(calls) == 1
    assert store.contains_many(spread(0, 10)).all()
    store.close()
    assert not (tmp_path / "db" / "clean").exists()
    monkeypatch.undo()
    store = open_store(tmp_path / "db")
    assert store.contains_many(spread(0, 10)).all()
    store.close()


def test_full_disk_refuses_a_write_and_takes_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path / "db")
    fill(store, 0, 10)
    written = os.pwrite
    full = [True]

    def fail(fd: int, data: bytes, at: int) -> int:
        if full[0]:
            written(fd, data[:100], at)
            raise OSError(28, "No space left on device")
        return written(fd, data, at)

    monkeypatch.setattr("os.pwrite", fail)
    with pytest.raises(StoreError, match="cannot be written"):
        fill(store, 100, 10)
    full[0] = False
    assert fill(store, 200, 10).all()
    store.close()
    (tmp_path / "db" / "clean").unlink()
    store = open_store(tmp_path / "db")
    assert (len(store), store.corrupt) == (20, 0)
    assert store.contains_many(spread(200, 10)).all()
    store.close()
