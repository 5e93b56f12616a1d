"""What surrounds the buckets: the directory and its lock, the superblock, the note of a clean close. Reads no bucket.

    slots.dat        page 0: superblock; then one 4 KiB page a bucket; sparse, of its full size from the first moment
    segments/        see `segments`
    clean            only while closed: how many records each bucket holds, and sizes and times of the files then
    flashnest.lock   held by the one process that has the store open

The superblock and `clean` are JSON behind an xxh3_64. Without a valid `clean` every page is read at the next open.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import xxhash

from flashnest.errors import StoreCorruptError, StoreError
from flashnest.record import U8Array
from flashnest.storage.page_io import PAGE_BYTES
from flashnest.storage.segments import sync_directory
from flashnest.storage.slots_page import LAYOUT_VERSION
from flashnest.storage.store_directory import LockedDirectory

SLOTS_DATA: Final = "slots.dat"
_LMDB_DATA: Final = "data.mdb"
_SEAL = struct.Struct("=QI")


@dataclass(frozen=True, slots=True)
class Superblock:
    """What a file was made for. A store opens only a file whose facts are its own."""

    owner: str
    words: int
    capacity_bytes: int
    buckets: int
    store_id: int
    format: str = f"flashnest slots {LAYOUT_VERSION}"
    byteorder: str = sys.byteorder


class SlotsDirectory(LockedDirectory):
    """The directory of a slots store."""

    def _take(self) -> None:
        """Raises StoreError also where the directory holds an LMDB store."""
        super()._take()
        if (self.path / _LMDB_DATA).exists():
            raise self.foreign("it holds an LMDB store, this run has engine `slots`")

    @property
    def data(self) -> Path:
        """The file of buckets."""
        return self.path / SLOTS_DATA

    @property
    def segments(self) -> Path:
        """The directory of segments."""
        return self.path / "segments"

    def open_or_create(self, owner: str, words: int, capacity_bytes: int, buckets: int) -> Superblock:
        """Return the file's superblock, making the file where there is none.

        Raises StoreError where it was made for something else or the disk has no room for it, StoreCorruptError where
        it is damaged.
        """
        wanted = Superblock(owner, words, capacity_bytes, buckets, int.from_bytes(os.urandom(8), "little"))
        if not self.data.exists():
            self._create(wanted)
            return wanted
        held = self._read_superblock()
        for name, value in asdict(wanted).items():
            if name != "store_id" and held.get(name) != value:
                raise self.foreign(f"its {name} is {held.get(name)!r}, this run needs {value!r}")
        if self.data.stat().st_size != (buckets + 1) * PAGE_BYTES:
            raise self._damaged(f"it has {self.data.stat().st_size} bytes instead of {(buckets + 1) * PAGE_BYTES}")
        return Superblock(owner, words, capacity_bytes, buckets, int(str(held["store_id"])))

    def superblock(self) -> Superblock:
        """Return what the file was made for, whatever that is. Raises StoreCorruptError where it is damaged."""
        held = self._read_superblock()
        words, capacity, buckets, store_id = (
            int(held.get(name, 0)) for name in ("words", "capacity_bytes", "buckets", "store_id")
        )
        facts = Superblock(str(held.get("owner", "")), words, capacity, buckets, store_id)
        for name in ("format", "byteorder"):
            if held.get(name) != getattr(facts, name):
                raise self.foreign(f"its {name} is {held.get(name)!r}, this release reads {getattr(facts, name)!r}")
        return facts

    def _create(self, facts: Superblock) -> None:
        """Make the file under another name first, so that a half-made one is never opened."""
        size = (facts.buckets + 1) * PAGE_BYTES
        fresh = self.path / "slots.new"
        try:
            fresh.unlink(missing_ok=True)  # a crash may have left one
            fresh.touch(0o600)
            with fresh.open("r+b") as file:
                file.truncate(size)
                file.write(_sealed(json.dumps(asdict(facts)).encode()))
                file.flush()
                os.fsync(file.fileno())
            fresh.rename(self.data)
            sync_directory(self.path)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise StoreError(
                f"cannot make {self.data} with {size} bytes",
                why=str(error),
                fix="free space on its disk, or give the nvme tier less capacity",
            ) from error

    def _read_superblock(self) -> dict[str, str | int]:
        with self.data.open("rb") as file:
            content = _unsealed(file.read(PAGE_BYTES))
        if content is None:
            raise self._damaged("its first page is not a superblock")
        held = json.loads(content[0])
        return held if isinstance(held, dict) else {}

    def _damaged(self, why: str) -> StoreCorruptError:
        return StoreCorruptError(
            f"{self.data} is damaged", why=why, fix=f"move {self.path} away to start empty, or restore a copy"
        )

    def _fingerprint(self) -> list[list[str | int]]:
        files = [self.data, *sorted(self.segments.glob("*.seg"))]
        return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]

    def read_clean(self, buckets: int) -> tuple[U8Array, int] | None:
        """Return the records of each bucket and of the whole store, as a clean close left them; else None."""
        try:
            content = _unsealed((self.path / "clean").read_bytes())
        except FileNotFoundError:
            return None
        if content is None or len(content[1]) != buckets:
            return None
        note = json.loads(content[0])
        return (np.frombuffer(content[1], np.uint8), note["records"]) if note["files"] == self._fingerprint() else None

    def mark_open(self) -> None:
        """Note that the files may change from now on. Durable before the first change."""
        (self.path / "clean").unlink(missing_ok=True)
        sync_directory(self.path)

    def mark_clean(self, counts: U8Array, records: int) -> None:
        """Note that the store is closed and whole. A disk that cannot take the note only costs a slower open."""
        note = {"records": records, "files": self._fingerprint()}
        with contextlib.suppress(OSError):
            (self.path / "clean").write_bytes(_sealed(json.dumps(note).encode(), counts.tobytes()))

    def allocated_bytes(self) -> int:
        """Return the bytes that the file system has given the file of buckets so far; never above its size."""
        return min(self.data.stat().st_blocks * 512, self.data.stat().st_size)


def _sealed(text: bytes, more: bytes = b"") -> bytes:
    return _SEAL.pack(xxhash.xxh3_64_intdigest(text + more), len(text)) + text + more


def _unsealed(data: bytes) -> tuple[bytes, bytes] | None:
    """Return the two parts, or None where they are damaged. A page's zeros behind a superblock are no part of it."""
    if len(data) < _SEAL.size:
        return None
    checksum, length = _SEAL.unpack_from(data)
    text, more = data[_SEAL.size : _SEAL.size + length], data[_SEAL.size + length :].rstrip(b"\0")
    for rest in (data[_SEAL.size + length :], more):
        if xxhash.xxh3_64_intdigest(text + rest) == checksum:
            return text, rest
    return None
