"""S3-FIFO, SIEVE and LRU as their papers state them, key by key over dicts: what the table's algorithms are held to."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class Cache(Protocol):
    """A cache of a fixed number of keys."""

    def ask(self, key: int) -> bool:
        """Return whether `key` is cached; where it is not, cache it and evict another if need be."""


class Lru:
    def __init__(self, size: int) -> None:
        self.size = size
        self.keys: OrderedDict[int, None] = OrderedDict()

    def ask(self, key: int) -> bool:
        if key in self.keys:
            self.keys.move_to_end(key)
            return True
        if len(self.keys) == self.size:
            self.keys.popitem(last=False)
        self.keys[key] = None
        return False


class Sieve:
    """Zhang et al., NSDI 2024, algorithm 1. `newer[k]` was inserted after k; the hand goes from old to new."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.visited: dict[int, bool] = {}
        self.newer: dict[int, int | None] = {}
        self.older: dict[int, int | None] = {}
        self.newest: int | None = None
        self.oldest: int | None = None
        self.hand: int | None = None

    def ask(self, key: int) -> bool:
        if key in self.visited:
            self.visited[key] = True
            return True
        if len(self.visited) == self.size:
            self.evict()
        self.visited[key] = False
        self.newer[key], self.older[key] = None, self.newest
        if self.newest is not None:
            self.newer[self.newest] = key
        self.newest = key
        self.oldest = key if self.oldest is None else self.oldest
        return False

    def evict(self) -> None:
        key = self.oldest if self.hand is None else self.hand
        assert key is not None
        while self.visited[key]:
            self.visited[key] = False
            after = self.newer[key]
            key = self.oldest if after is None else after
            assert key is not None
        del self.visited[key]
        newer, older = self.newer.pop(key), self.older.pop(key)
        self.hand = newer
        if newer is None:
            self.newest = older
        else:
            self.older[newer] = older
        if older is None:
            self.oldest = newer
        else:
            self.newer[older] = newer


class S3Fifo:
    """Yang et al., SOSP 2023, algorithm 1: small queue 10 %, ghost as long as the main queue."""

    def __init__(self, size: int) -> None:
        self.size, self.small_size, self.ghost_size = size, max(1, size // 10), size - size // 10
        self.small: OrderedDict[int, int] = OrderedDict()
        self.main: OrderedDict[int, int] = OrderedDict()
        self.ghost: OrderedDict[int, None] = OrderedDict()

    def ask(self, key: int) -> bool:
        for queue in (self.small, self.main):
            if key in queue:
                queue[key] = min(3, queue[key] + 1)
                return True
        while len(self.small) + len(self.main) == self.size:
            self.evict()
        if key in self.ghost:
            del self.ghost[key]
            self.main[key] = 0
        else:
            self.small[key] = 0
        return False

    def evict(self) -> None:
        if len(self.small) >= self.small_size:
            self.evict_small()
        else:
            self.evict_main()

    def evict_small(self) -> None:
        while self.small:
            key, freq = self.small.popitem(last=False)
            if freq < 2:
                self.ghost[key] = None
                if len(self.ghost) > self.ghost_size:
                    self.ghost.popitem(last=False)
                return
            self.main[key] = 0

    def evict_main(self) -> None:
        while self.main:
            key, freq = self.main.popitem(last=False)
            if freq == 0:
                return
            self.main[key] = freq - 1
