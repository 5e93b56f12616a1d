"""The LMDB store: the contract, capacity, damage, ownership, and that hits write nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import lmdb
import numpy as np
import pytest
from contract import StoreContract, clock  # noqa: F401
from records import WORDS, Clock, keys_of, rows_of, same_chains, spread

from flashnest.errors import StoreCorruptError, StoreError, StoreFullError
from flashnest.record import Tier
from flashnest.storage.lmdb import LmdbStore
from flashnest.storage.sealed import pack_values, split_keys, unpack_values
from flashnest.storage.store import Found, State

MIB = 1 << 20


def open_store(path: Path, capacity: int = 8 * MIB, **options: object) -> LmdbStore:
    return LmdbStore(path, capacity, words=WORDS, clock_s=lambda: 5, **options)  # type: ignore[arg-type]


def fill(store: LmdbStore, start: int, count: int) -> np.ndarray:
    keys = spread(start, count)
    return store.insert_many(keys, rows_of(keys))


class TestContract(StoreContract):
    tier = Tier.NVME
    counts_hits = False

    @pytest.fixture
    def store(self, tmp_path: Path, clock: Clock) -> LmdbStore:  # noqa: F811
        store = LmdbStore(tmp_path / "db", 4 * MIB, words=WORDS, clock_s=clock.whole)
        yield store
        store.close()


def test_reopened_store_keeps_its_records(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    fill(store, 0, 500)
    store.close()
    store = open_store(tmp_path / "db")
    found = Found.allocate(500, WORDS)
    store.lookup_many(spread(0, 500), found)
    assert (found.state == State.HIT).all()
    assert same_chains(found.rows, spread(0, 500))
    assert sorted(np.concatenate(list(store.scan_keys())).tolist()) == sorted(spread(0, 500).tolist())
    store.close()


def test_file_and_directory_are_private_and_pass_lmdbs_own_audit(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    fill(store, 0, 2000)
    store.remove_many(spread(0, 700))
    store.close()
    assert (tmp_path / "db").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "db" / "data.mdb").stat().st_mode & 0o077 == 0
    audit = [sys.executable, "-m", "lmdb", "-e", str(tmp_path / "db"), "verify"]
    assert subprocess.run(audit, capture_output=True, check=False).returncode == 0


def test_full_store_grows_to_its_capacity_then_rejects_and_recovers(tmp_path: Path) -> None:
    capacity = 2 * MIB
    store = open_store(tmp_path / "db", capacity, initial_map_bytes=64 << 10)
    stored = [fill(store, start, 2000) for start in range(0, 40_000, 2000)]
    assert stored[0].all()
    assert not stored[-1].any()
    assert store.full
    kept = int(np.count_nonzero(np.concatenate(stored)))
    stats = store.stats()
    assert (stats.records, stats.rejected) == (kept, 40_000 - kept)
    assert capacity * 0.8 < stats.bytes_used <= capacity
    assert (store.contains_many(spread(0, 40_000)) == np.concatenate(stored)).all()
    gone = spread(0, 40_000)[np.concatenate(stored)][: kept // 2]
    assert store.remove_many(gone).all()
    assert not store.full
    assert fill(store, 90_000, kept // 4).all()
    assert store.stats().bytes_used <= capacity
    store.close()


def test_known_records_are_overwritten_in_a_full_store(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db", 2 * MIB)
    stored = fill(store, 0, 40_000)
    assert store.full
    keys = spread(0, 40_000)[stored][:5]
    assert store.insert_many(keys, rows_of(keys)).all()
    store.close()


def test_capacity_below_the_least_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreFullError, match="too small"):
        open_store(tmp_path / "db", MIB - 1)


def test_damaged_record_is_a_miss_and_counted(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    fill(store, 0, 50)
    store.close()
    data = tmp_path / "db" / "data.mdb"
    content = bytearray(data.read_bytes())
    chain = rows_of(spread(7, 1))[0, 8:].tobytes()
    for at in _places(content, chain):  # also in a page that a later transaction left behind
        content[at] ^= 0xFF
    data.write_bytes(content)
    store = open_store(tmp_path / "db")
    found = Found.allocate(50, WORDS)
    store.lookup_many(spread(0, 50), found)
    assert np.flatnonzero(found.state == State.MISS).tolist() == [7]
    assert store.corrupt == 1
    assert sum(len(keys) for keys, _ in store.scan()) == 49
    keys = spread(7, 1)
    assert store.insert_many(keys, rows_of(keys)).all()
    store.lookup_many(keys, found)
    assert found.state[0] == State.HIT
    store.close()


def _places(content: bytearray, wanted: bytes) -> list[int]:
    places, at = [], content.find(wanted)
    while at >= 0:
        places.append(at)
        at = content.find(wanted, at + 1)
    assert places
    return places


@pytest.mark.parametrize("damage", ["zeros", "truncated", "text"])
def test_damaged_file_is_a_clean_error_and_leaves_the_process_alive(tmp_path: Path, damage: str) -> None:
    store = open_store(tmp_path / "db")
    fill(store, 0, 5000)
    store.close()
    data = tmp_path / "db" / "data.mdb"
    if damage == "text":
        data.write_text("no database at all" * 1000)
    else:
        with data.open("r+b") as file:
            if damage == "truncated":
                file.truncate(5 * 4096)
            else:
                file.seek(10 * 4096)
                file.write(b"\0" * 40 * 4096)
    with pytest.raises(StoreCorruptError, match="damaged") as error:
        open_store(tmp_path / "db")
    assert "move" in error.value.fix
    with pytest.raises(StoreCorruptError):
        open_store(tmp_path / "db")  # the failed open has let go of the directory


def test_file_left_by_a_killed_process_is_examined_and_opens(tmp_path: Path) -> None:
    script = (
        "import os, sys, numpy as np; from pathlib import Path; from flashnest.storage.lmdb import LmdbStore;"
        "s = LmdbStore(Path(sys.argv[1]), 8 << 20, words=16, clock_s=lambda: 5);"
        "s.insert_many(np.arange(1, 101, dtype=np.uint64), np.ones((100, 16), np.uint32)); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path / "db")], check=False).returncode == 9
    assert not (tmp_path / "db" / "clean").exists()
    store = open_store(tmp_path / "db")
    assert len(store) == 100
    store.close()


def test_examination_that_takes_too_long_is_a_clear_error(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    fill(store, 0, 5000)
    store.close()
    (tmp_path / "db" / "clean").unlink()
    with pytest.raises(StoreError, match="could not be examined") as error:
        open_store(tmp_path / "db", verify_timeout_s=0.001)
    assert not isinstance(error.value, StoreCorruptError)


def test_large_files_are_probed_through_lmdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashnest.storage.lmdb_files.AUDIT_BYTES", 0)
    store = open_store(tmp_path / "db")
    fill(store, 0, 5000)
    store.close()
    (tmp_path / "db" / "clean").unlink()
    store = open_store(tmp_path / "db")
    assert len(store) == 5000
    store.close()
    with (tmp_path / "db" / "data.mdb").open("r+b") as file:
        file.truncate(20 * 4096)
    with pytest.raises(StoreCorruptError, match="damaged"):
        open_store(tmp_path / "db")


def test_second_open_in_this_process_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    with pytest.raises(StoreError, match="already open in this process"):
        open_store(tmp_path / "db")
    store.close()
    open_store(tmp_path / "db").close()


def test_second_process_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    script = (
        "import sys; from pathlib import Path; from flashnest.storage.lmdb import LmdbStore;"
        "LmdbStore(Path(sys.argv[1]), 8 << 20, words=16, clock_s=lambda: 5)"
    )
    other = subprocess.run([sys.executable, "-c", script, str(tmp_path / "db")], capture_output=True, check=False)
    assert other.returncode != 0
    assert b"in use by another process" in other.stderr
    assert fill(store, 0, 10).all()
    store.close()


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


@pytest.mark.parametrize(("words", "owner", "name"), [(WORDS + 1, "", "words"), (WORDS, "other model", "owner")])
def test_file_of_another_setup_is_refused(tmp_path: Path, words: int, owner: str, name: str) -> None:
    open_store(tmp_path / "db").close()
    with pytest.raises(StoreError, match="another setup") as error:
        LmdbStore(tmp_path / "db", 8 * MIB, words=words, owner=owner, clock_s=lambda: 5)
    assert name in error.value.why


def test_foreign_lmdb_file_is_refused(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "db"), max_dbs=1, lib_version=0) as env:
        env.open_db(b"somebody")
    with pytest.raises(StoreError, match="another setup"):
        open_store(tmp_path / "db")


def test_file_of_an_older_layout_is_refused_and_left_alone(tmp_path: Path) -> None:
    open_store(tmp_path / "db").close()
    with lmdb.open(str(tmp_path / "db"), max_dbs=2, lib_version=0) as env:
        meta = env.open_db(b"meta")
        with env.begin(write=True, db=meta) as txn:
            txn.put(b"format", b"flashnest 1")
    before = (tmp_path / "db" / "data.mdb").read_bytes()
    with pytest.raises(StoreError, match="another setup") as error:
        open_store(tmp_path / "db")
    assert "'flashnest 1', this run needs 'flashnest 2'" in error.value.why
    assert (tmp_path / "db" / "data.mdb").read_bytes() == before


def test_value_of_another_length_or_key_is_damaged(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    fill(store, 0, 4)
    keys = spread(0, 4)
    names = split_keys(keys)
    with store._env.begin(write=True, db=store._db) as txn:
        values = [bytes(txn.get(name)) for name in names]
        txn.put(names[0], values[0][:-4])
        txn.put(names[1], values[1] + b"more")
        txn.put(names[2], values[3])
    found = Found.allocate(4, WORDS)
    store.lookup_many(keys, found)
    assert found.state.tolist() == [State.MISS] * 3 + [State.HIT]
    assert store.corrupt == 3
    keys, rows, position = store.scan_from(0, 10)
    assert len(keys) == 1
    assert same_chains(rows, keys)
    assert position == 0
    store.close()


def test_any_turned_bit_is_seen() -> None:
    keys = spread(3, 1)
    value = pack_values(keys, rows_of(keys))[0]
    assert unpack_values(keys, [value], WORDS)[2] == 0
    turned = []
    for bit in range(8 * len(value)):
        damaged = bytearray(value)
        damaged[bit // 8] ^= 1 << bit % 8
        turned.append(bytes(damaged))
    _, whole, count = unpack_values(np.repeat(keys, len(turned)), turned, WORDS)
    assert count == len(turned) == 8 * 76
    assert not whole.any()
    others = keys ^ (np.uint64(1) << np.arange(64, dtype=np.uint64))
    assert unpack_values(others, [value] * 64, WORDS)[2] == 64, "a record under another key"


def test_walk_from_a_position_brings_every_record_once_in_key_order(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    assert store.scan_from(0, 10)[0].tolist() == []
    fill(store, 0, 300)
    seen, position = [], 0
    while True:
        keys, rows, position = store.scan_from(position, 70)
        assert same_chains(rows, keys)
        seen += keys.tolist()
        if position == 0:
            break
        store.remove_many(keys[-1:])  # the walk goes on behind a record that is gone
    assert seen == sorted(spread(0, 300).tolist())
    store.close()


def test_fill_goes_by_records_and_falls_with_them(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db", 2 * MIB)
    fills = []
    for start in range(0, 40_000, 500):
        if not fill(store, start, 500).all():
            break
        fills.append(store.stats().fill)
    assert store.stats().fill == 1.0
    assert fills == sorted(fills)
    assert fills[len(fills) // 2] == pytest.approx(0.5, abs=0.1)
    held = np.concatenate(list(store.scan_keys()))
    store.remove_many(held[::2])
    assert store.stats().fill == pytest.approx(0.5, abs=0.05), "though the file keeps its size"
    assert store.stats().bytes_used > 1.5 * MIB
    store.close()


def test_unusable_directory_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot use"):
        open_store(tmp_path / "file" / "db")


def test_file_format_is_lmdb_0_9_without_readahead_or_writemap(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    assert store._env.lib_version()[:2] == (0, 9)
    flags = store._env.flags()
    assert not flags["readahead"]
    assert flags["sync"]
    assert flags["metasync"]
    assert not flags["writemap"]
    store.close()


def _bytes_written() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("write_bytes")))


def test_hits_write_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    keys = spread(0, 1000)
    store.insert_many(keys, rows_of(keys))
    data = tmp_path / "db" / "data.mdb"
    content, mtime, written = data.read_bytes(), data.stat().st_mtime_ns, _bytes_written()
    found = Found.allocate(1000, WORDS)
    one = np.ones(1000, np.uint32)
    for _ in range(30):
        store.lookup_many(keys, found)
        store.feedback_many(keys, one, one)
        assert (found.state == State.HIT).all()
    assert _bytes_written() == written
    assert data.stat().st_mtime_ns == mtime
    assert data.read_bytes() == content
    store.close()


def test_lookups_between_two_writes_do_not_touch_the_lock_file(tmp_path: Path) -> None:
    """A transaction that begins dirties its page, which the kernel writes back sooner or later: here at once."""
    store = open_store(tmp_path / "db")
    found = Found.allocate(100, WORDS)
    for start in (0, 100):
        fill(store, start, 100)
        store.lookup_many(spread(start, 100), found)
        lock = os.open(tmp_path / "db" / "lock.mdb", os.O_RDWR)
        os.fsync(lock)
        written = _bytes_written()
        for _ in range(5):
            store.lookup_many(spread(start, 100), found)
            assert (found.state == State.HIT).all()
            os.fsync(lock)
        os.close(lock)
        assert _bytes_written() == written
    store.close()


def test_failed_commit_is_reported_and_never_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path / "db")
    fill(store, 0, 10)
    calls = []

    def fail(*args: object) -> None:
        calls.append(args)
        raise lmdb.Error("mdb_txn_commit: Input/output error")

    monkeypatch.setattr(store._writer, "_commit", fail)
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot be written"):
            fill(store, 100, 10)
    assert len(calls) == 1
    assert store.contains_many(spread(0, 10)).all()
    store.close()
    assert not (tmp_path / "db" / "clean").exists()


def test_zero_keys_in_a_write_batch_are_refused_alone(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    keys = keys_of(3, 0, 4)
    assert store.write_many(keys, rows_of(keys), keys_of(9)).tolist() == [True, False, True]
    assert store.stats().rejected == 1
    store.close()
