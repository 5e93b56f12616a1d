"""What the slots store keeps when its process is killed, a page is half written, or bits turn: never a wrong row."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from records import WORDS, rows_of, same_chains, spread

from flashnest.errors import StoreCorruptError
from flashnest.storage import segments
from flashnest.storage.page_io import PAGE_BYTES, PageFile, PageMemory
from flashnest.storage.slots import SlotsStore
from flashnest.storage.slots_page import slots_for
from flashnest.storage.store import Found, State

BATCH = 120
SLOTS = slots_for(WORDS)


def open_store(path: Path) -> SlotsStore:
    return SlotsStore(path, 1 << 20, words=WORDS, clock_s=lambda: 5, log_bytes=400 * 84)


class _Killer:
    """Counts calls that change the disk and kills the process at the `fatal`-th.

    Before it; or with `torn`, where only writes count, in the middle of it.
    """

    def __init__(self, fatal: int, torn: bool) -> None:
        self.left, self.torn = fatal, torn

    def at(self, half: Callable[[], object] | None = None) -> None:
        self.left -= half is not None or not self.torn
        if self.left == 0:
            if self.torn and half is not None:
                half()
            os.kill(os.getpid(), signal.SIGKILL)

    def arm(self) -> None:
        pwrite, sync, unlink, write_pages = os.pwrite, os.fdatasync, Path.unlink, PageFile.write_pages

        def counted_pwrite(fd: int, data: bytes, at: int) -> int:
            self.at(lambda: pwrite(fd, data[: len(data) // 2], at))
            return pwrite(fd, data, at)

        def counted_sync(fd: int) -> None:
            self.at()
            sync(fd)

        def counted_unlink(path: Path, missing_ok: bool = False) -> None:
            self.at()
            unlink(path, missing_ok)

        def counted_pages(file: PageFile, pages: np.ndarray, memory: PageMemory) -> None:
            self.at(lambda: self.half(file, pages, memory))
            write_pages(file, pages, memory)

        os.pwrite, os.fdatasync, Path.unlink = counted_pwrite, counted_sync, counted_unlink
        PageFile.write_pages = counted_pages

    @staticmethod
    def half(file: PageFile, pages: np.ndarray, memory: PageMemory) -> None:
        """Write the first pages whole and of the next only its first sector but one, as a power cut may."""
        middle = len(pages) // 2
        fd = os.open(os.readlink(f"/proc/self/fd/{file._fd}"), os.O_WRONLY)
        for i in range(middle):
            os.pwritev(fd, [memory.pages[i].data], int(pages[i]) * PAGE_BYTES)
        os.pwritev(fd, [memory.pages[middle, :1024].data], int(pages[middle]) * PAGE_BYTES)
        os.fsync(fd)


def write_until_killed(path: Path, fatal: int, torn: bool, acknowledged: int) -> None:
    """Run in a child: write batch after batch, saying through the pipe how many are done."""
    _Killer(fatal, torn).arm()
    store = open_store(path)
    for number in range(30):
        keys = spread(number * BATCH, BATCH)
        store.write_many(keys, rows_of(keys), spread((number - 3) * BATCH, 20) if number >= 3 else keys[:0])
        os.write(acknowledged, b".")


def killed(path: Path, fatal: int, torn: bool) -> int:
    """Return how many batches a child acknowledged before it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write_until_killed(path, fatal, torn, writing)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        acknowledged = len(pipe.read())
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    assert (status == 0) == (acknowledged == 30)
    return acknowledged


