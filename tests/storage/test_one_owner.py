"""Exactly one tier owns a record, whatever happens: random interleavings over three tiers against a plain dict.

The dict knows which records must be there and which chain they may have. After every action each record has one owner
at most; what is missing was removed, or is counted as evicted or refused by the disk; nothing is there that should not
be; every row is its record's; no tier passes its budget.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moving_tiers import NOWHERE, DictStore, Rig, Rule, rig
from records import rows_of

from flashnest.record import CHAIN, Tier, U64Array
from flashnest.storage.store import State

VRAM, DRAM, NVME = Tier.VRAM, Tier.DRAM, Tier.NVME
UNIVERSE = np.arange(1, 101, dtype=np.uint64)
TAILS = rows_of(UNIVERSE)[:, CHAIN + 1 :]

RULES = (
    Rule("keep", DRAM, condition=lambda facts: facts.refs >= 3),
    Rule("promote", NVME, DRAM, lambda facts: facts.hits >= 2, cooldown_s=2),
    Rule("promote", NVME, VRAM, lambda facts: facts.window_hits[0] >= 1, most_records_per_s=50),
    Rule("promote", DRAM, VRAM, lambda facts: facts.hits >= 3, min_residency_s=3),
    Rule("demote", VRAM, DRAM, when_fill=0.5, until_fill=0.2, order=("hits", False)),
    Rule("demote", DRAM, NVME, when_fill=0.6, until_fill=0.3, order=("idle", True), most_bytes_per_s=4000),
    Rule("demote", VRAM, NVME, lambda facts: facts.idle_s >= 90),
    Rule("demote", DRAM, NVME, lambda facts: facts.idle_s >= 40),
    Rule("evict", DRAM, when_fill=0.9, until_fill=0.8, using="s3fifo"),
    Rule("evict", NVME, when_fill=0.5, until_fill=0.3, using="sieve"),
    Rule("evict", NVME, condition=lambda facts: facts.idle_s >= 300),
)


class Model:
    """A rig, and beside it what it must hold: key to the first tokens that its chain may have."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.held: dict[int, set[int]] = {}
        self.ever: dict[int, set[int]] = {}
        ticks = count(0, 15_000)
        assert rig.router._sweep is not None
        rig.router._sweep._clock_ns = lambda: int(rig.clock.now * 1e9) + next(ticks)

    def losses(self) -> int:
        """Return how many records were given up so far, by the counters."""
        stats, writes = self.rig.router.stats(), self.rig.cold._writes
        evicted = sum(rule.moved for rule in stats.moves if rule.action == "evict")
        return evicted + stats.pushed_out + self.rig.dram.evicted + writes.rejected + writes.errors

    def act(self, name: str, keys: U64Array, number: int) -> None:
        losses, r = self.losses(), self.rig
        if name == "insert":
            self.insert(keys, 1 + number % 5, 1 + number % 7)
        elif name == "remove":
            self.remove(keys)
        elif name == "lookup":
            self.lookup(keys)
        elif name == "longest":
            self.longest(keys)
        elif name == "feedback":
            r.router.feedback_many(keys, np.full(len(keys), 9, np.uint32), np.full(len(keys), number % 9, np.uint32))
        elif name == "sweep":
            r.router.sweep((number % 8 + 1) * 40e-6)
        elif name == "read":
            r.router.submit()
            r.router.wait(0.0)
        elif name == "drain":
            answers = r.router.drain()
            for key, row in zip(answers.keys[answers.hit].tolist(), answers.rows[answers.hit], strict=True):
                assert int(row[CHAIN]) in self.ever[key]
        elif name == "work":
            r.cold.pump_slice()
        elif name == "pump":
            r.cold.pump()
        elif name == "flush":
            r.router.flush()
        else:
            r.clock.now += number
        self.check(self.losses() - losses)

    def insert(self, keys: U64Array, tokens: int, chain: int) -> None:
        before = self.rig.owners(UNIVERSE)
        rows = rows_of(keys, tokens=tokens, chain=chain)
        rows[:, 7] = 1 + keys.astype(np.uint32) % 4
        stored = self.rig.router.insert_many(keys, rows)
        assert not stored.any() or tokens != NOWHERE
        for key in set(keys[stored].tolist()):
            known = self.held.get(key) if before[NVME][key - 1] else None
            self.held[key] = {chain} | (known or set())
            self.ever.setdefault(key, set()).add(chain)
        owners = self.rig.owners(keys)
        assert (owners[VRAM] | owners[DRAM] | owners[NVME])[stored].all(), "what is said to be stored is"

    def remove(self, keys: U64Array) -> None:
        """A removal that the cold tier cannot note, its buffer being full and its writer behind, is refused."""
        removed = self.rig.router.remove_many(keys)
        owners = self.rig.owners(keys)
        assert not (owners[DRAM] | owners[VRAM]).any()
        for key in keys[removed].tolist():
            self.held.pop(key, None)

    def lookup(self, keys: U64Array) -> None:
        found = self.rig.ask(keys)
        for i, key in enumerate(keys.tolist()):
            if found.state[i] == State.HIT:
                assert int(found.rows[i, CHAIN]) in self.held[key]
            elif key in self.held:
                assert found.state[i] == State.PENDING or self.rig.router.stats().cold.dropped

    def longest(self, keys: U64Array) -> None:
        keys = np.resize(keys, (len(keys) // 3 + 1, 3))
        index = np.zeros(len(keys), np.int64)
        self.rig.router.longest_many(keys, np.arange(len(keys), dtype=np.int64) * 8, self.rig.found, index)
        for i, at in enumerate(index.tolist()):
            if at >= 0:
                assert int(self.rig.found.rows[i, CHAIN]) in self.held[int(keys[i, at])]

    def check(self, given_up: int) -> None:
        r = self.rig
        owners = r.owners(UNIVERSE)
        number = sum(owner.astype(int) for owner in owners.values())
        assert number.max() <= 1, f"two owners of {UNIVERSE[number > 1]}"
        present = set(UNIVERSE[number > 0].tolist())
        assert present <= set(self.held), f"back from the dead: {present - set(self.held)}"
        lost = set(self.held) - present
        assert len(lost) <= given_up, f"lost without being counted: {lost}"
        for key in lost:
            del self.held[key]
        self.check_rows(owners)
        for table in (r.dram, r.vram):
            assert len(table) <= table.max_records
            assert table.bytes_used <= table.stats().bytes_budget

    def check_rows(self, owners: dict[Tier, np.ndarray]) -> None:
        r = self.rig
        for tier, table in ((DRAM, r.dram), (VRAM, r.vram)):
            keys = UNIVERSE[owners[tier]]
            table.peek_many(keys, r.found)
            self.check_chains(keys, r.found.rows[: len(keys)])
        keys = UNIVERSE[owners[NVME]]
        known = r.cold.lookup_buffered(keys, r.found)
        self.check_chains(keys[known], r.found.rows[: len(keys)][known])
        keys = keys[~known]
        r.cold._store.lookup_many(keys, r.found)
        self.check_chains(keys, r.found.rows[: len(keys)])

    def check_chains(self, keys: U64Array, rows: np.ndarray) -> None:
        assert (rows[:, CHAIN + 1 :] == TAILS[keys.astype(np.int64) - 1]).all()
        for key, first in zip(keys.tolist(), rows[:, CHAIN].tolist(), strict=True):
            assert first in self.held[key]
            self.held[key] = {first}


NAMES = [
    *("insert", "insert", "insert", "lookup", "lookup", "longest", "remove", "feedback"),
    *("sweep", "sweep", "sweep", "sweep", "read", "read", "drain", "drain", "work", "pump", "flush", "clock"),
]
KEYS = st.lists(st.integers(1, 100), min_size=1, max_size=60)
ACTION = st.tuples(st.sampled_from(NAMES), KEYS, st.integers(0, 120))


def play(model: Model, actions: list[tuple[str, list[int], int]]) -> None:
    for name, keys, number in actions:
        model.act(name, np.array(keys, np.uint64), number)
    model.rig.router.close()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(units=st.integers(1, 4), room=st.integers(20, 200), actions=st.lists(ACTION, min_size=5, max_size=60))
def test_one_owner_under_any_interleaving(tmp_path: Path, units: int, room: int, actions: list) -> None:
    play(Model(small(tmp_path, units, DictStore(room))), actions)


@pytest.mark.parametrize("seed", range(3))
def test_one_owner_over_lmdb(tmp_path: Path, seed: int) -> None:
    """One long run a seed over the real engine; each action as often as hypothesis would choose it."""
    random = np.random.default_rng(seed)
    actions = [
        (
            NAMES[random.integers(len(NAMES))],
            random.integers(1, 101, random.integers(1, 60)).tolist(),
            int(random.integers(121)),
        )
        for _ in range(400)
    ]
    model = Model(small(tmp_path, 2, None))
    play(model, actions)
    moves = model.rig.router._sweep.stats()  # type: ignore[union-attr]
    assert sum(rule.moved for rule in moves if rule.action == "promote") > 100
    assert sum(rule.moved for rule in moves if rule.action == "demote") > 50


def small(path: Path, units: int, store: DictStore | None) -> Rig:
    return rig(
        path / "db",
        *RULES,
        windows_s=(60,),
        units=units,
        vram_units=2,
        store=store,
        flush_records=40,
        buffer_bytes=10_000,
        touch_bytes=1 << 12,
    )
