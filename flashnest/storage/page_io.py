"""Whole pages of one file, by number, in batches: through io_uring, or preadv and a few threads. Knows no record.

Which of the two is decided once, by a probe, and said (`reader`, `why`). Files are opened with O_DIRECT, so that
reading leaves nothing in the page cache (facts F16); where a file system refuses that, reads go through the cache and
are dropped from it afterwards, and `direct` says so.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, Protocol

import numpy as np

from flashnest.jit import kernel
from flashnest.record import BoolArray, I32Array, I64Array, U32Array, U64Array
from flashnest.storage import uring

PAGE_BYTES: Final = 4096
MAX_RUN_PAGES: Final = 64
"""Neighbouring pages are moved together, up to this many: 256 KiB, the largest I/O that common drives take whole."""
DEFAULT_DEPTH: Final = 64
MAX_THREADS: Final = min(8, 2 * (os.cpu_count() or 1))
"""For the fallback. Measured here on 2 cores, 18 pages, us: 4 threads 621, 8 threads 686, 16 threads 796."""

Io = Literal["auto", "io_uring", "threads"]


class PageMemory:
    """Page-aligned memory of its own, as O_DIRECT takes it: zeros at first, seen as bytes and as words."""

    def __init__(self, pages: int) -> None:
        self.pages = np.frombuffer(mmap.mmap(-1, pages * PAGE_BYTES), np.uint8).reshape(pages, PAGE_BYTES)
        """uint8 (pages, 4096)."""
        self.words64: U64Array = self.pages.view(np.uint64)
        self.words32: U32Array = self.pages.view(np.uint32)
        self.address = int(self.pages.ctypes.data)
        self.view = memoryview(self.pages.reshape(-1).data)


class PageReader(Protocol):
    """Moves runs of pages between a file and memory, many at once. One thread at a time."""

    name: str

    def move(
        self, fd: int, offsets: I64Array, memory: PageMemory, places: I64Array, lengths: I64Array, *, write: bool
    ) -> I32Array:
        """Move run i between file byte `offsets[i]` and memory byte `places[i]`; returns bytes moved or -errno, (n,).

        offsets, places, lengths int64 (n,), multiples of the page.
        """

    def close(self) -> None:
        """Give threads and kernel memory back."""


class RingReader:
    """A `PageReader` over io_uring; a single run goes by preadv.

    Measured here, us by preadv and by the ring: 1 page 75 and 97, 2 pages 118 and 106, 3 pages 160 and 109.
    """

    name = "io_uring"

    def __init__(self, depth: int) -> None:
        """Raises OSError where the kernel refuses a ring."""
        self.ring = uring.Ring(depth)

    def move(
        self, fd: int, offsets: I64Array, memory: PageMemory, places: I64Array, lengths: I64Array, *, write: bool
    ) -> I32Array:
        """See `PageReader.move`."""
        if len(offsets) == 1:
            moved = _move_one(fd, memory, int(offsets[0]), int(places[0]), int(lengths[0]), write=write)
            return np.array((moved,), np.int32)
        opcode = uring.WRITE if write else uring.READ
        return self.ring.transfer(opcode, fd, offsets, memory.address, places, lengths)

    def close(self) -> None:
        """See `PageReader.close`."""
        self.ring.close()


class ThreadReader:
    """A `PageReader` over preadv and pwritev: the caller and up to `threads - 1` helpers take runs in turn."""

    name = "threads"

    def __init__(self, threads: int) -> None:
        """Start no thread yet: the first batch of more than two runs does."""
        self._helpers: list[threading.Thread] = []
        self._most_helpers = threads - 1
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def move(
        self, fd: int, offsets: I64Array, memory: PageMemory, places: I64Array, lengths: I64Array, *, write: bool
    ) -> I32Array:
        """See `PageReader.move`."""
        runs = list(zip(offsets.tolist(), places.tolist(), lengths.tolist(), strict=True))
        results = np.zeros(len(runs), np.int32)
        turn = itertools.count()  # next() is atomic: each run is taken once

        def work() -> None:
            while (i := next(turn)) < len(runs):
                results[i] = _move_one(fd, memory, *runs[i], write=write)

        helpers = min(self._most_helpers, (len(runs) - 1) // 2)  # waking one costs about as much as a read
        self._start(helpers)
        done = threading.Semaphore(0)

        def help_out() -> None:
            try:
                work()
            finally:
                done.release()

        for _ in range(helpers):
            self._jobs.put(help_out)
        work()
        for _ in range(helpers):
            done.acquire()
        return results

    def _start(self, helpers: int) -> None:
        while len(self._helpers) < helpers:
            thread = threading.Thread(target=self._run, name="flashnest-page-reads", daemon=True)
            self._helpers.append(thread)
            thread.start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def close(self) -> None:
        """See `PageReader.close`."""
        for _ in self._helpers:
            self._jobs.put(None)
        for thread in self._helpers:
            thread.join()
        self._helpers.clear()


def _move_one(fd: int, memory: PageMemory, offset: int, place: int, length: int, *, write: bool) -> int:
    part = memory.view[place : place + length]
    try:
        return os.pwritev(fd, [part], offset) if write else os.preadv(fd, [part], offset)
    except OSError as error:
        return -(error.errno or errno.EIO)


def choose_reader(io: Io, depth: int) -> tuple[PageReader, str]:
    """Return a reader and why it is this one. Raises OSError where `io_uring` is asked for and does not work here."""
    if io == "threads":
        return ThreadReader(min(depth, MAX_THREADS)), "threads were asked for"
    why_not = uring.probe()
    if not why_not:
        try:
            ring = RingReader(depth)
        except OSError as error:  # the probe's own ring is smaller
            why_not = str(error)
        else:
            return ring, "io_uring was asked for" if io == "io_uring" else "a test read went through io_uring"
    if io == "io_uring":
        raise OSError(errno.ENOTSUP, why_not)
    return ThreadReader(min(depth, MAX_THREADS)), why_not


@kernel
def _runs(
    pages: I64Array, at: I64Array, offsets: I64Array, places: I64Array, lengths: I64Array, most_bytes: int
) -> int:
    """Join pages that are neighbours in the file and in memory; returns the number of runs."""
    runs = 0
    for i in range(pages.shape[0]):
        joins = runs > 0 and pages[i] == pages[i - 1] + 1 and at[i] == at[i - 1] + 1
        if joins and lengths[runs - 1] < most_bytes:
            lengths[runs - 1] += PAGE_BYTES
        else:
            offsets[runs], places[runs], lengths[runs] = pages[i] * PAGE_BYTES, at[i] * PAGE_BYTES, PAGE_BYTES
            runs += 1
    return runs


@kernel
def _first_short(moved: I32Array, lengths: I64Array) -> int:
    """Return the first run that was not moved whole, or the number of runs."""
    for i in range(moved.shape[0]):
        if moved[i] != lengths[i]:
            return i
    return len(moved)


class PageFile:
    """One file of 4 KiB pages, open for reading and writing. One thread at a time; `close` ends its reader."""

    def __init__(self, path: Path, *, io: Io = "auto", depth: int = DEFAULT_DEPTH, direct: bool = True) -> None:
        """Open an existing file. `direct` False does not even ask for O_DIRECT. Raises OSError."""
        self._reader, self.why = choose_reader(io, depth)
        self.failed_reads = 0
        try:
            self._fd, self.direct = _open(path, direct)
        except BaseException:
            self._reader.close()
            raise

    @property
    def reader(self) -> str:
        """`io_uring` or `threads`."""
        return self._reader.name

    def read_pages(self, pages: I64Array, memory: PageMemory, at: I64Array) -> BoolArray | None:
        """Read pages, numbered from 0, int64 (n,) ascending, into page `at[i]` of memory; None where all came.

        What came short or failed is tried once more page by page. Pages that do not come then are counted and False in
        the answer, (n,).
        """
        offsets, places, lengths = self._runs_of(pages, at)
        moved = self._reader.move(self._fd, offsets, memory, places, lengths, write=False)
        came = self._read_again(pages, memory, at) if _first_short(moved, lengths) < len(moved) else None
        if not self.direct:
            for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
                os.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_DONTNEED)
        return came

    def _read_again(self, pages: I64Array, memory: PageMemory, at: I64Array) -> BoolArray:
        came = np.zeros(len(pages), np.bool_)
        for i, (page, place) in enumerate(zip(pages.tolist(), at.tolist(), strict=True)):
            moved = _move_one(self._fd, memory, page * PAGE_BYTES, place * PAGE_BYTES, PAGE_BYTES, write=False)
            came[i] = moved == PAGE_BYTES
        self.failed_reads += int(len(pages) - np.count_nonzero(came))
        return came

    def write_pages(self, pages: I64Array, memory: PageMemory) -> None:
        """Write the first n pages of memory as `pages`, int64 (n,) ascending. Raises OSError where any fails.

        On disk for certain only after `sync`.
        """
        offsets, places, lengths = self._runs_of(pages, np.arange(len(pages)))
        moved = self._reader.move(self._fd, offsets, memory, places, lengths, write=True)
        bad = _first_short(moved, lengths)
        if bad < len(moved):
            code = -int(moved[bad]) if moved[bad] < 0 else errno.EIO
            raise OSError(code, f"page {offsets[bad] // PAGE_BYTES} was not written: {os.strerror(code)}")

    def _runs_of(self, pages: I64Array, at: I64Array) -> tuple[I64Array, I64Array, I64Array]:
        out = np.empty((3, len(pages)), np.int64)
        runs = _runs(pages, at, out[0], out[1], out[2], MAX_RUN_PAGES * PAGE_BYTES)
        return out[0, :runs], out[1, :runs], out[2, :runs]

    def next_data(self, page: int) -> int | None:
        """Return the first page from `page` on that may hold anything: pages never written are holes. None: none."""
        try:
            return os.lseek(self._fd, page * PAGE_BYTES, os.SEEK_DATA) // PAGE_BYTES
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return None

    def sync(self) -> None:
        """Make what was written durable. Raises OSError; then it must not be tried again on this file."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file and end the reader. A second call does nothing."""
        if self._fd >= 0:
            self._reader.close()
            os.close(self._fd)
            self._fd = -1


def _open(path: Path, direct: bool) -> tuple[int, bool]:
    """Open with O_DIRECT where it works: some file systems refuse at open, some at the first read (open(2), NOTES)."""
    flags = os.O_RDWR | os.O_CLOEXEC
    if direct:
        try:
            fd = os.open(path, flags | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        else:
            if _move_one(fd, PageMemory(1), 0, 0, PAGE_BYTES, write=False) >= 0:
                return fd, True
            os.close(fd)
    fd = os.open(path, flags)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    return fd, False
