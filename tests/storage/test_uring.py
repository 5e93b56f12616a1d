"""The io_uring ring and the page reader over it: right bytes, each result checked, depth kept, fallbacks said."""

from __future__ import annotations

import errno
import os
import resource
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from flashnest.storage import page_io, uring
from flashnest.storage.page_io import PAGE_BYTES, PageFile, PageMemory
from flashnest.storage.uring import READ, WRITE, Ring

PAGES = 300


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file of `PAGES` pages; page i starts with i as uint32, four of them."""
    content = np.random.default_rng(1).integers(0, 1 << 32, (PAGES, PAGE_BYTES // 4), dtype=np.uint32)
    content[:, :4] = np.arange(PAGES, dtype=np.uint32)[:, None]
    path = tmp_path / "data"
    path.write_bytes(content.tobytes())
    return path


def transfers(memory: np.ndarray, pages: list[int]) -> tuple[np.ndarray, int, np.ndarray, np.ndarray]:
    """Return offsets, address, places and lengths that read `pages` into `memory` in turn."""
    places = np.arange(len(pages)) * PAGE_BYTES
    return np.array(pages, np.int64) * PAGE_BYTES, memory.ctypes.data, places, np.full(len(pages), PAGE_BYTES)


def aligned_pages(pages: int) -> np.ndarray:
    return PageMemory(pages).pages


def pipe_read(target: np.ndarray) -> tuple[np.ndarray, int, np.ndarray, np.ndarray]:
    return np.zeros(1, np.int64), target.ctypes.data, np.zeros(1, np.int64), np.array([8])


@pytest.mark.parametrize("fences", [False, True])
@pytest.mark.parametrize("depth", [1, 3, 64])
def test_batch_of_any_size_keeps_within_the_depth(data: Path, depth: int, fences: bool) -> None:
    ring, memory = Ring(depth, fences=fences), aligned_pages(200)
    fd = os.open(data, os.O_RDONLY)
    rng = np.random.default_rng(2)
    for count in (0, 1, 2, 64, 65, 200):
        pages = rng.integers(0, PAGES, count).tolist()
        assert (ring.transfer(READ, fd, *transfers(memory, pages)) == PAGE_BYTES).all()
        assert memory.view(np.uint32)[:count, 0].tolist() == pages
    assert ring.most_in_flight == depth
    os.close(fd)
    ring.close()
    ring.close()


def test_each_result_is_its_own(data: Path) -> None:
    """A short read at the end of the file, one past it, and bad memory, among good ones."""
    with data.open("ab") as file:
        file.write(b"x" * 100)
    ring, memory = Ring(8), aligned_pages(5)
    fd = os.open(data, os.O_RDONLY)
    offsets, address, places, lengths = transfers(memory, [3, PAGES, PAGES + 7, 5, 6])
    places[3] = 4096 - address
    batch = offsets, address, places, lengths
    results = ring.transfer(READ, fd, *batch)
    assert results.tolist() == [PAGE_BYTES, 100, 0, -errno.EFAULT, PAGE_BYTES]
    os.close(fd)
    assert (ring.transfer(READ, fd, *batch) == -errno.EBADF).all()
    ring.close()


def test_writes_go_through(data: Path) -> None:
    ring, memory = Ring(4), aligned_pages(10)
    memory[:] = np.arange(10, dtype=np.uint8)[:, None]
    fd = os.open(data, os.O_RDWR)
    assert (ring.transfer(WRITE, fd, *transfers(memory, list(range(20, 30)))) == PAGE_BYTES).all()
    os.close(fd)
    ring.close()
    written = np.frombuffer(data.read_bytes(), np.uint8).reshape(PAGES, PAGE_BYTES)
    assert (written[20:30] == memory).all()


def test_interrupted_wait_neither_loses_nor_keeps_a_transfer() -> None:
    """A signal handler that raises while a read of a pipe waits: the ring ends it before the error goes on."""
    reading, writing = os.pipe()
    ring, target = Ring(4), np.zeros(8, np.uint8)

    class InterruptedWaitError(Exception):
        pass

    def interrupt(*_: object) -> None:
        os.write(writing, b"12345678")
        raise InterruptedWaitError

    old = signal.signal(signal.SIGUSR1, interrupt)
    main = threading.main_thread().ident
    assert main is not None
    batch = pipe_read(target)

    def poke_when_begun() -> None:
        while not ring.most_in_flight:
            pass
        signal.pthread_kill(main, signal.SIGUSR1)

    poke = threading.Thread(target=poke_when_begun)
    try:
        poke.start()
        with pytest.raises(InterruptedWaitError):
            ring.transfer(READ, reading, *batch)
        assert target.tobytes() in (b"12345678", bytes(8))
        os.write(writing, b"abcdefgh")
        target[:] = 0
        assert ring.transfer(READ, reading, *batch).tolist() == [8]
        assert target.all()
    finally:
        poke.join()
        signal.signal(signal.SIGUSR1, old)
        os.close(reading)
        os.close(writing)
        ring.close()


def test_error_before_the_kernel_took_an_entry_takes_it_back(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring, memory = Ring(4), aligned_pages(4)
    fd = os.open(data, os.O_RDONLY)

    def fail(*_: int) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ring, "_enter", fail)
        with pytest.raises(KeyboardInterrupt):
            ring.transfer(READ, fd, *transfers(memory, [1, 2, 3, 4]))
    assert (ring.transfer(READ, fd, *transfers(memory[3:], [9])) == PAGE_BYTES).all()
    assert not memory[:3].any()
    assert memory.view(np.uint32)[3, 0] == 9
    os.close(fd)
    ring.close()


def test_other_threads_run_while_the_ring_waits() -> None:
    """The read ends only because another thread writes into the pipe meanwhile: the GIL is free."""
    reading, writing = os.pipe()
    ring, target = Ring(1), np.zeros(8, np.uint8)
    batch = pipe_read(target)
    writer = threading.Thread(target=os.write, args=(writing, b"12345678"))
    ring_waits = threading.Thread(target=ring.transfer, args=(READ, reading, *batch))
    ring_waits.start()
    writer.start()
    ring_waits.join()
    writer.join()
    assert target.tobytes() == b"12345678"
    os.close(reading)
    os.close(writing)
    ring.close()


@pytest.mark.parametrize("depth", [0, 4097])
def test_depth_out_of_range_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="depth"):
        Ring(depth)


@pytest.mark.parametrize(("code", "words"), [(errno.EPERM, "not permitted"), (errno.ENOSYS, "no io_uring")])
def test_probe_says_why_there_is_no_ring(monkeypatch: pytest.MonkeyPatch, code: int, words: str) -> None:
    assert uring.probe() == ""
    monkeypatch.setattr(uring, "_syscall", lambda *_: -code)
    assert words in uring.probe()
    reader, why = page_io.choose_reader("auto", 8)
    assert reader.name == "threads"
    assert words in why
    with pytest.raises(OSError, match=words):
        page_io.choose_reader("io_uring", 8)


def test_probe_knows_no_memory_order_of_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "ia64")
    assert "ia64" in uring.probe()


def test_ring_gives_its_descriptor_back() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        Ring(4).close()
    assert len(os.listdir("/proc/self/fd")) == before
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
        with pytest.raises(OSError, match="Too many open files"):
            Ring(4)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("io", ["io_uring", "threads"])
@pytest.mark.parametrize("direct", [True, False])
def test_pages_come_where_they_belong(data: Path, io: page_io.Io, direct: bool) -> None:
    file, memory = PageFile(data, io=io, direct=direct), PageMemory(PAGES)
    assert file.reader == io
    assert file.direct == direct
    rng = np.random.default_rng(3)
    for count in (0, 1, 2, 5, 40, PAGES):
        pages = np.sort(rng.choice(PAGES, count, replace=False))
        at = np.sort(rng.choice(PAGES, count, replace=False))
        memory.pages[:] = 0
        assert file.read_pages(pages, memory, at) is None
        assert memory.words32[at, 3].tolist() == pages.tolist()
        assert np.count_nonzero(memory.pages.any(axis=1)) == count
    file.close()
    file.close()


@pytest.mark.parametrize("io", ["io_uring", "threads"])
def test_pages_written_are_there_and_others_are_not_touched(data: Path, io: page_io.Io) -> None:
    before = np.frombuffer(data.read_bytes(), np.uint8).reshape(PAGES, PAGE_BYTES).copy()
    file, memory = PageFile(data, io=io), PageMemory(8)
    memory.pages[:] = 7
    pages = np.array([0, 1, 2, 50, 52, 298, 299])
    file.write_pages(pages, memory)
    file.sync()
    before[pages] = 7
    assert (np.frombuffer(data.read_bytes(), np.uint8).reshape(PAGES, PAGE_BYTES) == before).all()
    file.close()


@pytest.mark.parametrize("io", ["io_uring", "threads"])
def test_page_that_cannot_be_read_does_not_take_its_neighbours_along(data: Path, io: page_io.Io) -> None:
    file, memory = PageFile(data, io=io), PageMemory(6)
    pages = np.array([5, PAGES - 2, PAGES - 1, PAGES, PAGES + 1, PAGES + 9])  # one run crosses the end of the file
    came = file.read_pages(pages, memory, np.arange(6))
    assert came is not None
    assert came.tolist() == [True, True, True, False, False, False]
    assert memory.words32[:3, 0].tolist() == [5, PAGES - 2, PAGES - 1]
    assert file.failed_reads == 3
    file.close()


def test_failed_write_is_an_error(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = PageFile(data, io="io_uring")
    monkeypatch.setattr(Ring, "transfer", lambda *_: np.array([PAGE_BYTES, -errno.EIO], np.int32))
    with pytest.raises(OSError, match="page 9 was not written: Input/output error"):
        file.write_pages(np.array([2, 9]), PageMemory(2))
    monkeypatch.setattr(Ring, "transfer", lambda *_: np.array([PAGE_BYTES, 512], np.int32))
    with pytest.raises(OSError, match="page 9"):
        file.write_pages(np.array([2, 9]), PageMemory(2))
    file.close()


def test_file_system_without_o_direct_is_read_through_the_cache_and_left_clean(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, dropped = os.open, []

    def refuse(path: Path, flags: int, *mode: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return opened(path, flags, *mode)

    monkeypatch.setattr("os.open", refuse)
    monkeypatch.setattr("os.posix_fadvise", lambda *advice: dropped.append(advice[1:]))
    file, memory = PageFile(data, io="threads"), PageMemory(3)
    assert not file.direct
    assert file.read_pages(np.array([3, 4, 9]), memory, np.arange(3)) is None
    assert dropped == [
        (0, 0, os.POSIX_FADV_RANDOM),
        (3 * PAGE_BYTES, 2 * PAGE_BYTES, os.POSIX_FADV_DONTNEED),
        (9 * PAGE_BYTES, PAGE_BYTES, os.POSIX_FADV_DONTNEED),
    ]
    file.close()


def test_threads_end_with_the_reader(data: Path) -> None:
    file, memory = PageFile(data, io="threads"), PageMemory(64)
    before = threading.active_count()
    file.read_pages(np.arange(0, 128, 2), memory, np.arange(64))
    assert threading.active_count() > before
    file.close()
    assert threading.active_count() == before


def test_missing_file_leaves_nothing_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        PageFile(tmp_path / "none", io="io_uring")
    assert len(os.listdir("/proc/self/fd")) == before
