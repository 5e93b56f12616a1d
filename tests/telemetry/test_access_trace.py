"""The access trace's file: what is written comes back, what is torn or damaged is dropped and counted."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashnest.errors import WorkloadError
from flashnest.record import META, NAMESPACE, Kind, namespace_id, namespace_salt, pack_meta, row_words
from flashnest.telemetry.access_trace import AccessLog, is_access_trace, read_access_trace
from flashnest.telemetry.trace_writer import TraceWriter

HEADER: dict[str, Any] = {"title": "a test", "ngram_lengths": [8, 16, 32], "record_bytes": 72, "namespaces": ["acme"]}
SALT = namespace_salt("acme")


class Clock:
    """Goes on by 20 ms each time it is read."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        self.now_s += 0.02
        return self.now_s


def open_writer(path: Path, **options: Any) -> TraceWriter:
    return TraceWriter(path, HEADER, **{"limit_bytes": 1 << 30, "threaded": False, "clock_s": Clock(), **options})


def taught_rows(keys: int, tokens: int = 16, kind: Kind = Kind.NGRAM) -> np.ndarray:
    rows = np.zeros((keys, row_words()), np.uint32)
    rows[:, META] = pack_meta(kind, tokens, 5)
    rows[:, NAMESPACE] = namespace_id("acme")
    return rows


def record_steps(writer: TraceWriter, steps: int, questions: int = 3) -> None:
    """Each step asks 2 chunks and `questions` questions of 3 lengths, and teaches 4 records; keys tell which."""
    for step in range(steps):
        base = 1 + 1000 * step
        writer.begin_step()
        writer.ask_chunks(np.arange(base, base + 2, dtype=np.uint64))
        asked = np.arange(base + 10, base + 10 + 3 * questions, dtype=np.uint64).reshape(questions, 3)
        asked[0, 2] = 0  # a text shorter than 32 tokens
        writer.ask_ngrams(asked, np.full(questions, SALT, np.uint64))
        writer.teach(np.arange(base + 500, base + 504, dtype=np.uint64), taught_rows(4))


def test_what_is_recorded_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run.trace"
    writer = open_writer(path)
    record_steps(writer, 2)
    writer.close()
    log = read_access_trace(path)
    assert is_access_trace(path.read_bytes()[:8])
    assert log.header == HEADER
    assert log.key.tolist() == [
        *(1, 2, 12, 11, 16, 15, 14, 19, 18, 17, 501, 502, 503, 504),
        *(1001, 1002, 1012, 1011, 1016, 1015, 1014, 1019, 1018, 1017, 1501, 1502, 1503, 1504),
    ]
    assert log.step.tolist() == [0] * 14 + [1] * 14
    assert log.taught.tolist() == ([False] * 10 + [True] * 4) * 2
    assert log.question.tolist()[:14] == [0, 1, 2, 2, 3, 3, 3, 4, 4, 4, -1, -1, -1, -1]
    assert log.question.tolist()[14:24] == [5, 6, 7, 7, 8, 8, 8, 9, 9, 9]
    assert log.tokens.tolist()[:14] == [32, 32, 16, 8, 32, 16, 8, 32, 16, 8, 16, 16, 16, 16]
    assert log.kind.tolist()[:14] == [1, 1] + [0] * 12
    assert set(log.namespace[2:14].tolist()) == {namespace_id("acme")}
    assert np.diff(log.step_ms).tolist() == [20]
    assert (log.damaged, log.dropped) == (0, 0)
    stats = writer.stats()
    assert (stats.accesses, stats.steps, stats.bytes_written) == (30, 2, path.stat().st_size)


def test_many_small_blocks_hold_the_same_as_one(tmp_path: Path) -> None:
    logs = []
    for block_keys in (16, 1 << 12):
        writer = open_writer(tmp_path / f"{block_keys}.trace", block_keys=block_keys)
        record_steps(writer, 50)
        writer.close()
        logs.append(read_access_trace(tmp_path / f"{block_keys}.trace"))
    small, large = logs
    assert small.key.tolist() == large.key.tolist()
    assert small.step.tolist() == large.step.tolist()
    assert small.question.tolist() == large.question.tolist()
    assert len(small.step_ms) == len(large.step_ms) == 50


def test_more_than_a_block_of_records_is_taught_in_parts(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "t", block_keys=16)
    writer.begin_step()
    writer.teach(np.arange(1, 101, dtype=np.uint64), taught_rows(100))
    writer.close()
    assert read_access_trace(tmp_path / "t").key.tolist() == list(range(1, 101))


