"""What a cold tier takes in: which records are worth a write, which are there already. Reads nothing from disk."""

from __future__ import annotations

import numpy as np

from flashnest.record import BoolArray, I64Array, U32Array, U64Array
from flashnest.storage.cold_rebuild import FilterRebuilds
from flashnest.storage.cold_room import ColdRoom
from flashnest.storage.cold_writes import WriteBuffer
from flashnest.storage.filter import MembershipFilter
from flashnest.storage.marks import ReplaceMarks
from flashnest.storage.store import ColdStore
from flashnest.storage.touches import Touches


class ColdIntake:
    """Inserts and removals of a `ColdTier`, whose owner's thread calls it.

    Every change goes to the write buffer first, then to the filter, with a look in between whether a rebuild of the
    filter starts: see `cold_rebuild`.
    """

    def __init__(self, store: ColdStore, writes: WriteBuffer, seen: MembershipFilter, touches: Touches) -> None:
        self._writes, self._filter, self._touches = writes, seen, touches
        self._rebuilds = FilterRebuilds(store, writes, seen)
        self._marks = ReplaceMarks()
        self.room = ColdRoom(store, writes)
        self.known = self.inserts = self.removes = self.rejected = 0

    def compile(self) -> None:
        """Load or compile the kernels."""
        keys, none = np.zeros(0, np.uint64), np.zeros(0, np.uint32)
        self._filter.compile()
        self._marks.add_many(keys, none, none)
        self._marks.wrong_many(keys)
        self._marks.forget_many(keys)

    def insert_many(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """See `ColdTier.insert_many` without `replace`."""
        known = self._filter.knows_many(keys)
        put = np.flatnonzero(~known & (keys != 0))[: self.room.free]
        if known.any():
            again = np.flatnonzero(known)
            again = again[self._marks.wrong_many(keys[again]) | self._writes.gathers_many(keys[again])]
            known[again] = False
            put = np.concatenate([put, again])
        self.known += int(np.count_nonzero(known))
        return self._put(keys, rows, put, known)

    def replace_many(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """See `ColdTier.insert_many` with `replace`."""
        put = np.flatnonzero(keys)[: self.room.free]
        return self._put(keys, rows, put, np.zeros(len(keys), np.bool_))

    def _put(self, keys: U64Array, rows: U32Array, put: I64Array, taken: BoolArray) -> BoolArray:
        """Write the records at `put`; adds to `taken`, (n,), those that were taken, and returns it."""
        if len(put):
            mine, new = keys[put], rows[put]
            self._touches.merge_many(mine, new)
            took = self._writes.put_many(mine, new)
            self._rebuilds.tick()
            taken[put] = took
            done = mine[took]
            self._touches.forget_many(done)  # only now: what was refused keeps its hits
            self._filter.add_many(done)
            self._marks.forget_many(done)
            self.inserts += len(done)
        self.rejected += len(keys) - int(np.count_nonzero(taken))
        return taken

    def forget_many(self, keys: U64Array) -> BoolArray:
        """See `ColdTier.forget_many`."""
        taken = self._writes.forget_many(keys)
        self._rebuilds.tick()
        self._filter.remove_many(keys[taken])
        self._touches.forget_many(keys[taken])
        self.removes += int(np.count_nonzero(taken))
        return taken

    def feedback_many(self, keys: U64Array, drafted: U32Array, accepted: U32Array) -> None:
        """See `ColdTier.feedback_many`."""
        self._writes.feedback_many(keys, drafted, accepted)
        self._marks.add_many(keys, drafted, accepted)

    def missed(self, keys: U64Array) -> None:
        """Take note of keys that the filter let through and the store has not.

        The filter would call them known for ever; marked, the next learn stores them.
        """
        self._filter.count_false_positives(len(keys))
        self._marks.mark_many(keys)

    def tick(self) -> None:
        """See to the writer; mark what was lost, so that the next learn stores it again."""
        self._writes.tick()
        self._rebuilds.tick()
        lost = self._writes.take_lost()
        if len(lost):
            self._marks.mark_many(lost)
