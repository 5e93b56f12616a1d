"""What every store must do. A test class inherits `StoreContract` and gives it a `store` fixture.

`store` holds at least 200 records of WORDS words, reads the time from `clock`, and starts empty.
"""

from __future__ import annotations

import numpy as np
import pytest
from records import WORDS, Clock, keys_of, rows_of, same_chains, spread

from flashnest.errors import StoreClosedError
from flashnest.record import ACCEPTED, CHAIN, DRAFTED, HITS, INSERTED, META, REFS, Kind, Tier, row_tokens
from flashnest.storage.store import Found, State, Store


@pytest.fixture
def clock() -> Clock:
    return Clock()


class StoreContract:
    """Inherit and define `store`; `tier` where it is not DRAM; `counts_hits` False where hits are not written."""

    tier = Tier.DRAM
    counts_hits = True

    def look(self, store: Store, keys: np.ndarray) -> Found:
        found = Found.allocate(len(keys), WORDS)
        store.lookup_many(keys, found)
        return found

    def test_empty_store_misses(self, store: Store) -> None:
        assert (self.look(store, spread(0, 10)).state == State.MISS).all()
        assert not store.contains_many(spread(0, 10)).any()
        assert store.stats().records == 0

    def test_inserted_records_are_found_whole(self, store: Store, clock: Clock) -> None:
        keys = spread(0, 150)
        assert store.insert_many(keys, rows_of(keys, tokens=16)).all()
        found = self.look(store, keys)
        assert (found.state == State.HIT).all()
        assert (found.tier == self.tier).all()
        assert same_chains(found.rows, keys)
        assert (row_tokens(found.rows) == 16).all()
        assert (found.rows[:, INSERTED] == clock.whole()).all()
        assert (found.rows[:, META] == rows_of(keys, tokens=16)[:, META]).all()

    def test_other_keys_still_miss(self, store: Store) -> None:
        store.insert_many(spread(0, 150), rows_of(spread(0, 150)))
        assert (self.look(store, spread(1000, 150)).state == State.MISS).all()

    def test_hits_and_misses_keep_their_places_in_a_batch(self, store: Store) -> None:
        keys = spread(0, 60)
        store.insert_many(keys[::3], rows_of(keys[::3]))
        found = self.look(store, keys)
        assert (found.state[::3] == State.HIT).all()
        assert (found.state[1::3] == State.MISS).all()
        assert (found.state[2::3] == State.MISS).all()
        assert same_chains(found.rows[::3], keys[::3])

    def test_key_zero_is_never_stored_nor_found(self, store: Store) -> None:
        keys = keys_of(0, 5)
        assert store.insert_many(keys, rows_of(keys)).tolist() == [False, True]
        assert self.look(store, keys).state.tolist() == [State.MISS, State.HIT]
        assert store.remove_many(keys_of(0)).tolist() == [False]

    def test_larger_batch_than_the_buffers_is_refused(self, store: Store) -> None:
        with pytest.raises(ValueError, match="do not fit"):
            store.lookup_many(spread(0, 5), Found.allocate(4, WORDS))

    def test_removed_records_are_gone(self, store: Store) -> None:
        keys = spread(0, 100)
        store.insert_many(keys, rows_of(keys))
        assert store.remove_many(keys[:50]).all()
        assert not store.remove_many(keys[:50]).any()
        assert (self.look(store, keys[:50]).state == State.MISS).all()
        assert (self.look(store, keys[50:]).state == State.HIT).all()
        assert store.stats().records == 50

    def test_removing_a_key_twice_in_a_batch_counts_once(self, store: Store) -> None:
        store.insert_many(keys_of(7), rows_of(keys_of(7)))
        assert store.remove_many(keys_of(7, 7)).tolist() == [True, False]

    def test_last_row_of_a_key_in_a_batch_stays(self, store: Store) -> None:
        keys = keys_of(7, 8, 7)
        rows = rows_of(keys)
        rows[:, CHAIN] = [1, 2, 3]
        assert store.insert_many(keys, rows).all()
        assert self.look(store, keys_of(7, 8)).rows[:, CHAIN].tolist() == [3, 2]
        assert store.stats().records == 2

    def test_same_continuation_keeps_the_facts(self, store: Store, clock: Clock) -> None:
        keys = keys_of(9)
        rows = rows_of(keys)
        rows[0, [HITS, INSERTED, DRAFTED, ACCEPTED]] = [4, 77, 20, 10]
        store.insert_many(keys, rows)
        again = rows_of(keys)
        again[0, CHAIN + 1] = 4242
        store.insert_many(keys, again)
        row = self.look(store, keys).rows[0]
        assert row[HITS] == (5 if self.counts_hits else 4)
        assert row[[INSERTED, DRAFTED, ACCEPTED, REFS]].tolist() == [77, 20, 10, 2]
        assert row[CHAIN + 1] == 4242

    @pytest.mark.parametrize("change", ["continuation", "kind"])
    def test_other_continuation_or_kind_starts_afresh(self, store: Store, clock: Clock, change: str) -> None:
        keys = keys_of(9)
        rows = rows_of(keys)
        rows[0, [HITS, INSERTED, DRAFTED, ACCEPTED]] = [4, 77, 20, 10]
        store.insert_many(keys, rows)
        kind = Kind.CHUNK if change == "kind" else Kind.NGRAM
        store.insert_many(keys, rows_of(keys, kind=kind, chain=1 if change == "continuation" else None))
        row = self.look(store, keys).rows[0]
        assert row[[INSERTED, DRAFTED, ACCEPTED, REFS]].tolist() == [clock.whole(), 0, 0, 1]
        assert row[HITS] <= 1

    def test_feedback_on_unknown_keys_is_ignored(self, store: Store) -> None:
        one = np.ones(2, np.uint32)
        store.feedback_many(keys_of(0, 3), one, one)
        assert store.stats().records == 0

    def test_scan_gives_each_record_once(self, store: Store) -> None:
        keys = spread(0, 180)
        store.insert_many(keys, rows_of(keys))
        store.remove_many(keys[:20])
        batches = list(store.scan())
        seen = np.concatenate([k for k, _ in batches])
        assert sorted(seen.tolist()) == sorted(keys[20:].tolist())
        assert same_chains(np.concatenate([r for _, r in batches]), seen)

    def test_stats_count_what_happened(self, store: Store) -> None:
        keys = spread(0, 20)
        store.insert_many(keys, rows_of(keys))
        store.insert_many(keys[:5], rows_of(keys[:5]))
        self.look(store, spread(10, 20))
        store.remove_many(keys[:2])
        stats = store.stats()
        assert (stats.records, stats.inserts, stats.updates, stats.removes) == (18, 20, 5, 2)
        assert (stats.lookups, stats.hits, stats.rejected, stats.evicted) == (20, 10, 0, 0)
        assert 0 < stats.bytes_used <= stats.bytes_budget

    def test_closed_store_refuses(self, store: Store) -> None:
        store.close()
        store.close()
        with pytest.raises(StoreClosedError):
            store.contains_many(keys_of(1))
        with pytest.raises(StoreClosedError):
            self.look(store, keys_of(1))
        with pytest.raises(StoreClosedError):
            store.insert_many(keys_of(1), rows_of(keys_of(1)))
