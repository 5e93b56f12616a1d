"""The file of an access trace: what a table was asked and taught, step by step. Reads it; `trace_writer` writes it.

    file    = magic (8 bytes) version u32, header length u32, header: JSON, xxh3_64 of it u64, then blocks
    block   = "blk1", payload length u32, xxh3_64 of the payload u64, payload
    payload = BLOCK_HEAD, then columns: step times, batches, asked keys and namespaces, taught keys, metas, namespaces

All little-endian. A batch is one call of the table: its step (counted from the block's first), how many keys, how many
of them are one question's candidates (longest n-gram first; 0 where a shorter text has none). 8 bytes a key asked, 4 a
question, 14 a key taught, 8 a step. A block whose checksum is wrong is dropped and counted, so is one cut off at the
end of the file: what a killed run left is read up to there. Never imports a store: keys are numbers here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import xxhash

from flashnest.errors import WorkloadError
from flashnest.record import CHUNK_TOKENS, I64Array, Kind, U8Array, U32Array, U64Array

MAGIC: Final = b"fntrace\0"
VERSION: Final = 1
BLOCK_MAGIC: Final = b"blk1"
FILE_HEAD: Final = np.dtype([("magic", "S8"), ("version", "<u4"), ("header_bytes", "<u4")])
BLOCK_FRAME: Final = np.dtype([("magic", "S4"), ("payload_bytes", "<u4"), ("checksum", "<u8")])
BLOCK_HEAD: Final = np.dtype(
    [
        ("first_step", "<u8"),
        ("dropped", "<u8"),  # accesses that were not recorded before this block, since the start
        ("steps", "<u4"),
        ("batches", "<u4"),
        ("asked", "<u4"),
        ("questions", "<u4"),
        ("taught", "<u4"),
        ("reserved", "<u4"),
    ]
)
BATCH: Final = np.dtype([("step", "<u4"), ("keys", "<u4"), ("op", "u1"), ("width", "u1"), ("reserved", "<u2")])

ASK_NGRAMS: Final = 0
ASK_CHUNKS: Final = 1
TEACH: Final = 2


@dataclass(frozen=True, slots=True)
class AccessLog:
    """What a trace file holds, in the order it happened. Arrays (n,) but the times.

    key uint64; step int64 from 0; taught bool: learnt, not asked; question int64: growing, -1 for what is taught;
    tokens, kind uint8, namespace uint32: as the record's row has them, namespace 0 for a chunk that is only asked.
    step_ms int64 (steps,): since the start of the run. header: what the writer said of the run. damaged: blocks
    dropped; dropped: accesses that the writer could not keep up with.
    """

    header: Mapping[str, Any]
    step_ms: I64Array
    key: U64Array
    step: I64Array
    taught: npt.NDArray[np.bool_]
    question: I64Array
    tokens: U8Array
    kind: U8Array
    namespace: U32Array
    damaged: int
    dropped: int


def is_access_trace(head: bytes) -> bool:
    """Return whether a file that begins with `head`, at least 8 bytes, is an access trace."""
    return head.startswith(MAGIC)


def read_access_trace(path: Path, *, limit: int | None = None) -> AccessLog:
    """Read a file, the first `limit` steps of it. Raises WorkloadError where it is no access trace or holds none."""
    try:
        with path.open("rb") as stream:
            header = _read_header(path, stream)
            blocks, damaged = _read_blocks(stream, limit)
    except OSError as error:
        raise WorkloadError(
            f"cannot read the trace {path}", why=error.strerror or str(error), fix="check the path"
        ) from None
    if not blocks:
        raise WorkloadError(
            f"{path} holds no whole block", why=f"{damaged} were damaged or cut off", fix="record the run again"
        )
    lengths = np.array(header["ngram_lengths"], np.uint8)
    parts = [block.accesses(lengths) for block in blocks]
    step_ms, steps = _step_times(blocks), [part.pop("step") for part in parts]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    keep = columns["key"] != 0  # a text shorter than a length has no such n-gram
    step = np.concatenate(steps)
    if limit is not None:
        step_ms = step_ms[:limit]
        keep &= step < limit
    return AccessLog(
        header=header,
        step_ms=step_ms,
        step=step[keep],
        question=_questions(columns.pop("opens"), columns["taught"])[keep],
        damaged=damaged,
        dropped=max(int(block.head["dropped"]) for block in blocks),
        **{name: column[keep] for name, column in columns.items()},
    )


def _questions(opens: npt.NDArray[np.bool_], taught: npt.NDArray[np.bool_]) -> I64Array:
    return np.where(taught, -1, np.cumsum(opens, dtype=np.int64) - 1)


@dataclass(frozen=True, slots=True)
class _Block:
    """One block's columns, as they lie in the file."""

    head: npt.NDArray[np.void]
    step_ms: I64Array
    batches: npt.NDArray[np.void]
    asked: U64Array
    spaces: U32Array
    taught: U64Array
    metas: npt.NDArray[np.uint16]
    taught_spaces: U32Array

    @classmethod
    def parse(cls, payload: bytes) -> _Block:
        """Raises ValueError where the payload is not as long as its head says."""
        head = np.frombuffer(payload, BLOCK_HEAD, 1)[0]
        columns: list[npt.NDArray[Any]] = []
        at = BLOCK_HEAD.itemsize
        for dtype, count in column_types(*(int(head[n]) for n in ("steps", "batches", "asked", "questions", "taught"))):
            columns.append(np.frombuffer(payload, dtype, count, at))
            at += dtype.itemsize * count
        if at != len(payload):
            raise ValueError(f"{len(payload)} bytes where {at} belong")
        return cls(head, *columns)

    def accesses(self, lengths: U8Array) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of `AccessLog` in the order of the calls; `opens` instead of question."""
        keys = self.batches["keys"].astype(np.int64)
        op, width = np.repeat(self.batches["op"], keys), np.repeat(self.batches["width"], keys).astype(np.int64)
        taught = op == TEACH
        asks = ~taught
        place = np.arange(len(op)) - np.repeat(np.cumsum(keys) - keys, keys)
        candidate = place % np.maximum(width, 1)
        metas = np.zeros(len(op), np.uint16)
        metas[taught] = self.metas
        metas[op == ASK_CHUNKS] = int(Kind.CHUNK) | CHUNK_TOKENS << 8
        ngrams = op == ASK_NGRAMS
        metas[ngrams] = int(Kind.NGRAM) | lengths[::-1][candidate[ngrams]].astype(np.uint16) << 8
        opens = asks & (candidate == 0)
        namespace = np.zeros(len(op), np.uint32)
        namespace[asks] = np.repeat(self.spaces, width[opens])
        namespace[taught] = self.taught_spaces
        key = np.zeros(len(op), np.uint64)
        key[asks], key[taught] = self.asked, self.taught
        return {
            "key": key,
            "step": int(self.head["first_step"]) + np.repeat(self.batches["step"], keys).astype(np.int64),
            "taught": taught,
            "opens": opens,
            "tokens": (metas >> 8).astype(np.uint8),
            "kind": (metas & 0xFF).astype(np.uint8),
            "namespace": namespace,
        }


def column_types(steps: int, batches: int, asked: int, questions: int, taught: int) -> list[tuple[np.dtype[Any], int]]:
    """Return type and length of a block's columns, in the order of the file."""
    u64, u32, u16, i64 = np.dtype("<u8"), np.dtype("<u4"), np.dtype("<u2"), np.dtype("<i8")
    return [
        *((i64, steps), (BATCH, batches), (u64, asked), (u32, questions)),
        *((u64, taught), (u16, taught), (u32, taught)),
    ]