def test_a_thread_writes_the_same(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "t", threaded=True)
    record_steps(writer, 50)
    writer.close()
    writer.close()
    assert len(read_access_trace(tmp_path / "t").step_ms) == 50


def blocks_of(tmp_path: Path) -> tuple[Path, AccessLog]:
    path = tmp_path / "run.trace"
    writer = open_writer(path, block_keys=64)
    record_steps(writer, 40)
    writer.close()
    return path, read_access_trace(path)


@pytest.mark.parametrize("missing", [1, 7, 40, 300])
def test_a_torn_end_is_dropped_and_counted(tmp_path: Path, missing: int) -> None:
    path, whole = blocks_of(tmp_path)
    path.write_bytes(path.read_bytes()[:-missing])
    torn = read_access_trace(path)
    kept = len(torn.key)
    assert torn.damaged == 1
    assert 0 < kept < len(whole.key)
    assert torn.key.tolist() == whole.key[:kept].tolist()


def test_a_damaged_block_is_dropped_and_the_rest_is_read(tmp_path: Path) -> None:
    path, whole = blocks_of(tmp_path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    log = read_access_trace(path)
    assert log.damaged == 1
    assert len(log.step_ms) == len(whole.step_ms)
    assert (np.diff(log.step_ms) >= 0).all()
    assert log.key[-1] == whole.key[-1]
    assert set(log.key.tolist()) < set(whole.key.tolist())


def test_a_file_cut_anywhere_never_brings_a_wrong_key(tmp_path: Path) -> None:
    path, whole = blocks_of(tmp_path)
    data = path.read_bytes()
    known = set(whole.key.tolist())
    for size in range(0, len(data), 97):
        path.write_bytes(data[:size])
        with suppress(WorkloadError):
            assert set(read_access_trace(path).key.tolist()) <= known


def test_the_first_steps_can_be_read_alone(tmp_path: Path) -> None:
    path, _ = blocks_of(tmp_path)
    log = read_access_trace(path, limit=7)
    assert (len(log.step_ms), int(log.step.max())) == (7, 6)


def test_recording_ends_at_the_limit(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "t", block_keys=64, limit_bytes=4000)
    record_steps(writer, 200)
    writer.close()
    assert writer.stats().full
    assert (tmp_path / "t").stat().st_size <= 4000
    assert 0 < len(read_access_trace(tmp_path / "t").step_ms) < 200


def test_what_the_disk_cannot_take_is_dropped_and_counted(tmp_path: Path) -> None:
    """A pipe that nobody reads takes 64 KiB; then both buffers are full, and no call waits."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = open_writer(pipe, threaded=True, block_keys=4096)
    record_steps(writer, 20_000)
    dropped = writer.stats().dropped
    data = bytearray()
    os.set_blocking(reader, True)
    draining = threading.Thread(target=lambda: data.extend(iter_bytes(reader)))
    draining.start()
    writer.close()
    draining.join()
    os.close(reader)
    (tmp_path / "t").write_bytes(data)
    log = read_access_trace(tmp_path / "t")
    assert dropped > 0
    assert log.damaged == 0
    assert writer.stats().accesses + writer.stats().dropped == 20_000 * 15
    assert 0 < len(log.key) < 20_000 * 14


def iter_bytes(reader: int) -> bytes:
    parts = []
    while part := os.read(reader, 1 << 20):
        parts.append(part)
    return b"".join(parts)


class FullDisk:
    """A stream whose every write fails."""

    def write(self, data: memoryview) -> int:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        pass


def test_a_full_disk_ends_the_trace_not_the_run(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "t", block_keys=64)
    writer._stream.close()
    writer._stream = FullDisk()  # type: ignore[assignment]
    record_steps(writer, 100)
    writer.close()
    assert writer.stats().error == "No space left on device"


def test_a_file_that_cannot_be_made_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"cannot write the trace .*\n.*No space.*\n.*trace\.path=FILE"):
        open_writer(Path("/dev/full"))


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"something else that is long enough")
    with pytest.raises(WorkloadError, match="is no access trace"):
        read_access_trace(path)
    writer = open_writer(path)
    writer.close()
    with pytest.raises(WorkloadError, match="holds no whole block"):
        read_access_trace(path)
    data = bytearray(path.read_bytes())
    data[8] = 9
    path.write_bytes(data)
    with pytest.raises(WorkloadError, match="of version 9"):
        read_access_trace(path)
    data[8], data[20] = 1, data[20] ^ 1
    path.write_bytes(data)
    with pytest.raises(WorkloadError, match=r"header of .* is damaged"):
        read_access_trace(path)
