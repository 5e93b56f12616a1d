"""The VRAM table beside a dict, under random batches that overflow tiny tables."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from records import WORDS, rows_of

from flashnest.record import (
    ACCEPTED,
    CHAIN,
    DRAFTED,
    HITS,
    INSERTED,
    LAST_ACCESS,
    META,
    REFS,
    Kind,
    U32Array,
    U64Array,
)
from flashnest.storage.store import Found, State
from flashnest.storage.vram import VramTable
from flashnest.storage.vram_ops import homes_of
from flashnest.storage.vram_planes import planes_bytes

KEYS = st.integers(0, 70).map(lambda i: i * 0x9E3779B97F4A7C15 % (1 << 64))
INSERT = st.lists(st.tuples(KEYS, st.integers(0, 2), st.integers(0, 3), st.sampled_from(Kind)), max_size=60)
BATCH = st.lists(KEYS, max_size=40)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), INSERT),
        st.tuples(st.just("insert_many"), INSERT),
        st.tuples(st.just("fit"), INSERT),
        st.tuples(st.just("lookup"), BATCH),
        st.tuples(st.just("remove"), BATCH),
        st.tuples(st.just("feedback"), BATCH),
        st.tuples(st.just("evict"), st.integers(0, 20)),
    ),
    max_size=12,
)


@dataclass
class Model:
    """What `Store` says, one record at a time."""

    now: int = 100
    rows: dict[int, list[int]] = field(default_factory=dict)

    def put(self, key: int, row: U32Array) -> None:
        new = [int(word) for word in row]
        if new[INSERTED] == 0:
            new[INSERTED] = new[LAST_ACCESS] = self.now
        old = self.rows.get(key)
        if old is not None and (old[META] & 0xFF, old[CHAIN]) == (new[META] & 0xFF, new[CHAIN]):
            for word in (HITS, INSERTED, DRAFTED, ACCEPTED):
                new[word] = old[word]
            if new[META] & 0xFF == Kind.NGRAM:
                new[REFS] = old[REFS] + max(1, new[REFS])
        self.rows[key] = new

    def touch(self, keys: list[int]) -> None:
        for key in keys:
            if key in self.rows:
                self.rows[key][HITS] += 1
                self.rows[key][LAST_ACCESS] = self.now

    def feed(self, keys: list[int]) -> None:
        for key in keys:
            if key in self.rows:
                self.rows[key][DRAFTED] += 3
                self.rows[key][ACCEPTED] += 2


def batch_of(records: list[tuple[int, int, int, Kind]]) -> tuple[U64Array, U32Array]:
    keys = np.array([key for key, *_ in records], np.uint64)
    rows = rows_of(keys)
    for row, (_, first, refs, kind) in zip(rows, records, strict=True):
        row[CHAIN], row[REFS], row[META] = first, refs, row[META] & ~np.uint32(0xFF) | kind
    return keys, rows


def held_by(table: VramTable) -> dict[int, list[int]]:
    held = {}
    for keys, rows in table.scan():
        for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
            assert key not in held, "a record is stored twice"
            held[key] = row
    return held


def assert_full(table: VramTable, keys: U64Array) -> None:
    """A refused key had no room: the table holds its most, or both of its buckets are full."""
    if len(table) < table.max_records:
        homes = homes_of(table.planes, torch.from_numpy(keys.view(np.int64)))
        assert bool((table.planes.lines[homes] != 0).all())


def insert_in_parts(table: VramTable, model: Model, keys: U64Array, rows: U32Array) -> None:
    """Insert through numpy, in parts: a later part may take the place of what an earlier one stored or kept."""
    evicted = table.evicted
    stored = table.insert_many(keys, rows)
    assert (stored == table.contains_many(keys)).all()
    last = dict(zip(keys.tolist(), rows, strict=True))
    held = held_by(table)
    for key in held.keys() & last.keys():
        assert held[key][CHAIN:] == last[key][CHAIN:].tolist()
        model.rows[key] = held[key]
    lost = set(model.rows) - set(held)
    assert len(lost) <= table.evicted - evicted
    for key in lost:
        del model.rows[key]


def step(table: VramTable, model: Model, action: str, with_what: object) -> None:
    if action in ("insert", "fit"):
        keys, rows = batch_of(with_what)
        if action == "insert":
            stored = table.insert(torch.from_numpy(keys.view(np.int64)), torch.from_numpy(rows.view(np.int32))).numpy()
        else:
            stored = table.insert_fitting(keys, rows)
        assert stored[[key in model.rows for key in keys.tolist()]].all()
        for key, row, there in zip(keys.tolist(), rows, stored, strict=True):
            if there:
                model.put(key, row)
        if action == "fit":
            assert_full(table, keys[~stored & (keys != 0)])
    elif action == "insert_many":
        insert_in_parts(table, model, *batch_of(with_what))
    elif action == "evict":
        keys, rows = table.evict_many(with_what)
        assert len(keys) == min(with_what, len(model.rows))
        for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
            assert model.rows.pop(key) == row
    else:
        keys = np.array(with_what, np.uint64)
        if action == "lookup":
            found = Found.allocate(len(keys), WORDS)
            table.lookup_many(keys, found)
            model.touch(with_what)
            assert (found.state == State.HIT).tolist() == [key in model.rows for key in with_what]
            for key, row in zip(with_what, found.rows.tolist(), strict=True):
                assert key not in model.rows or row == model.rows[key]
        elif action == "remove":
            assert table.remove_many(keys).tolist() == [model.rows.pop(key, None) is not None for key in with_what]
        else:
            table.feedback_many(keys, np.full(len(keys), 3, np.uint32), np.full(len(keys), 2, np.uint32))
            model.feed(with_what)


@pytest.mark.parametrize("buckets", [1, 3])
@settings(max_examples=80, deadline=None)
@given(steps=STEPS)
def test_table_equals_a_dict_whatever_comes(buckets: int, steps: list[tuple[str, object]]) -> None:
    """What new records pushed out is gone from the dict too; everything else is equal, and counted."""
    model = Model()
    table = VramTable(planes_bytes(buckets, WORDS), words=WORDS, clock_s=lambda: model.now, device="cpu")
    for action, with_what in steps:
        model.now += 7
        evicted = table.evicted
        step(table, model, action, with_what)
        held = held_by(table)
        pushed_out = set(model.rows) - set(held)
        if action == "insert":
            assert len(pushed_out) <= table.evicted - evicted
            for key in pushed_out:
                del model.rows[key]
        assert held == model.rows
        assert len(table) == len(held) <= table.max_records
    stats = table.stats()
    assert stats.inserts - stats.removes - stats.evicted == stats.records
