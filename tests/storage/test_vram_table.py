"""The VRAM table on the CPU: the contract, its budget, load, eviction, facts, and a dict beside it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from contract import StoreContract, clock  # noqa: F401
from records import WORDS, Clock, Placement, keys_of, rows_of, same_chains, spread

from flashnest.errors import StoreClosedError, StoreError, StoreFullError
from flashnest.record import ACCEPTED, CHAIN, DRAFTED, HITS, LAST_ACCESS, REFS, Kind, Tier, U64Array, row_words
from flashnest.storage import vram_ops
from flashnest.storage.router import Router
from flashnest.storage.store import Found, State
from flashnest.storage.table import DramTable
from flashnest.storage.vram import VramTable
from flashnest.storage.vram_planes import BUCKET_SLOTS, buckets_in, planes_bytes


def table_of(buckets: int, *, clock_s=lambda: 5, words: int = WORDS, evict: bool = True) -> VramTable:
    return VramTable(planes_bytes(buckets, words), words=words, clock_s=clock_s, device="cpu", evict=evict)


def look(table: VramTable, keys: U64Array) -> Found:
    found = Found.allocate(len(keys), table.words)
    table.lookup_many(keys, found)
    return found


def tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.view(np.int64 if array.dtype == np.uint64 else np.int32).copy())


class TestContract(StoreContract):
    tier = Tier.VRAM

    @pytest.fixture
    def store(self, clock: Clock) -> VramTable:  # noqa: F811
        return VramTable(40_000, words=WORDS, clock_s=clock.whole, device="cpu")


class TestBudget:
    @pytest.mark.parametrize("words", [15, 16, 39])
    def test_table_takes_what_it_says_and_nearly_all_that_it_may(self, words: int) -> None:
        for budget in (planes_bytes(1, words), 10_000, 123_457, 1 << 20):
            table = VramTable(budget, words=words, clock_s=lambda: 5, device="cpu")
            held = table.planes.allocated
            assert table.bytes_used == held.untyped_storage().nbytes() == table.stats().bytes_used <= budget
            assert planes_bytes(buckets_in(budget, words) + 1, words) > budget
            assert table.max_records == int(0.8 * table.planes.slots)

    def test_budget_below_one_bucket_is_refused(self) -> None:
        with pytest.raises(StoreFullError, match=f"the smallest table takes {planes_bytes(1, WORDS)} bytes"):
            VramTable(planes_bytes(1, WORDS) - 1, words=WORDS, clock_s=lambda: 5, device="cpu")

    def test_budget_above_free_memory_is_refused(self) -> None:
        with pytest.raises(StoreFullError, match="does not fit on cpu") as raised:
            VramTable(1 << 52, words=WORDS, clock_s=lambda: 5, device="cpu")
        assert "are free there" in raised.value.why
        assert "smaller capacity" in raised.value.fix

    def test_missing_device_is_refused(self) -> None:
        with pytest.raises(StoreError, match="has no device cuda:99"):
            VramTable(1 << 20, words=WORDS, clock_s=lambda: 5, device="cuda:99")

    def test_closed_table_gives_its_memory_back_and_keeps_its_figures(self) -> None:
        table = table_of(4)
        table.insert_many(spread(0, 10), rows_of(spread(0, 10)))
        table.close()
        assert (table.stats().bytes_used, table.stats().records) == (0, 10)
        with pytest.raises(StoreClosedError):
            table.lookup(torch.zeros(1, dtype=torch.int64))


def test_storage_does_not_import_torch_before_it_is_asked() -> None:
    code = "import sys, flashnest.storage.router; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestLoad:
    @pytest.mark.parametrize("buckets", [64, 1000])
    def test_random_keys_fill_the_table_to_the_last_record(self, buckets: int) -> None:
        """Up to load 0.8 every record finds a slot in one of its two buckets."""
        table = table_of(buckets, evict=False)
        keys = np.random.default_rng(buckets).integers(1, 1 << 63, table.max_records, np.uint64)
        assert table.insert_many(keys, rows_of(keys)).all()
        assert table.stats().fill == 1.0
        assert table.free_records == 0
        assert not table.insert_many(spread(0, 3), rows_of(spread(0, 3))).any()
        assert table.stats().rejected == 3
        assert (look(table, keys).state == State.HIT).all()

    def test_one_batch_of_tensors_may_fill_a_small_table(self) -> None:
        """Sixteen free slots in each bucket, and 256 keys that all choose at once."""
        table = table_of(20, evict=False)
        keys = spread(0, 256)
        stored = table.insert(tensor(keys), tensor(rows_of(keys))).numpy()
        assert stored.all()
        assert len(table) == 256
        assert same_chains(look(table, keys).rows, keys)

    def test_emptied_slots_are_used_again(self) -> None:
        table = table_of(8, evict=False)
        for start in range(0, 1000, 100):
            keys = spread(start, 100)
            assert table.insert_many(keys, rows_of(keys)).all()
            assert table.remove_many(keys).all()
        assert len(table) == 0
        assert table.stats().removes == 1000

    def test_rows_of_any_width_come_back_whole(self) -> None:
        for words in (15, 16, row_words(31)):
            table, keys = table_of(64, words=words), spread(0, 300)
            table.insert_many(keys, rows_of(keys, words=words))
            assert same_chains(look(table, keys).rows, keys)


class TestEviction:
    def test_records_in_use_outlive_the_others(self) -> None:
        """Both buckets of a table of two hold every record, so that the least recently used of all must go."""
        table = table_of(2)
        keys = spread(0, table.max_records)
        for i in range(len(keys)):
            table.insert_many(keys[i : i + 1], rows_of(keys[i : i + 1]))
        look(table, keys[:10])
        new = spread(1000, 8)
        assert table.insert_many(new, rows_of(new)).all()
        there = table.contains_many(keys)
        assert there[:10].all()
        homes = vram_ops.homes_of(table.planes, tensor(np.concatenate([keys, new])))
        if bool((homes[:, 0] != homes[:, 1]).all()):
            assert not there[10:18].any()
        assert len(table) == table.max_records
        assert table.evicted == table.stats().evicted == 8

    def test_a_batch_never_takes_its_own_records(self) -> None:
        table = table_of(4)
        keys = spread(0, 200)
        stored = table.insert(tensor(keys), tensor(rows_of(keys))).numpy()
        assert (table.contains_many(keys) == stored).all()
        assert np.count_nonzero(stored) == len(table) <= table.max_records
        again = table.insert(tensor(keys[~stored]), tensor(rows_of(keys[~stored]))).numpy()
        assert again.any()
        assert len(table) <= table.max_records

    def test_learning_a_record_again_is_a_use_of_it(self) -> None:
        table, keys = table_of(1), spread(0, 12)
        table.insert_many(keys, rows_of(keys))
        table.insert_many(keys[:5], rows_of(keys[:5]))
        new = spread(100, 7)
        batch = np.concatenate([new, keys[:2]])
        assert table.insert_many(batch, rows_of(batch)).all()
        assert table.contains_many(keys).tolist() == [True] * 5 + [False] * 7

    def test_keys_that_share_both_buckets_crowd_out_others_but_not_each_other(self) -> None:
        """Twenty keys for one bucket of an otherwise empty table: sixteen are stored, and stay so in the same call."""
        table, keys = table_of(64), spread(0, 200_000)
        homes = vram_ops.homes_of(table.planes, tensor(keys)).numpy()
        crowd = keys[(homes == 7).all(1)][:20]
        assert len(crowd) == 20
        stored = table.insert_many(crowd, rows_of(crowd))
        assert np.count_nonzero(stored) == len(table) == 16
        assert (table.contains_many(crowd) == stored).all()
        assert (table.stats().rejected, table.evicted) == (4, 0)

    def test_answer_is_true_for_a_batch_larger_than_the_table(self) -> None:
        table = table_of(4)
        keys = spread(0, 1000)
        stored = table.insert_many(keys, rows_of(keys))
        assert (stored == table.contains_many(keys)).all()
        assert np.count_nonzero(stored) == len(table)

    def test_without_room_insert_fitting_refuses_and_evicts_nothing(self) -> None:
        table = table_of(4)
        keys = spread(0, 500)
        table.insert_many(keys[:400], rows_of(keys[:400]))
        evicted, held = table.evicted, len(table)
        assert held == table.max_records
        assert not table.insert_fitting(keys[400:], rows_of(keys[400:])).any()
        assert (table.evicted, len(table)) == (evicted, held)

    def test_victims_are_the_least_recently_used_and_stay(self) -> None:
        table = table_of(16)
        keys = spread(0, 100)
        for part in np.split(keys, 10):
            table.insert_many(part, rows_of(part))
        look(table, keys[:10])
        victims, rows = table.victims(20)
        assert sorted(victims.tolist()) == sorted(keys[10:30].tolist())
        assert same_chains(rows, victims)
        table.spare_many(keys[10:20])
        assert sorted(table.victims(10)[0].tolist()) == sorted(keys[20:30].tolist())
        assert table.contains_many(keys).all()
        assert look(table, keys[10:20]).rows[:, HITS].tolist() == [1] * 10

    def test_window_of_victims_reaches_every_record(self) -> None:
        table = table_of(1024)
        keys = spread(0, 5000)
        table.insert_many(keys, rows_of(keys))
        taken, rows = table.evict_many(4990)
        assert len(np.unique(taken)) == 4990 == table.evicted
        assert same_chains(rows, taken)
        assert len(table) == 10
        assert table.stats().removes == 0
        assert len(table.evict_many(100)[0]) == 10
        assert len(table.victims(5)[0]) == 0


class TestFacts:
    def test_feedback_adds_up_also_for_a_key_given_twice(self) -> None:
        table, keys = table_of(4), keys_of(3, 4)
        table.insert_many(keys, rows_of(keys))
        table.feedback_many(keys_of(3, 9, 3, 0), np.array([8, 8, 4, 1], np.uint32), np.array([5, 8, 1, 1], np.uint32))
        rows = look(table, keys).rows
        assert rows[:, DRAFTED].tolist() == [12, 0]
        assert rows[:, ACCEPTED].tolist() == [6, 0]

    def test_counts_stand_still_at_their_most(self) -> None:
        table, keys = table_of(4), keys_of(3)
        rows = rows_of(keys)
        rows[:, [HITS, REFS, DRAFTED]] = [0xFFFF_FFFF, 0xFFFF_FFF0, 0xFFFF_FFFE]
        table.insert_many(keys, rows)
        table.insert_many(keys, rows)
        table.feedback_many(keys, np.full(1, 7, np.uint32), np.full(1, 7, np.uint32))
        row = look(table, keys).rows[0]
        assert row[[HITS, REFS, DRAFTED]].tolist() == [0xFFFF_FFFF, 0xFFFF_FFFF, 0xFFFF_FFFE]

    def test_lookup_counts_and_stamps(self, clock: Clock) -> None:  # noqa: F811
        table, keys = table_of(4, clock_s=clock.whole), keys_of(3, 4)
        table.insert_many(keys, rows_of(keys))
        clock.now += 50
        rows = look(table, keys_of(3, 3, 5)).rows
        assert rows[:2, HITS].tolist() == [2, 2]
        assert rows[:2, LAST_ACCESS].tolist() == [1050, 1050]
        assert look(table, keys_of(4)).rows[0, HITS] == 1

    def test_time_past_31_bits_comes_back(self) -> None:
        table = table_of(4, clock_s=lambda: 0xFFFF_FFF0)
        table.insert_many(keys_of(3), rows_of(keys_of(3)))
        assert look(table, keys_of(3)).rows[0, LAST_ACCESS] == 0xFFFF_FFF0

    def test_rows_of_a_key_in_one_batch_count_as_if_they_came_alone(self) -> None:
        batch, single = table_of(8), table_of(8)
        keys = keys_of(*([3, 4, 3, 5, 3, 4, 3, 3, 5]))
        rows = rows_of(keys)
        rows[:, CHAIN] = [1, 7, 1, 9, 2, 7, 2, 2, 8]
        rows[:, REFS] = [1, 2, 3, 1, 5, 0, 6, 7, 4]
        rows[:, HITS] = np.arange(9)
        batch.insert_many(keys, rows)
        for i in range(9):
            single.insert_many(keys[i : i + 1], rows[i : i + 1])
        there = keys_of(3, 4, 5)
        assert (look(batch, there).rows == look(single, there).rows).all()
        assert batch.stats() == single.stats()

    def test_chunks_keep_their_own_refs(self) -> None:
        table, keys = table_of(4), keys_of(3)
        rows = rows_of(keys, kind=Kind.CHUNK)
        table.insert_many(keys, rows)
        rows[:, REFS] = 4
        table.insert_many(keys, rows)
        assert look(table, keys).rows[0, REFS] == 4


class TestLongest:
    def test_longest_is_the_last_hit_of_each_sequence(self) -> None:
        table = table_of(32)
        keys = spread(0, 80).reshape(20, 4)
        keys[3:6] = 0
        rng = np.random.default_rng(1)
        held = rng.random(keys.shape) < 0.4
        table.insert_many(keys[held], rows_of(keys[held]))
        held &= keys != 0
        found, index = Found.allocate(25, WORDS), np.full(25, 9, np.int64)
        table.longest_many(keys, found, index)
        wanted = np.where(held.any(1), 3 - held[:, ::-1].argmax(1), -1)
        assert index[:20].tolist() == wanted.tolist()
        assert index[20:].tolist() == [9] * 5
        got = np.flatnonzero(wanted >= 0)
        assert (found.state[:20] == np.where(wanted >= 0, State.HIT, State.MISS)).all()
        assert same_chains(found.rows[got], keys[got, wanted[got]])
        hits = np.concatenate([rows[:, HITS] for _, rows in table.scan()])
        assert hits.sum() == len(got) == table.stats().hits
        assert table.stats().lookups == 20


class TestTensors:
    def test_tensors_and_arrays_see_one_table(self) -> None:
        table, keys = table_of(16), spread(0, 50)
        assert table.insert(tensor(keys), tensor(rows_of(keys))).all()
        assert len(table) == 50
        hit, slot, rows = table.lookup(tensor(spread(25, 50)))
        assert hit.tolist() == [True] * 25 + [False] * 25
        assert len(set(slot[:25].tolist())) == 25
        assert (slot[25:] == table.planes.slots).all()
        assert same_chains(rows[:25].numpy().view(np.uint32), keys[25:])
        index, hit, _, _ = table.longest(tensor(keys.reshape(25, 2)))
        assert index.tolist() == [1] * 25
        assert table.remove(tensor(keys[:10])).all()
        assert len(table) == 40
        assert table.contains_many(keys).tolist() == [False] * 10 + [True] * 40

    def test_each_key_has_the_same_two_buckets_as_in_plain_arithmetic(self) -> None:
        table, keys = table_of(1000), np.random.default_rng(5).integers(0, 1 << 64, 500, np.uint64)
        mixed = [k * 0x9E3779B97F4A7C15 % (1 << 64) for k in keys.tolist()]
        mixed = [m ^ (m >> 32) for m in mixed]
        wanted = [[(m >> 32) * 1000 >> 32, (m & 0xFFFF_FFFF) * 1000 >> 32] for m in mixed]
        assert vram_ops.homes_of(table.planes, tensor(keys)).tolist() == wanted


class TestScan:
    def test_slices_of_a_sparse_table_reach_every_record(self) -> None:
        table, keys = table_of(500), spread(0, 120)
        table.insert_many(keys, rows_of(keys))
        hand, seen, slices = 0, [], 0
        while True:
            some, rows, hand = table.scan_slice(hand, 10)
            seen += some.tolist()
            slices += 1
            assert same_chains(rows, some)
            if hand == 0:
                break
        assert sorted(seen) == sorted(keys.tolist())
        assert slices >= 500 * BUCKET_SLOTS // (8 * 10)
        assert (look(table, keys).rows[:, HITS] == 1).all()

    def test_cleared_table_is_empty(self) -> None:
        table, keys = table_of(4), spread(0, 20)
        table.insert_many(keys, rows_of(keys))
        table.clear()
        assert len(table) == 0
        assert not table.contains_many(keys).any()
        assert list(table.scan()) == []


def test_router_asks_vram_first_and_moves_records_on_overwrite() -> None:
    vram = table_of(4)
    dram = DramTable(1 << 16, words=WORDS, clock_s=lambda: 5)
    placement = Placement(chains=((Tier.VRAM, Tier.DRAM), (Tier.DRAM,), ()))
    router = Router(dram, None, placement, vram=vram, clock_s=lambda: 5)
    keys = spread(0, 120)
    assert router.insert_many(keys, rows_of(keys)).all()
    assert len(vram) <= vram.max_records
    assert len(vram) + len(dram) == 120
    assert len(dram) > 0
    found = Found.allocate(120, WORDS)
    router.lookup_many(keys, np.arange(120), found)
    assert (found.state == State.HIT).all()
    assert np.count_nonzero(found.tier == Tier.VRAM) == len(vram)
    assert same_chains(found.rows, keys)
    router.close()