def check(path: Path, acknowledged: int, torn: bool) -> int:
    """Open what the child left and compare; returns the number of damaged buckets and batches."""
    store = open_store(path)
    keys = spread(0, 30 * BATCH)
    found = Found.allocate(len(keys), WORDS)
    store.lookup_many(keys, found)
    hit = found.state == State.HIT
    assert same_chains(found.rows[hit], keys[hit])
    there = hit.reshape(30, BATCH)
    wanted = np.zeros((30, BATCH), np.bool_)
    wanted[:acknowledged] = True
    wanted[: max(0, acknowledged - 2), :20] = False  # removed, the last of these perhaps
    assert not there[: max(0, acknowledged - 3), :20].any()
    lost = int((wanted & ~there)[:acknowledged].sum())
    assert lost <= (SLOTS if torn and store.corrupt else 0)
    assert len(store) == hit.sum() == sum(len(part) for part in store.scan_keys())
    if acknowledged < 29:
        assert there[acknowledged].all() or not there[acknowledged].any()  # the batch under way: whole or not at all
        assert not there[acknowledged + 1 :].any()
    fresh = spread(100_000, 50)
    assert store.insert_many(fresh, rows_of(fresh)).all()
    store.merge()
    assert store.contains_many(fresh).all()
    corrupt = store.corrupt
    store.close()
    return corrupt


@pytest.mark.parametrize("torn", [False, True])
def test_killed_process_loses_no_acknowledged_record(tmp_path: Path, torn: bool) -> None:
    """Kill at writes, syncs and unlinks all through the run; a page torn in the middle may cost its own bucket."""
    acknowledged, damaged, fatal = 0, 0, 0
    while acknowledged < 30:
        fatal += 5 if torn else 13
        acknowledged = killed(tmp_path / str(fatal), fatal, torn)
        damaged += check(tmp_path / str(fatal), acknowledged, torn)
    assert fatal > 30
    assert bool(damaged) == torn


def test_turned_bits_anywhere_never_serve_a_wrong_row(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    keys = spread(0, 900)
    for start in range(0, 900, 150):
        store.insert_many(keys[start : start + 150], rows_of(keys[start : start + 150]))
    assert store.merge_bytes
    assert len(store._log)
    store.close()
    files = {path: path.read_bytes() for path in (tmp_path / "db").rglob("*") if path.is_file() and path.stat().st_size}
    assert len(files) == 3
    rng = np.random.default_rng(7)
    refused = noticed = 0
    for path, content in files.items():
        for _ in range(15):
            broken = bytearray(content)
            for at in rng.integers(0, len(content), 3):
                broken[at] ^= 1 << int(rng.integers(0, 8))
            if path.suffix == ".dat":
                broken[int(rng.integers(0, 20))] ^= int(rng.random() < 0.2)
            path.write_bytes(broken)
            try:
                store = open_store(tmp_path / "db")
            except StoreCorruptError:
                refused += 1
            else:
                found = Found.allocate(900, WORDS)
                store.lookup_many(keys, found)
                hit = found.state == State.HIT
                assert same_chains(found.rows[hit], keys[hit])
                assert hit.all() or store.corrupt
                assert len(store) == hit.sum()
                noticed += store.corrupt > 0
                store.close()
            for other, whole in files.items():
                other.write_bytes(whole)
    assert refused > 0
    assert noticed > 12


def test_segment_cut_short_keeps_the_batches_before(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    for start in (0, 100, 200):
        store.insert_many(spread(start, 100), rows_of(spread(start, 100)))
    store.close()
    segment = next((tmp_path / "db" / "segments").iterdir())
    size = segments.batch_bytes(100, 0, WORDS)
    assert segment.stat().st_size == 3 * size
    with segment.open("r+b") as file:
        file.truncate(3 * size - 7)
    store = open_store(tmp_path / "db")
    assert store.contains_many(spread(0, 300)).tolist() == [True] * 200 + [False] * 100
    assert (len(store), store.corrupt) == (200, 1)
    store.close()


def test_damaged_batch_in_the_middle_is_dropped_alone(tmp_path: Path) -> None:
    store = open_store(tmp_path / "db")
    for start in (0, 100, 200):
        store.insert_many(spread(start, 100), rows_of(spread(start, 100)))
    store.close()
    segment = next((tmp_path / "db" / "segments").iterdir())
    content = bytearray(segment.read_bytes())
    content[segments.batch_bytes(100, 0, WORDS) + 16] ^= 1  # the second batch's length
    segment.write_bytes(content)
    store = open_store(tmp_path / "db")
    assert store.contains_many(spread(0, 300)).tolist() == [True] * 100 + [False] * 100 + [True] * 100
    assert (len(store), store.corrupt) == (200, 1)
    store.close()
