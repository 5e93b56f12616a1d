"""Writes an access trace while a run goes on: copies into a buffer, and a thread of its own writes it to the file.

Two buffers of fixed size take turns, so memory is bounded and no step waits for the disk: where the thread is behind
with one buffer and the other is full, accesses are dropped and counted. The form is `access_trace`'s. Never reads.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import xxhash

from flashnest.errors import WorkloadError
from flashnest.record import META, NAMESPACE, U32Array, U64Array
from flashnest.telemetry.access_trace import (
    ASK_CHUNKS,
    ASK_NGRAMS,
    BLOCK_FRAME,
    BLOCK_HEAD,
    BLOCK_MAGIC,
    FILE_HEAD,
    MAGIC,
    TEACH,
    VERSION,
    column_types,
)

BLOCK_KEYS: Final = 1 << 16
"""Keys asked, and keys taught, that a buffer holds, and steps and calls: 3.0 MB each, two of them."""
BLOCK_S: Final = 5.0
"""A buffer is written after this time at the latest: what a killed run loses."""
_log = logging.getLogger("flashnest.telemetry")


@dataclass(frozen=True, slots=True)
class TraceStats:
    """accesses: recorded; dropped: not recorded because the disk was behind; full: the file reached its limit;
    error: why writing ended, empty where it did not."""

    path: str
    bytes_written: int
    steps: int
    accesses: int
    dropped: int
    full: bool
    error: str


class TraceWriter:
    """Records a run's accesses. One thread calls it; its own thread writes."""

    def __init__(
        self,
        path: Path,
        header: Mapping[str, object],
        *,
        limit_bytes: int,
        block_keys: int = BLOCK_KEYS,
        threaded: bool = True,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin the file anew. `header` must name `ngram_lengths`; see `simulate.recorded` for what else is read.

        `threaded` False writes in the caller's thread, for tests. Raises WorkloadError where the file cannot be made.
        """
        self._path, self._limit_bytes, self._clock_s = path, limit_bytes, clock_s
        self._started_s = self._sealed_s = clock_s()
        self._active, self._spare = _Buffer(block_keys), _Buffer(block_keys)
        self._step = -1
        self._accesses = self._dropped = 0
        self._full, self._error = False, ""
        self._job: _Buffer | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._stream, self._bytes = _begin(path, header)
        self._thread = threading.Thread(target=self._run, name="flashnest-trace", daemon=True) if threaded else None
        if self._thread is not None:
            self._thread.start()

    def begin_step(self) -> None:
        """Note that a step begins: what is recorded from now on is its."""
        now_s = self._clock_s()
        self._step += 1
        if now_s - self._sealed_s >= BLOCK_S or not self._active.has_room(0, 0, 0):
            self._seal(now_s)
        self._active.begin_step(self._step, int(1000 * (now_s - self._started_s)))

    def ask_chunks(self, keys: U64Array) -> None:
        """Record that chunks (n,) were asked for, each for itself."""
        if self._room_for(len(keys), len(keys), 0):
            self._active.ask(self._step, ASK_CHUNKS, keys, 1)
            self._active.put_spaces(np.zeros(len(keys), np.uint32))
            self._accesses += len(keys)

    def ask_ngrams(self, keys: U64Array, salts: U64Array) -> None:
        """Record questions: keys (n, k), shortest n-gram first and 0 where there is none; salts (n,) of namespaces."""
        if self._room_for(keys.size, len(keys), 0):
            self._active.ask(self._step, ASK_NGRAMS, keys[:, ::-1].reshape(-1), keys.shape[1])
            self._active.put_spaces(salts.astype(np.uint32))  # a namespace's id is its salt's low half
            self._accesses += keys.size

    def teach(self, keys: U64Array, rows: U32Array) -> None:
        """Record that records were offered to the table: keys (n,), rows (n, words)."""
        for at in range(0, len(keys), self._active.most_keys):
            part = slice(at, at + self._active.most_keys)
            if self._room_for(0, 0, len(keys[part])):
                self._active.teach(self._step, keys[part], rows[part])
                self._accesses += len(keys[part])

    def _room_for(self, asked: int, questions: int, taught: int) -> bool:
        """Make room in the active buffer; False where these accesses must be dropped, which is counted."""
        if self._full or self._error or self._step < 0:
            return False
        if not self._active.has_room(asked, questions, taught):
            now_s = self._clock_s()
            self._seal(now_s)
            if self._active.is_fresh:
                self._active.begin_step(self._step, int(1000 * (now_s - self._started_s)))
        if self._active.has_room(asked, questions, taught):
            return True
        self._dropped += asked + taught
        return False

    def _seal(self, now_s: float) -> None:
        """Hand the active buffer to the thread and go on with the spare one, if the thread is done with that."""
        with self._changed:
            if self._job is not None or self._active.is_fresh or self._full or self._error:
                return
            size = self._active.nbytes + BLOCK_FRAME.itemsize
            if self._bytes + size > self._limit_bytes:
                self._full = True
                return
            self._bytes += size
            self._active.head["dropped"] = self._dropped
            self._job = self._active
            self._active, self._spare = self._spare, self._active
            self._changed.notify_all()
        self._sealed_s = now_s
        if self._thread is None:
            self._write_job()

    def stats(self) -> TraceStats:
        """Return what was recorded so far; after `close` all of it is on disk."""
        return TraceStats(
            *(str(self._path), self._bytes, self._step + 1, self._accesses, self._dropped, self._full, self._error)
        )

    def close(self) -> None:
        """Write what is left and close the file. A second call does nothing."""
        if self._closing:
            return
        self._wait()
        self._seal(self._clock_s())
        self._wait()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._stream.close()

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._job is None)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._job is not None or self._closing)
                if self._job is None:
                    return
            self._write_job()

    def _write_job(self) -> None:
        job = self._job
        assert job is not None
        try:
            if not self._error:
                job.write(self._stream)
        except OSError as error:  # a full disk ends the trace, never the run
            self._error = error.strerror or str(error)
            _log.warning("the trace %s ends here: %s", self._path, self._error)
        job.clear()
        with self._changed:
            self._job = None
            self._changed.notify_all()


def _begin(path: Path, header: Mapping[str, object]) -> tuple[BinaryIO, int]:
    """Open the file and write its header; returns the stream and the bytes written."""
    text = json.dumps(header, sort_keys=True).encode()
    head = np.array([(MAGIC, VERSION, len(text))], FILE_HEAD).tobytes()
    data = head + text + xxhash.xxh3_64_intdigest(text).to_bytes(8, "little")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("wb", buffering=0)
        try:
            stream.write(data)
        except OSError:
            stream.close()
            raise
    except OSError as error:
        raise WorkloadError(
            f"cannot write the trace {path}", why=error.strerror or str(error), fix="give another file: trace.path=FILE"
        ) from None
    return stream, len(data)


class _Buffer:
    """One block being filled: columns of fixed size and how far each is filled."""

    def __init__(self, keys: int) -> None:
        self.most_keys = keys
        self._columns: list[npt.NDArray[Any]] = [np.zeros(n, dtype) for dtype, n in column_types(*[keys] * 5)]
        for column in self._columns:
            column.view(np.uint8).fill(1)  # the machine hands the memory out now, not in a step
        self.head = np.zeros((), BLOCK_HEAD)
        self._first_step = 0
        self._filled = [0, 0, 0, 0, 0]  # steps, batches, asked, questions, taught

    @property
    def is_fresh(self) -> bool:
        """Whether no step was begun."""
        return self._filled[0] == 0

    @property
    def nbytes(self) -> int:
        """Bytes of the payload."""
        return BLOCK_HEAD.itemsize + sum(dtype.itemsize * n for dtype, n in column_types(*self._filled))

    def has_room(self, asked: int, questions: int, taught: int) -> bool:
        """Whether that many keys and questions, one step and one batch fit."""
        most, filled = self.most_keys, self._filled
        return (
            filled[0] < most
            and filled[1] < most
            and filled[2] + asked <= most
            and filled[3] + questions <= most
            and filled[4] + taught <= most
        )

    def begin_step(self, step: int, at_ms: int) -> None:
        steps = self._filled[0]
        if steps == self.most_keys:
            return  # the disk is behind: this step's accesses are dropped too
        if steps == 0:
            self._first_step = step
        self._columns[0][steps] = at_ms
        self._filled[0] = steps + 1

    def ask(self, step: int, op: int, keys: U64Array, width: int) -> None:
        self._batch(step, op, len(keys), width)
        at = self._filled[2]
        self._columns[2][at : at + len(keys)] = keys
        self._filled[2] = at + len(keys)

    def put_spaces(self, spaces: U32Array) -> None:
        at = self._filled[3]
        self._columns[3][at : at + len(spaces)] = spaces
        self._filled[3] = at + len(spaces)

    def teach(self, step: int, keys: U64Array, rows: U32Array) -> None:
        self._batch(step, TEACH, len(keys), 0)
        at, end = self._filled[4], self._filled[4] + len(keys)
        self._columns[4][at:end] = keys
        self._columns[5][at:end] = rows[:, META]  # its low half: kind and tokens
        self._columns[6][at:end] = rows[:, NAMESPACE]
        self._filled[4] = end

    def _batch(self, step: int, op: int, keys: int, width: int) -> None:
        at = self._filled[1]
        self._columns[1][at] = (step - self._first_step, keys, op, width, 0)
        self._filled[1] = at + 1

    def write(self, stream: BinaryIO) -> None:
        """Write the block: frame, head, columns."""
        for name, count in zip(("steps", "batches", "asked", "questions", "taught"), self._filled, strict=True):
            self.head[name] = count
        self.head["first_step"] = self._first_step
        parts = [self.head.tobytes()]
        parts += [c[:n].tobytes() for c, (_, n) in zip(self._columns, column_types(*self._filled), strict=True)]
        payload = b"".join(parts)
        frame = np.array([(BLOCK_MAGIC, len(payload), xxhash.xxh3_64_intdigest(payload))], BLOCK_FRAME)
        left = memoryview(frame.tobytes() + payload)
        while left:
            left = left[stream.write(left) :]

    def clear(self) -> None:
        self._filled = [0, 0, 0, 0, 0]
