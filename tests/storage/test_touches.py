"""Touches of cold records: counted by key, merged into rows, bounded."""

from __future__ import annotations

import numpy as np
from records import keys_of, rows_of, spread

from flashnest.record import HITS, LAST_ACCESS
from flashnest.storage.touches import ENTRY_BYTES, Touches


def test_hits_and_last_access_are_merged_into_rows_and_kept() -> None:
    touches = Touches(1 << 16)
    touches.touch_many(keys_of(1, 2, 1), 50)
    touches.touch_many(keys_of(2), 60)
    rows = rows_of(keys_of(1, 2, 3))
    rows[:, HITS], rows[:, LAST_ACCESS] = 10, 55
    for hits in ([12, 12, 10], [14, 14, 10]):
        touches.merge_many(keys_of(1, 2, 3), rows)
        assert rows[:, HITS].tolist() == hits
        assert rows[:, LAST_ACCESS].tolist() == [55, 60, 55]


def test_forgotten_counts_are_gone() -> None:
    touches = Touches(1 << 16)
    touches.touch_many(keys_of(1, 2), 50)
    touches.forget_many(keys_of(1, 2))
    rows = rows_of(keys_of(1, 2))
    touches.merge_many(keys_of(1, 2), rows)
    assert rows[:, HITS].tolist() == [0, 0]


def test_key_zero_is_never_counted() -> None:
    touches = Touches(1 << 16)
    touches.touch_many(keys_of(0, 0), 50)
    rows = rows_of(keys_of(0))
    touches.merge_many(keys_of(0), rows)
    assert rows[0, HITS] == 0


def test_memory_is_fixed_and_the_longest_untouched_make_room() -> None:
    touches = Touches(1 << 16)
    assert touches.bytes_used <= 1 << 16
    room = touches.bytes_used // ENTRY_BYTES
    lately = spread(0, room // 8)
    old = spread(10_000_000, 4 * room)
    touches.touch_many(old, 10)
    touches.touch_many(lately, 20)
    touches.touch_many(old[:room], 5)
    rows = rows_of(lately)
    touches.merge_many(lately, rows)
    assert np.count_nonzero(rows[:, HITS] == 1) > 0.99 * len(lately)
    assert touches.bytes_used <= 1 << 16


def test_hits_saturate() -> None:
    touches = Touches(128)
    touches.touch_many(keys_of(1), 5)
    rows = rows_of(keys_of(1))
    rows[0, HITS] = 0xFFFF_FFFF
    touches.merge_many(keys_of(1), rows)
    assert rows[0, HITS] == 0xFFFF_FFFF
