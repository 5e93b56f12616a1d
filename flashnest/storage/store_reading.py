"""A kept NVMe store of either engine, read from the first record to the last and left as it is.

Holds the store's lock meanwhile, so that no run changes it; refuses where a run has it. Opens only files that were
closed well or pass their examination, as the stores themselves do. Never writes, not even the note that it is open.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import lmdb

from flashnest.errors import StoreCorruptError, StoreError
from flashnest.record import U32Array, U64Array
from flashnest.storage.lmdb_files import DATA, StoreDirectory
from flashnest.storage.lmdb_reader import LmdbReader
from flashnest.storage.page_io import DEFAULT_DEPTH
from flashnest.storage.segments import SegmentLog
from flashnest.storage.slots_buckets import Buckets
from flashnest.storage.slots_file import SLOTS_DATA, SlotsDirectory
from flashnest.storage.slots_log import RecordLog
from flashnest.storage.slots_scan import walk
from flashnest.storage.store_directory import LOCK

_BATCH: Final = 4096
_EXAMINE_S: Final = 120.0
_LEAST_LOG_BYTES: Final = 1 << 20
_LOG_BYTES_A_SEGMENT_BYTE: Final = 2
"""A record takes 72 bytes in a segment and 84 in the log, with the default row."""


@dataclass(frozen=True, slots=True)
class KeptStore:
    """An open store: its engine, what it was made for, its row width, about how many records it has.

    `scan` yields all of them once, in batches of (keys uint64 (n,), rows uint32 (n, words)).
    """

    path: Path
    engine: str
    owner: str
    words: int
    records: int
    scan: Iterator[tuple[U64Array, U32Array]]


def find_store(path: Path) -> Path:
    """Return the store's own directory: `path`, or the one store in a folder of it. Raises StoreError."""
    if _engine(path):
        return path
    if not path.is_dir():
        raise StoreError(f"there is no folder {path}", fix="name the nvme path of a run (tiering.tiers.nvme.path)")
    inside = sorted(folder for folder in path.iterdir() if folder.is_dir() and _engine(folder))
    if len(inside) == 1:
        return inside[0]
    if inside:
        names = ", ".join(folder.name for folder in inside)
        raise StoreError(f"{path} holds several stores", why=f"one for each model: {names}", fix="name one of them")
    raise StoreError(
        f"{path} holds no store", why=f"neither {DATA} nor {SLOTS_DATA}", fix="name the nvme path of a run that is over"
    )


@contextmanager
def open_for_reading(path: Path) -> Iterator[KeptStore]:
    """Open a kept store to read all of it. Raises StoreError where it is in use, StoreCorruptError where damaged."""
    engine = _engine(path)
    if not engine or not (path / LOCK).exists():
        raise StoreError(f"{path} holds no store", fix="name the nvme path of a run that is over")
    with _lmdb(path) if engine == "lmdb" else _slots(path) as kept:
        yield kept


def _engine(path: Path) -> str:
    if (path / DATA).exists():
        return "lmdb"
    return "slots" if (path / SLOTS_DATA).exists() else ""


@contextmanager
def _lmdb(path: Path) -> Iterator[KeptStore]:
    directory = StoreDirectory(path)
    try:
        directory.make_sure_it_is_sound(_EXAMINE_S)
        env = lmdb.open(str(path), readonly=True, lock=False, create=False, max_dbs=2, readahead=True)
        try:
            yield _lmdb_records(path, env)
        finally:
            env.close()
    except lmdb.Error as error:
        raise StoreCorruptError(f"{directory.data} cannot be read", why=str(error)) from error
    finally:
        directory.release()


def _lmdb_records(path: Path, env: lmdb.Environment) -> KeptStore:
    meta = env.open_db(b"meta", create=False)
    records = env.open_db(b"records", integerkey=True, create=False)
    with env.begin() as txn:
        facts = {name: bytes(txn.get(name.encode(), b"", db=meta)).decode() for name in ("owner", "words")}
        count = int(txn.stat(records)["entries"])
    words = int(facts["words"])
    reader = LmdbReader(env, records, words=words, map_lock=threading.Lock())
    return KeptStore(path, "lmdb", facts["owner"], words, count, _all(reader))


def _all(reader: LmdbReader) -> Iterator[tuple[U64Array, U32Array]]:
    after: bytes | None = None
    while True:
        keys, rows, after = reader.records_after(after, _BATCH)
        yield keys, rows
        if after is None:
            return


@contextmanager
def _slots(path: Path) -> Iterator[KeptStore]:
    directory = SlotsDirectory(path)
    try:
        facts = directory.superblock()
        buckets = Buckets(directory.data, facts, io="auto", depth=DEFAULT_DEPTH, direct=True)
        try:
            clean = directory.read_clean(facts.buckets)
            if clean:
                buckets.take_counts(clean[0])
            else:
                buckets.examine()
            log = _segments(directory, facts.words, facts.store_id)
            scan = ((keys, rows) for keys, rows, _ in walk(buckets, log, threading.Lock(), lambda: None))
            count = clean[1] if clean else buckets.records + len(log)
            yield KeptStore(path, "slots", facts.owner, facts.words, count, scan)
        finally:
            buckets.close()
    finally:
        directory.release()


def _segments(directory: SlotsDirectory, words: int, store_id: int) -> RecordLog:
    """Return a log of all that the segments hold: what was not merged into the buckets yet."""
    held = sum(path.stat().st_size for path in directory.segments.glob("*.seg"))
    log = RecordLog(max(_LEAST_LOG_BYTES, _LOG_BYTES_A_SEGMENT_BYTE * held), words)
    if held:
        for batch in SegmentLog(directory.segments, words=words, store_id=store_id).replay():
            log.bury_many(batch.removes)
            log.put_many(batch.keys, batch.rows)
    return log
