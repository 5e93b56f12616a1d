"""The slots store: the contract with both readers, merging, eviction, damage, ownership, hits that write nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from contract import StoreContract, clock  # noqa: F401
from records import WORDS, Clock, keys_of, rows_of, same_chains, spread

from flashnest.errors import StoreCorruptError, StoreError, StoreFullError
from flashnest.record import CHAIN, HITS, INSERTED, LAST_ACCESS, REFS, Tier
from flashnest.storage import slots_file
from flashnest.storage.slots import SlotsStore
from flashnest.storage.slots_page import slots_for
from flashnest.storage.store import Found, State

MIB = 1 << 20
SLOTS = slots_for(WORDS)


def open_store(path: Path, capacity: int = 2 * MIB, **options: object) -> SlotsStore:
    return SlotsStore(path, capacity, words=WORDS, clock_s=lambda: 5, **options)  # type: ignore[arg-type]


def fill(store: SlotsStore, start: int, count: int) -> np.ndarray:
    keys = spread(start, count)
    return store.insert_many(keys, rows_of(keys))


def look(store: SlotsStore, keys: np.ndarray) -> Found:
    found = Found.allocate(len(keys), WORDS)
    store.lookup_many(keys, found)
    return found


def crowd(count: int, start: int = 1) -> np.ndarray:
    """Return keys that all belong to the first bucket."""
    return np.arange(start, start + count, dtype=np.uint64)


class _SlotsContract(StoreContract):
    tier = Tier.NVME
    counts_hits = False
    options: ClassVar[dict[str, object]] = {}

    @pytest.fixture
    def store(self, tmp_path: Path, clock: Clock) -> SlotsStore:  # noqa: F811
        store = SlotsStore(tmp_path / "db", 4 * MIB, words=WORDS, clock_s=clock.whole, **self.options)
        yield store
        store.close()


class TestContractWithIoUring(_SlotsContract):
    options: ClassVar = {"io": "io_uring"}


class TestContractWithThreads(_SlotsContract):
    options: ClassVar = {"io": "threads"}


class TestContractWithAMergeAtEveryWrite(_SlotsContract):
    options: ClassVar = {"log_bytes": 200 * 84}

    @pytest.fixture
    def store(self, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> SlotsStore:  # noqa: F811
        written = SlotsStore.write_many

        def write_and_merge(store: SlotsStore, *batch: np.ndarray) -> np.ndarray:
            stored = written(store, *batch)
            store.merge()
            return stored

        monkeypatch.setattr(SlotsStore, "write_many", write_and_merge)
        store = SlotsStore(tmp_path / "db", 4 * MIB, words=WORDS, clock_s=clock.whole, **self.options)
        yield store
        store.close()


def test_records_survive_many_merges_in_place_and_in_order(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db", log_bytes=300 * 84)
    for start in range(0, 8000, 250):
        assert fill(store, start, 250).all()
    assert store.merge_bytes > 20 * 4096
    assert len(store) == 8000
    found = look(store, spread(0, 8000))
    assert (found.state == State.HIT).all()
    assert same_chains(found.rows, spread(0, 8000))
    assert (look(store, spread(8000, 8000)).state == State.MISS).all()
    keys = np.concatenate(list(store.scan_keys()))
    assert keys.tolist() == sorted(spread(0, 8000).tolist())
    store.close()


def test_facts_are_kept_across_a_merge(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    rows = rows_of(spread(0, 50))
    rows[:, [HITS, INSERTED, LAST_ACCESS]] = [4, 77, 78]
    store.insert_many(spread(0, 50), rows)
    store.merge()
    fill(store, 0, 50)
    found = look(store, spread(0, 50))
    assert (found.rows[:, [HITS, INSERTED, LAST_ACCESS, REFS]] == [4, 77, 5, 2]).all()
    assert (store.stats().inserts, store.stats().updates) == (50, 50)
    store.close()


def test_removals_reach_the_buckets(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    fill(store, 0, 400)
    store.merge()
    assert store.remove_many(spread(0, 300)).all()
    assert len(store) == 100
    assert not store.contains_many(spread(0, 300)).any()
    store.merge()
    assert len(store) == 100
    assert store.contains_many(spread(0, 400)).tolist() == [False] * 300 + [True] * 100
    assert sum(len(keys) for keys in store.scan_keys()) == 100
    store.close()


def test_record_removed_and_stored_again_in_one_write_starts_afresh(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    keys = keys_of(9)
    rows = rows_of(keys)
    rows[0, HITS] = 4
    store.insert_many(keys, rows)
    store.merge()
    store.write_many(keys, rows_of(keys), keys)
    assert look(store, keys).rows[0, HITS] == 0
    assert (len(store), store.stats().inserts, store.stats().removes) == (1, 2, 1)
    store.close()


def test_full_bucket_keeps_the_records_used_last(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    keys = crowd(SLOTS + 30)
    rows = rows_of(keys)
    rows[:, INSERTED] = 1
    rows[:, LAST_ACCESS] = np.random.default_rng(3).permutation(len(keys)) + 1
    store.insert_many(keys[:40], rows[:40])
    store.merge()
    assert store.insert_many(keys[40:], rows[40:]).all()
    assert store.contains_many(keys).all()  # the log still has them
    store.merge()
    assert (store.contains_many(keys) == (rows[:, LAST_ACCESS] > 30)).all()
    assert (store.stats().evicted, len(store)) == (30, SLOTS)
    store.close()


def test_files_never_pass_the_capacity(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db", MIB)
    most = 0
    for start in range(0, 32_000, 1000):
        fill(store, start, 1000)
        fill(store, start, 1000)  # overwritten records take room in the segments as well
        held = sum(path.stat().st_size for path in (tmp_path / "db").rglob("*") if path.is_file())
        most = max(most, held, store.stats().bytes_used)
    stats = store.stats()
    assert most <= stats.bytes_budget == MIB
    assert stats.evicted == stats.inserts - len(store) > 15_000
    assert 0.9 < stats.fill <= 1
    store.close()


def test_scan_from_walks_every_record_once_while_the_store_changes(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db", log_bytes=600 * 84)
    fill(store, 0, 3000)
    seen, position, calls = [], 0, 0
    while calls == 0 or position:
        keys, rows, position = store.scan_from(position, 200)
        assert same_chains(rows, keys)
        seen += keys.tolist()
        fill(store, 10_000 + 50 * calls, 50)
        calls += 1
    assert calls > 5
    assert len(seen) == len(set(seen))
    assert set(spread(0, 3000).tolist()) <= set(seen)
    store.close()


def test_clean_reopen_takes_the_counts_and_reads_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path / "db")
    fill(store, 0, 2000)
    store.merge()
    fill(store, 1900, 200)
    store.remove_many(spread(0, 100))
    store.close()
    monkeypatch.setattr("flashnest.storage.slots_buckets.Buckets.examine", None)
    store = open_store(tmp_path / "db")
    assert len(store) == 2000
    assert (look(store, spread(100, 2000)).state == State.HIT).all()
    store.merge()
    assert len(store) == 2000
    store.close()


def test_smaller_log_than_the_segments_is_merged_while_they_are_replayed(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db", log_bytes=600 * 84)
    for start in (0, 250):
        fill(store, start, 250)
    store.remove_many(spread(0, 50))
    store._log.max_records = 100  # as if it had been opened with less
    store._segments.close()
    store._writer._log.clear()
    store._writer.replay()
    store._writer.count_records()
    assert len(store) == 450
    assert store.contains_many(spread(0, 500)).tolist() == [False] * 50 + [True] * 450
    store.close()


def test_loading_sorted_records_fills_the_buckets_directly(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    keys = np.sort(spread(0, 6000))
    rows = rows_of(keys)
    rows[:, [INSERTED, LAST_ACCESS]] = 3
    for start in range(0, 6000, 1500):
        store.load_sorted(keys[start : start + 1500], rows[start : start + 1500])
    assert (len(store), store.segment_bytes) == (6000, 0)
    assert same_chains(look(store, keys).rows, keys)
    store.close()


def test_segments_take_little_more_than_the_changed_records(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    for start in range(0, 800, 100):
        fill(store, start, 100)
    assert 800 * store.value_bytes < store.segment_bytes < 1.02 * 800 * store.value_bytes
    store.close()


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

    monkeypatch.setattr("os.posix_fallocate", fail)
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


def _bytes_written() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("write_bytes")))


@pytest.mark.parametrize("merged", [False, True])
def test_hits_write_nothing(tmp_path: Path, merged: bool) -> None:
    store = open_store(tmp_path / "db")
    keys = spread(0, 300)
    store.insert_many(keys, rows_of(keys))
    if merged:
        store.merge()
    files = [path for path in (tmp_path / "db").rglob("*") if path.is_file()]
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in files], _bytes_written()
    found, one = Found.allocate(300, WORDS), np.ones(300, np.uint32)
    for _ in range(20):
        store.lookup_many(keys, found)
        store.feedback_many(keys, one, one)
        assert (found.state == State.HIT).all()
    assert ([(path.read_bytes(), path.stat().st_mtime_ns) for path in files], _bytes_written()) == before
    store.close()


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


def test_reads_go_on_and_stay_right_while_merges_rewrite_their_pages(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db", MIB, log_bytes=2000 * 84)
    fill(store, 0, 3000)
    store.merge()
    stop = threading.Event()
    wrong: list[str] = []
    rounds = [0]

    def read() -> None:
        keys = spread(0, 3000)
        while not stop.is_set():
            found = look(store, keys)
            if not (found.state == State.HIT).all() or not same_chains(found.rows, keys):
                wrong.append(f"{(found.state != State.HIT).sum()} misses")
            rounds[0] += 1

    reader = threading.Thread(target=read)
    reader.start()
    for start in range(0, 3000, 100):
        fill(store, start, 100)
        store.merge()
    while not rounds[0]:
        fill(store, 0, 100)
        store.merge()
    stop.set()
    reader.join()
    assert not wrong
    assert (store.corrupt, len(store)) == (0, 3000)
    store.close()


def test_word_of_the_chain_is_stored_whole(tmp_path: Path) -> None:
    """No packing on disk: a cold record comes back bit for bit."""
    store = open_store(tmp_path / "db")
    rows = np.random.default_rng(1).integers(1, 1 << 32, (200, WORDS), dtype=np.uint32)
    rows[:, 0] = 0
    store.insert_many(spread(0, 200), rows)
    store.merge()
    assert (look(store, spread(0, 200)).rows == rows).all()
    assert rows[:, CHAIN:].max() > 1 << 31
    store.close()
