"""The slots store: merging, eviction, scans, and hits that write nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from contract import StoreContract, clock  # noqa: F401
from records import WORDS, keys_of, rows_of, same_chains, spread
from slots_setup import MIB, SLOTS, crowd, fill, look, open_store

from flashnest.record import CHAIN, HITS, INSERTED, LAST_ACCESS, REFS
from flashnest.storage.cold import ColdOptions, ColdTier
from flashnest.storage.store import Found, State


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
    assert (found.rows[:, [HITS, INSERTED, LAST_ACCESS, REFS]] == [4, 77, 78, 2]).all()
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


def test_scan_from_passes_over_what_was_never_filled(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db", 16 * MIB)
    keys = np.append(crowd(3), crowd(2, (1 << 64) - 2))
    store.insert_many(keys, rows_of(keys))
    store.merge()
    first, _, position = store.scan_from(0, 1)
    last, _, end = store.scan_from(position, 1)
    assert (first.tolist(), last.tolist(), end) == (keys[:3].tolist(), keys[3:].tolist(), 0)
    assert store.stats().bytes_used < 64 << 10  # the file is sparse
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


def test_cold_tier_reads_and_writes_through_slots(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db", log_bytes=200 * 84)
    options = ColdOptions(threaded=False, flush_records=100)
    tier = ColdTier(store, words=WORDS, clock_s=lambda: 5, options=options, clock=lambda: 0.0)
    keys = spread(0, 400)
    for start in range(0, 400, 100):
        assert tier.insert_many(keys[start : start + 100], rows_of(keys[start : start + 100])).all()
        tier.flush()
    assert len(store) == 400
    assert store.merge_bytes
    assert tier.ask(keys[::8], np.arange(50)).all()
    tier.submit()
    tier.pump()
    answers = tier.drain()
    assert answers.hit.all()
    assert same_chains(answers.rows, keys[::8][answers.tickets])
    tier.close()
