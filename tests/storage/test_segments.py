"""Segments: what is written comes back in order, damage is dropped and counted, nothing else is touched."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from records import WORDS, rows_of, spread

from flashnest.storage.segments import HEADER_BYTES, Batch, SegmentLog, batch_bytes


def batch(start: int, count: int = 20, removes: int = 3) -> Batch:
    keys = spread(start, count)
    return Batch(keys, rows_of(keys), spread(start + 1000, removes))


def open_log(path: Path, store_id: int = 7) -> SegmentLog:
    return SegmentLog(path / "segments", words=WORDS, store_id=store_id)


def same(one: Batch, other: Batch) -> bool:
    pairs = ((one.keys, other.keys), (one.rows, other.rows), (one.removes, other.removes))
    return all(np.array_equal(a, b) for a, b in pairs)


def test_batches_come_back_in_the_order_of_their_writing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    written = [batch(0), batch(50, removes=0), batch(90, count=0)]
    for one in written[:2]:
        log.write(one)
        log.sync()
    log.close()
    log.write(written[2])  # another segment
    log.close()
    again = open_log(tmp_path)
    assert all(same(a, b) for a, b in zip(again.replay(), written, strict=True))
    assert again.dropped == 0
    assert len(list((tmp_path / "segments").iterdir())) == 2
    assert (
        again.bytes_held == log.bytes_written == sum(batch_bytes(len(b.keys), len(b.removes), WORDS) for b in written)
    )
    again.close()


def test_new_segment_never_overwrites_one_that_is_there(tmp_path: Path) -> None:
    for start in range(12):
        log = open_log(tmp_path)
        log.write(batch(start * 30))
        log.close()
    log = open_log(tmp_path)
    assert [int(one.keys[0]) for one in log.replay()] == [int(spread(start * 30, 1)[0]) for start in range(12)]


def test_dropped_segments_are_gone(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.write(batch(0))
    log.drop()
    assert (log.bytes_held, list(log.replay()), list((tmp_path / "segments").iterdir())) == (0, [], [])
    log.write(batch(1))
    assert len(list(log.replay())) == 1
    log.close()


@pytest.mark.parametrize("place", [0, 9, 17, 25, 29, 33, 41, HEADER_BYTES, HEADER_BYTES + 700])
def test_damaged_batch_is_dropped_alone_and_counted(tmp_path: Path, place: int) -> None:
    log = open_log(tmp_path)
    for start in (0, 50, 90):
        log.write(batch(start))
    log.close()
    path = next((tmp_path / "segments").iterdir())
    content = bytearray(path.read_bytes())
    content[batch_bytes(20, 3, WORDS) + place] ^= 0x10
    path.write_bytes(content)
    again = open_log(tmp_path)
    left = list(again.replay())
    assert [same(a, b) for a, b in zip(left, [batch(0), batch(90)], strict=True)] == [True, True]
    assert again.dropped == 1


def test_every_cut_keeps_exactly_the_whole_batches(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for start in (0, 50):
        log.write(batch(start))
    log.close()
    path = next((tmp_path / "segments").iterdir())
    content, size = path.read_bytes(), batch_bytes(20, 3, WORDS)
    for cut in range(0, 2 * size, 97):
        path.write_bytes(content[:cut])
        again = open_log(tmp_path)
        assert len(list(again.replay())) == cut // size
        assert again.dropped == bool(cut % size)


def test_batches_of_another_store_or_width_are_not_ours(tmp_path: Path) -> None:
    log = open_log(tmp_path, store_id=7)
    log.write(batch(0))
    log.close()
    other = open_log(tmp_path, store_id=8)
    assert (list(other.replay()), other.dropped) == ([], 1)
    wider = SegmentLog(tmp_path / "segments", words=WORDS + 1, store_id=7)
    assert (list(wider.replay()), wider.dropped) == ([], 1)


def test_failed_write_leaves_the_segment_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    log.write(batch(0))
    written = os.pwrite

    def half_then_fail(fd: int, data: bytes, at: int) -> int:
        if len(data) < 500:
            raise OSError(28, "No space left on device")
        return written(fd, data[: len(data) - 400], at)

    monkeypatch.setattr("os.pwrite", half_then_fail)
    with pytest.raises(OSError, match="No space"):
        log.write(batch(50))
    monkeypatch.undo()
    log.write(batch(90))
    log.close()
    again = open_log(tmp_path)
    assert [same(a, b) for a, b in zip(again.replay(), [batch(0), batch(90)], strict=True)] == [True, True]
    assert (again.dropped, again.bytes_held) == (0, log.bytes_held)