def _read_header(path: Path, stream: BinaryIO) -> Mapping[str, Any]:
    head = stream.read(FILE_HEAD.itemsize)
    if len(head) < FILE_HEAD.itemsize or not is_access_trace(head):
        raise WorkloadError(
            f"{path} is no access trace", why="it does not begin as one", fix="record one: trace.path=FILE"
        )
    fields = np.frombuffer(head, FILE_HEAD, 1)[0]
    if fields["version"] != VERSION:
        raise WorkloadError(
            f"{path} is an access trace of version {fields['version']}",
            why=f"this flashnest reads version {VERSION}",
            fix="read it with the flashnest that wrote it, or record it again",
        )
    text = stream.read(int(fields["header_bytes"]))
    if stream.read(8) != xxhash.xxh3_64_intdigest(text).to_bytes(8, "little"):
        raise WorkloadError(f"the header of {path} is damaged", why="its checksum is wrong", fix="record the run again")
    header: Mapping[str, Any] = json.loads(text)
    return header


def _read_blocks(stream: BinaryIO, limit: int | None) -> tuple[list[_Block], int]:
    """Return the whole blocks up to step `limit`, and how many were not."""
    blocks: list[_Block] = []
    damaged = 0
    for payload in _payloads(stream):
        block = None if payload is None else _parsed(payload)
        if block is None:
            damaged += 1
        elif limit is not None and int(block.head["first_step"]) >= limit:
            break
        else:
            blocks.append(block)
    return blocks, damaged


def _payloads(stream: BinaryIO) -> Iterator[bytes | None]:
    """Yield each block's payload, None for a damaged one; what no longer begins as a block ends the file."""
    while frame := stream.read(BLOCK_FRAME.itemsize):
        if len(frame) < BLOCK_FRAME.itemsize:
            yield None
            return
        fields = np.frombuffer(frame, BLOCK_FRAME, 1)[0]
        if fields["magic"] != BLOCK_MAGIC:
            yield None
            return
        payload = stream.read(int(fields["payload_bytes"]))
        whole = len(payload) == fields["payload_bytes"] and xxhash.xxh3_64_intdigest(payload) == fields["checksum"]
        yield payload if whole else None


def _parsed(payload: bytes) -> _Block | None:
    try:
        return _Block.parse(payload)
    except ValueError:
        return None


def _step_times(blocks: list[_Block]) -> I64Array:
    """Return every step's time, (steps,); steps of lost blocks get that of the step in front."""
    last = max(int(block.head["first_step"]) + len(block.step_ms) for block in blocks)
    times = np.zeros(last, np.int64)
    for block in blocks:
        first = int(block.head["first_step"])
        times[first : first + len(block.step_ms)] = block.step_ms
    return np.maximum.accumulate(times)
