"""One io_uring, driven through ctypes and numpy: batches of reads or writes, one system call a batch.

PyPI's bindings take no page-aligned buffers (`research/tiering.md` 4), so the ring is our own. Its memory is mapped and
seen as numpy arrays, its entries are filled and reaped by two kernels. It never opens a file, never allocates pages,
never leaves a transfer under way when a call returns, and has no state between calls.

Memory order (liburing's rules, `io_uring(7)`): without SQPOLL the kernel reads our entries inside our own system call,
so program order is enough on every machine. Completions may be posted by another CPU: their tail has to be loaded
before they are. x86 keeps loads in order; elsewhere `membarrier(2)`, a system call that is a full barrier for its
caller (Linux 4.14), stands between the two.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import sys
from typing import Final

import numpy as np

from flashnest.jit import kernel
from flashnest.record import I32Array, I64Array, U32Array, U64Array

READ: Final = 22
WRITE: Final = 23
"""IORING_OP_READ and IORING_OP_WRITE (Linux 5.6)."""

_SETUP, _ENTER = 425, 426  # the same numbers on every architecture
_OFF_SQ_RING, _OFF_SQES = 0, 0x10000000
_FEAT_SINGLE_MMAP, _FEAT_NODROP = 1, 2
_GETEVENTS = 1
_MEMBARRIER: Final = {"aarch64": 283, "riscv64": 283, "ppc64le": 365, "x86_64": 324}
_MEMBARRIER_REGISTER, _MEMBARRIER_NOW = 16, 8  # (REGISTER_)PRIVATE_EXPEDITED
_PARAMS_BYTES: Final = 120
_MAX_DEPTH: Final = 4096
_CANCELLED: Final = -errno.ECANCELED

_libc_syscall = ctypes.CDLL(None, use_errno=True).syscall
_libc_syscall.restype, _libc_syscall.argtypes = ctypes.c_long, [ctypes.c_long] * 7


def _syscall(number: int, a: int, b: int, c: int = 0, d: int = 0) -> int:
    """Make a system call, the GIL released meanwhile; returns its result, or -errno."""
    result = int(_libc_syscall(number, a, b, c, d, 0, 0))
    return -ctypes.get_errno() if result < 0 else result


@kernel
def _fill(
    sqes: U64Array, tail: int, fd_and_op: np.uint64, offsets: I64Array, address: int, places: I64Array,
    lengths: I64Array, first: int, count: int, results: I32Array,
) -> None:  # fmt: skip
    """Write `count` submission entries (64 bytes each, `struct io_uring_sqe`) from transfer `first` on."""
    mask = sqes.shape[0] - 1
    for i in range(first, first + count):
        sqe = sqes[(tail + i - first) & mask]
        sqe[0] = fd_and_op
        sqe[1] = np.uint64(offsets[i])
        sqe[2] = np.uint64(address + places[i])
        sqe[3] = np.uint64(lengths[i])
        sqe[4] = np.uint64(i)
        sqe[5] = sqe[6] = sqe[7] = np.uint64(0)
        results[i] = _CANCELLED


@kernel
def _reap(cqes: U64Array, head: int, count: int, results: I32Array) -> None:
    """Hand `count` completions (16 bytes each: user data, result and flags) to the transfers they belong to."""
    mask = cqes.shape[0] - 1
    for i in range(count):
        cqe = cqes[(head + i) & mask]
        results[np.int64(cqe[0])] = np.int32(cqe[1] & np.uint64(0xFFFFFFFF))


class Ring:
    """An io_uring for one thread at a time, with at most `depth` transfers in flight."""

    def __init__(self, depth: int, *, fences: bool = platform.machine() not in ("x86_64", "AMD64")) -> None:
        """Set the ring up. `fences` as the module says. Raises OSError where the kernel refuses, see `probe`."""
        if not 1 <= depth <= _MAX_DEPTH:
            raise ValueError(f"depth {depth} is not within 1..{_MAX_DEPTH}")
        if sys.byteorder != "little":
            raise OSError(errno.ENOTSUP, "this machine is big-endian")
        self.depth, self.most_in_flight, self._fences = depth, 0, fences
        params = np.zeros(_PARAMS_BYTES // 4, np.uint32)
        fd = _checked(_syscall(_SETUP, depth, params.ctypes.data), "io_uring_setup")
        self._fd = fd
        try:
            if fences:
                _checked(_syscall(_MEMBARRIER[platform.machine()], _MEMBARRIER_REGISTER, 0), "membarrier")
            self._map(params)
        except BaseException:
            os.close(fd)
            raise

    def _map(self, params: U32Array) -> None:
        """Map the rings (`struct io_uring_params`: sizes, features, then the byte offsets of their fields)."""
        sq_entries, cq_entries, features = int(params[0]), int(params[1]), int(params[5])
        if not features & _FEAT_SINGLE_MMAP or not features & _FEAT_NODROP:
            raise OSError(errno.ENOSYS, "this kernel's io_uring is older than Linux 5.5")
        sq, cq = params[10:20].tolist(), params[20:30].tolist()
        ring_bytes = max(sq[6] + 4 * sq_entries, cq[5] + 16 * cq_entries)
        ring = mmap.mmap(self._fd, ring_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=_OFF_SQ_RING)
        entries = mmap.mmap(self._fd, 64 * sq_entries, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=_OFF_SQES)
        for area in (ring, entries):
            area.madvise(mmap.MADV_DONTFORK)
        self._sq_head, self._sq_tail = (
            np.frombuffer(ring, np.uint32, 1, sq[0]),
            np.frombuffer(ring, np.uint32, 1, sq[1]),
        )
        np.frombuffer(ring, np.uint32, sq_entries, sq[6])[:] = np.arange(sq_entries, dtype=np.uint32)
        self._cq_head, self._cq_tail = (
            np.frombuffer(ring, np.uint32, 1, cq[0]),
            np.frombuffer(ring, np.uint32, 1, cq[1]),
        )
        self._cqes = np.frombuffer(ring, np.uint64, 2 * cq_entries, cq[5]).reshape(cq_entries, 2)
        self._sqes = np.frombuffer(entries, np.uint64, 8 * sq_entries).reshape(sq_entries, 8)

    def transfer(
        self, opcode: int, fd: int, offsets: I64Array, address: int, places: I64Array, lengths: I64Array
    ) -> I32Array:
        """Do transfers; returns for each the bytes moved or -errno, int32 (n,). Returns when all have ended.

        opcode `READ` or `WRITE`; transfer i is between file byte `offsets[i]` and memory at `address + places[i]`,
        `lengths[i]` bytes below 2**31; all int64 (n,). The caller keeps the memory alive. Raises OSError where the ring
        itself fails.
        """
        n = len(offsets)
        results = np.empty(n, np.int32)
        fd_and_op = np.uint64(opcode | fd << 32)
        begun = ended = 0
        try:
            while ended < n:
                count = min(n - begun, self.depth - (begun - ended))
                tail = int(self._sq_tail[0])
                _fill(self._sqes, tail, fd_and_op, offsets, address, places, lengths, begun, count, results)
                self._sq_tail[0] = (tail + count) & 0xFFFFFFFF
                left = begun + count == n
                self.most_in_flight = max(self.most_in_flight, begun + count - ended)
                # the last ones are waited for together; before that half a ring is refilled at a time
                begun += self._enter(count, begun - ended, begun + count - ended if left else max(1, self.depth // 2))
                ended += self._collect(results)
        except BaseException:
            self._abandon()
            raise
        return results

    def _enter(self, submit: int, in_flight: int, wait: int) -> int:
        """Submit entries and wait for completions; returns how many were taken, taking back what was not."""
        taken = _syscall(_ENTER, self._fd, submit, wait, _GETEVENTS)
        if taken < submit:
            self._sq_tail[0] = (int(self._sq_tail[0]) - (submit - max(taken, 0))) & 0xFFFFFFFF
        if taken == -errno.EINTR:
            return 0
        if taken in (-errno.EAGAIN, -errno.EBUSY) and in_flight:  # the kernel is out of room until one of ours ends
            _syscall(_ENTER, self._fd, 0, 1, _GETEVENTS)
            return 0
        return _checked(taken, "io_uring_enter")

    def _collect(self, results: I32Array) -> int:
        head, tail = int(self._cq_head[0]), int(self._cq_tail[0])
        if self._fences:
            _checked(_syscall(_MEMBARRIER[platform.machine()], _MEMBARRIER_NOW, 0), "membarrier")
        count = (tail - head) & 0xFFFFFFFF
        _reap(self._cqes, head, count, results)
        self._cq_head[0] = tail
        return count

    def _abandon(self) -> None:
        """Wait for what is under way, so that nothing writes into memory that the caller may free.

        A signal handler may raise between any two lines of ours, so only the ring's own counters are believed: entries
        that the kernel took (its head) and completions that it posted (its tail). Those it did not take are taken back.
        """
        self._sq_tail[0] = self._sq_head[0]
        while self._sq_head[0] != self._cq_tail[0]:
            if _syscall(_ENTER, self._fd, 0, 1, _GETEVENTS) not in (0, -errno.EINTR):
                break
            self._cq_head[0] = self._cq_tail[0]
        self._cq_head[0] = self._cq_tail[0]

    def close(self) -> None:
        """Give the ring back. A second call does nothing."""
        if self._fd >= 0:
            del self._sq_head, self._sq_tail, self._cq_head, self._cq_tail, self._cqes, self._sqes
            os.close(self._fd)
            self._fd = -1


def _checked(result: int, call: str) -> int:
    if result < 0:
        raise OSError(-result, f"{call}: {os.strerror(-result)}")
    return result


def probe() -> str:
    """Return "" where a ring works here, else why it does not, in a few words."""
    if sys.platform != "linux":
        return "io_uring is Linux only"
    if platform.machine() not in _MEMBARRIER:
        return f"memory order on {platform.machine()} is not known here"
    try:
        ring = Ring(1)
    except OSError as error:
        return _reason(error)
    try:
        return _read_something(ring)
    finally:
        ring.close()


def _read_something(ring: Ring) -> str:
    target = np.zeros(16, np.uint8)
    with open("/proc/self/exe", "rb", buffering=0) as file:
        at, length = np.zeros(1, np.int64), np.array([16])
        try:
            moved = int(ring.transfer(READ, file.fileno(), at, target.ctypes.data, at, length)[0])
        except OSError as error:
            return _reason(error)
    return "" if moved == 16 else f"a test read ended with {moved}"


def _reason(error: OSError) -> str:
    if error.errno == errno.EPERM:
        return "io_uring is not permitted (seccomp, or kernel.io_uring_disabled)"
    if error.errno == errno.ENOSYS:
        return "this kernel has no io_uring, or a sandbox hides it"
    return error.strerror or str(error)
