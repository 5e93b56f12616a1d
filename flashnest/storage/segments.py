"""Batches of changed records, appended to files and synced: what a crash must not lose. Never read while running.

    segment    `00000001.seg`, ..: batches one after the other; names in the order they were written
    batch      header, 48 bytes: magic, store id, payload bytes, records (uint32), removals (uint32), xxh3_64 of the
               payload, xxh3_64 of the header so far
               payload: keys uint64 (records,), rows uint32 (records, words), removed keys uint64 (removals,)

Native byte order. Rows are as they are to be found: replaying a batch twice changes nothing. A batch whose checksums
are wrong is dropped and counted; the next one is found by its header.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import xxhash

from flashnest.record import U32Array, U64Array

_MAGIC: Final = b"FNBATCH\x01"
_FACTS = struct.Struct("=8sQQIIQ")
_SUM = struct.Struct("=Q")
HEADER_BYTES: Final = _FACTS.size + _SUM.size


@dataclass(frozen=True, slots=True)
class Batch:
    """What one write changed: removes uint64 (m,), removed first; keys uint64 (n,), rows uint32 (n, words), stored."""

    keys: U64Array
    rows: U32Array
    removes: U64Array


def batch_bytes(records: int, removes: int, words: int) -> int:
    """Return the bytes that a batch takes in a segment."""
    return HEADER_BYTES + records * (8 + 4 * words) + 8 * removes


class SegmentLog:
    """The segments of one store in a directory of their own. One thread at a time."""

    def __init__(self, directory: Path, *, words: int, store_id: int) -> None:
        """Create the directory where it is missing; what is in it stays until `drop`. Raises OSError."""
        self._directory, self._words, self._store_id = directory, words, store_id
        if not directory.is_dir():
            directory.mkdir(mode=0o700)
            sync_directory(directory.parent)
        self._fd = -1
        self._size = 0
        self.bytes_written = self.dropped = 0
        names = self._names()
        self._next = 1 + max((int(path.stem) for path in names), default=0)
        self._held = sum(path.stat().st_size for path in names)

    def _names(self) -> list[Path]:
        return sorted(path for path in self._directory.glob("*.seg") if path.stem.isdigit())

    @property
    def bytes_held(self) -> int:
        """Bytes of all segments."""
        return self._held

    def replay(self) -> Iterator[Batch]:
        """Yield every whole batch, oldest first; damaged and torn ones are counted in `dropped`."""
        for path in self._names():
            data = path.read_bytes()
            at = 0
            while at < len(data):
                batch, end = self._batch_at(data, at)
                if batch is not None:
                    yield batch
                    at = end
                else:
                    self.dropped += 1
                    following = data.find(_MAGIC, at + 1)
                    at = len(data) if following < 0 else following

    def _batch_at(self, data: bytes, at: int) -> tuple[Batch | None, int]:
        header = data[at : at + HEADER_BYTES]
        if len(header) < HEADER_BYTES:
            return None, 0
        magic, store_id, length, records, removes, payload_sum = _FACTS.unpack_from(header)
        whole = _SUM.pack(xxhash.xxh3_64_intdigest(header[: _FACTS.size])) == header[_FACTS.size :]
        end = at + HEADER_BYTES + length
        if not whole or magic != _MAGIC or store_id != self._store_id or end > len(data):
            return None, 0
        payload = memoryview(data)[at + HEADER_BYTES : end]
        if HEADER_BYTES + length != batch_bytes(records, removes, self._words):
            return None, 0
        if xxhash.xxh3_64_intdigest(payload) != payload_sum:
            return None, 0
        keys_end, rows_end = 8 * records, (8 + 4 * self._words) * records
        keys = np.frombuffer(payload[:keys_end], np.uint64)
        rows = np.frombuffer(payload[keys_end:rows_end], np.uint32).reshape(records, self._words)
        return Batch(keys, rows, np.frombuffer(payload[rows_end:], np.uint64)), end

    def write(self, batch: Batch) -> None:
        """Append a batch; durable only after `sync`. Raises OSError: then the segment is as it was."""
        payload = b"".join((batch.keys.tobytes(), batch.rows.tobytes(), batch.removes.tobytes()))
        facts = _FACTS.pack(
            _MAGIC, self._store_id, len(payload), len(batch.keys), len(batch.removes), xxhash.xxh3_64_intdigest(payload)
        )
        self._open()
        self._write(facts + _SUM.pack(xxhash.xxh3_64_intdigest(facts)) + payload)

    def sync(self) -> None:
        """Make what was written durable. Raises OSError; then the store must write no more."""
        os.fdatasync(self._fd)

    def _open(self) -> None:
        if self._fd < 0:
            path = self._directory / f"{self._next:08d}.seg"
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            self._next, self._size = self._next + 1, 0
            sync_directory(self._directory)

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.pwrite(self._fd, left, self._size + len(data) - len(left)) :]
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)
        self._held += len(data)
        self.bytes_written += len(data)

    def drop(self) -> None:
        """Remove every segment: what they hold is in its place. Raises OSError."""
        self.close()
        for path in self._names():
            path.unlink()
        sync_directory(self._directory)
        self._held = 0

    def close(self) -> None:
        """Close the segment at hand; the next `write` begins another."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def sync_directory(directory: Path) -> None:
    """Make names created or removed in a directory durable. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
