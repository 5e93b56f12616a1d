"""Membership filter of a cold tier: says "surely absent" in DRAM, so that most lookups never reach the disk.

Most n-gram lookups are negative (81 to 99.96 % on real text), and each that reaches NVMe costs 50 us. Two parts: a
sealed one, a binary fuse filter of the keys that were stored when it was built (1.19 bytes a key, 0.39 % false
positives), and a delta, a Bloom filter of the keys that came since (1.75 bytes, 0.3 %); 1.75 bytes a record in all.
When the keys added and removed since reach a quarter of the sealed ones, a new sealed part is due. Never asks the
store: whoever owns it does.

The rebuild, so that no key is ever lost: `begin_rebuild` at a moment when every key that was added before will be on
disk when the scan starts; from then on keys go into the old delta, which answers meanwhile, and into the next one;
`finish_rebuild` puts the new sealed part and the next delta in place of the old ones, three assignments.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest.record import BoolArray, I64Array, U8Array, U64Array
from flashnest.storage.filter_kernels import filter_contains, filter_open
from flashnest.storage.filter_layers import FIRST_KEYS, BloomLayers
from flashnest.storage.fuse import FuseFilter, build_fuse

REBUILD_SHARE: Final = 0.25
"""Added and removed keys, as a share of the sealed ones, at which a rebuild is due."""

_NONE: Final = np.zeros(0, np.uint64)


class MembershipFilter:
    """One thread owns it; the sealed part may be built in another."""

    def __init__(self, sealed: FuseFilter | None = None) -> None:
        """Start from a sealed part, or empty."""
        self._sealed = sealed if sealed is not None else build_fuse((), 0)
        self._shift = np.uint64(self._sealed.shift)
        self._delta = BloomLayers(self._delta_room(len(self._sealed)))
        self._removed = BloomLayers()
        self._next: tuple[BloomLayers, BloomLayers] | None = None
        self._changes = 0
        self._changes_next = 0
        self._due_from = self._threshold(len(self._sealed))
        self.queries = self.negatives = self.false_positives = self.rebuilds = 0
        self.compile()

    def compile(self) -> None:
        """Load or compile the kernels, so that no step waits for it."""
        self.may_hold(_NONE)
        self.knows_many(_NONE)
        self.open_many(_NONE, _NONE.view(np.uint8), _NONE.view(np.bool_), _NONE.view(np.int64))
        self.add_many(_NONE)
        self._delta.compile()

    @staticmethod
    def _threshold(sealed_keys: int) -> int:
        return max(FIRST_KEYS // 4, int(sealed_keys * REBUILD_SHARE))

    @classmethod
    def _delta_room(cls, sealed_keys: int) -> int:
        """Keys that the delta must take until a rebuild is due, and a quarter more while it runs."""
        return cls._threshold(sealed_keys) * 5 // 4

    @property
    def bytes_used(self) -> int:
        """Bytes allocated, those of a rebuild under way included except for its sealed part."""
        parts = (self._delta, self._removed, *(self._next or ()))
        return int(self._sealed.bytes_used + sum(part.bytes_used for part in parts))

    @property
    def sealed_keys(self) -> int:
        """Keys in the sealed part."""
        return len(self._sealed)

    def add_many(self, keys: U64Array) -> None:
        """Add keys, uint64 (n,)."""
        before = self._delta.keys
        self._delta.add_many(keys)
        self._changes += self._delta.keys - before
        if self._next is not None:
            before = self._next[0].keys
            self._next[0].add_many(keys)
            self._changes_next += self._next[0].keys - before

    def remove_many(self, keys: U64Array) -> None:
        """Note that keys were removed: they are not known any more, though they may still pass."""
        self._removed.add_many(keys)
        self._changes += len(keys)
        if self._next is not None:
            self._next[1].add_many(keys)
            self._changes_next += len(keys)

    def contains_many(self, keys: U64Array) -> BoolArray:
        """Return which keys may be there, shape (n,); False is certain. Counts queries and negatives."""
        maybe, passed = self._ask(keys)
        self.queries += len(keys)
        self.negatives += len(keys) - passed
        return maybe

    def may_hold(self, keys: U64Array) -> BoolArray:
        """Like `contains_many`, counting nothing."""
        return self._ask(keys)[0]

    def open_many(self, keys: U64Array, state: U8Array, known: BoolArray, at: I64Array) -> int:
        """Like `contains_many` for lookups: state, known, (n,) become 0 and True where a key is surely absent.

        The others become 0 and False; their places go to `at`, ascending. Returns how many they are.
        """
        if len(self._delta.layers) > 1:
            where = np.flatnonzero(self._ask(keys)[0])
            state[: len(keys)], known[:], known[where], at[: len(where)] = 0, True, False, where
            passed = len(where)
        else:
            sealed, bits = self._sealed, self._delta.layers[0]
            passed = filter_open(sealed.table, sealed.shards, self._shift, bits, keys, state, known, at)
        self.queries += len(keys)
        self.negatives += len(keys) - passed
        return passed

    def _ask(self, keys: U64Array) -> tuple[BoolArray, int]:
        """Return which keys may be there and how many: one kernel call, unless a late rebuild lets the delta grow."""
        maybe = np.empty(len(keys), np.bool_)
        sealed, layers = self._sealed, self._delta.layers
        passed = filter_contains(sealed.table, sealed.shards, self._shift, layers[0], keys, maybe)
        if len(layers) > 1:
            self._delta.contains_into(keys, maybe, first=1)
            maybe &= keys != 0
            passed = int(np.count_nonzero(maybe))
        return maybe, passed

    def knows_many(self, keys: U64Array) -> BoolArray:
        """Return which keys are there unless the filter errs, (n,): not those removed, not 0."""
        knows = self.may_hold(keys)
        if self._removed.keys and knows.any():
            gone = np.zeros(len(keys), np.bool_)
            self._removed.contains_into(keys, gone)
            knows &= ~gone
        return knows

    def count_false_positives(self, count: int) -> None:
        """Note that `count` keys let through were not in the store."""
        self.false_positives += count

    @property
    def wants_rebuild(self) -> bool:
        """Whether a new sealed part is due and none is being built."""
        return self._changes >= self._due_from and self._next is None

    def begin_rebuild(self) -> None:
        """Start the next delta. Every key added before must be on disk, or gone, when the scan of the store starts."""
        self._next = (BloomLayers(self._delta_room(len(self._sealed) + self._delta.keys)), BloomLayers())
        self._changes_next = 0

    def finish_rebuild(self, sealed: FuseFilter) -> None:
        """Answer from a new sealed part and the keys added since `begin_rebuild`."""
        if self._next is None:
            raise ValueError("no rebuild was begun")
        self._sealed, (self._delta, self._removed), self._next = sealed, self._next, None
        self._shift = np.uint64(sealed.shift)
        self._changes, self._due_from = self._changes_next, self._threshold(len(sealed))
        self.rebuilds += 1

    def abandon_rebuild(self) -> None:
        """Go on with the old parts; the next rebuild is due when as many keys again have changed."""
        self._next = None
        self._due_from = 2 * self._changes
