"""Reads of a cold tier that nobody waits for: keys go out with tickets, answers come back a step later.

The owner's thread calls `ask`, `submit`, `drain` and `wait`; a reader thread takes whole batches. Every key that was
accepted is answered exactly once: found, missing, failed, or late (a miss). Never knows what a ticket means.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from flashnest.record import BoolArray, I64Array, U32Array, U64Array
from flashnest.storage.store import ColdStore, Found, State

Clock = Callable[[], float]
"""Monotonic seconds."""

READ_KEYS: Final = 64
"""Keys a batch unless told otherwise: one late page delays at most this many answers."""

_log = logging.getLogger("flashnest.storage")


@dataclass(frozen=True, slots=True)
class ColdAnswers:
    """What a drain brings: tickets int64 (n,), keys uint64 (n,), hit bool (n,), rows uint32 (n, words) where hit."""

    tickets: I64Array
    keys: U64Array
    hit: BoolArray
    rows: U32Array

    def __len__(self) -> int:
        return len(self.tickets)


@dataclass(frozen=True, slots=True)
class _Batch:
    number: int
    keys: U64Array
    tickets: I64Array
    deadline: float


class ReadQueue:
    """Asynchronous reads in front of a store.

    `depth`: most keys under way; more are refused at once. `batch_keys`: most keys a read of the store. Without
    `threaded` nothing is read until `pump`, so that tests decide what happens when.
    """

    def __init__(
        self,
        store: ColdStore,
        *,
        words: int,
        depth: int,
        batch_keys: int = READ_KEYS,
        deadline_s: float,
        clock: Clock,
        threaded: bool,
    ) -> None:
        self._store, self._words, self._depth, self._batch_keys = store, words, depth, batch_keys
        self._deadline_s, self._clock = deadline_s, clock
        self._staged: list[tuple[U64Array, I64Array]] = []
        self._under_way: dict[int, _Batch] = {}
        self._keys_under_way = self._next = 0
        self._work: deque[_Batch] = deque()
        self._ready: deque[tuple[int, Found | None]] = deque()
        self._changed = threading.Condition()
        self._stopping = self._complained = False
        self.queued = self.answered = self.late = self.dropped = self.errors = 0
        self._absent: list[U64Array] = []
        none = np.zeros(0, np.uint64)
        self._nothing = ColdAnswers(none.view(np.int64), none, none.view(np.bool_), np.zeros((0, words), np.uint32))
        self._thread = (
            threading.Thread(target=self._run, name="flashnest-cold-reads", daemon=True) if threaded else None
        )
        if self._thread:
            self._thread.start()

    def ask(self, keys: U64Array, tickets: I64Array) -> int:
        """Stage keys (n,) for the next `submit`; returns how many of the first were taken, the rest are dropped."""
        taken = min(len(keys), max(0, self._depth - self._keys_under_way))
        self.dropped += len(keys) - taken
        self.queued += taken
        self._keys_under_way += taken
        if taken:
            self._staged.append((keys[:taken].copy(), tickets[:taken].copy()))  # the caller reuses its arrays
        return taken

    def submit(self) -> None:
        """Hand what was staged to the reader."""
        if not self._staged:
            return
        keys, tickets = self._staged[0]
        if len(self._staged) > 1:
            keys = np.concatenate([keys for keys, _ in self._staged])
            tickets = np.concatenate([tickets for _, tickets in self._staged])
        self._staged.clear()
        deadline = self._clock() + self._deadline_s
        batches = []
        for start in range(0, len(keys), self._batch_keys):
            stop = start + self._batch_keys
            batches.append(_Batch(self._next, keys[start:stop], tickets[start:stop], deadline))
            self._next += 1
        self._under_way.update((batch.number, batch) for batch in batches)
        with self._changed:
            self._work.extend(batches)
            self._changed.notify_all()

    def pump(self) -> None:
        """Read all that was submitted, in the caller's thread. Only without `threaded`."""
        while self._work:
            self._read(self._work.popleft())

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._work or self._stopping)
                if self._stopping:
                    return
                batch = self._work.popleft()
            self._read(batch)

    def _read(self, batch: _Batch) -> None:
        if self._clock() >= batch.deadline:
            return  # the owner has answered it, or will at its next drain
        answer = Found.allocate(len(batch.keys), self._words)
        found: Found | None = answer
        try:
            self._store.lookup_many(batch.keys, answer)
        except Exception as error:  # whatever an engine or a disk raises: the step goes on without the record
            found = None
            if not self._complained:
                self._complained = True
                _log.warning("cold reads fail, answered as misses: %s", error)
        with self._changed:
            self._ready.append((batch.number, found))
            self._changed.notify_all()

    def drain(self) -> ColdAnswers:
        """Return the answers that arrived, and misses for what is past its deadline. Nothing is the usual answer."""
        if not self._ready and not self._is_late():
            return self._nothing
        parts: list[ColdAnswers] = []
        while self._ready:
            number, found = self._ready.popleft()
            if (batch := self._finish(number)) is not None:
                if found is None:
                    self.errors += len(batch.keys)
                else:
                    self.answered += len(batch.keys)
                    self._absent.append(batch.keys[found.state == State.MISS])
                parts.append(self._answers(batch, found))
        while self._is_late():
            batch = next(iter(self._under_way.values()))
            self._finish(batch.number)
            self.late += len(batch.keys)
            parts.append(self._answers(batch, None))
        return self._join(parts)

    def _is_late(self) -> bool:
        """Return whether the oldest batch under way is past its deadline."""
        return bool(self._under_way) and self._clock() >= next(iter(self._under_way.values())).deadline

    def take_absent(self) -> U64Array:
        """Return the keys that the store was asked for and did not have, once."""
        if not self._absent:
            return self._nothing.keys
        absent = np.concatenate(self._absent)
        self._absent.clear()
        return absent

    def _finish(self, number: int) -> _Batch | None:
        batch = self._under_way.pop(number, None)
        if batch is not None:
            self._keys_under_way -= len(batch.keys)
        return batch

    def _answers(self, batch: _Batch, found: Found | None) -> ColdAnswers:
        n = len(batch.keys)
        if found is None:
            return ColdAnswers(batch.tickets, batch.keys, np.zeros(n, np.bool_), np.zeros((n, self._words), np.uint32))
        return ColdAnswers(batch.tickets, batch.keys, found.state == State.HIT, found.rows)

    def _join(self, parts: list[ColdAnswers]) -> ColdAnswers:
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return self._nothing
        return ColdAnswers(
            np.concatenate([p.tickets for p in parts]),
            np.concatenate([p.keys for p in parts]),
            np.concatenate([p.hit for p in parts]),
            np.concatenate([p.rows for p in parts]),
        )

    def wait(self, timeout_s: float) -> None:
        """Sleep until an answer is ready, at most `timeout_s`; returns at once where none is under way."""
        if self._thread is None:
            self.pump()
        elif self._under_way:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._ready), timeout_s)

    def close(self) -> None:
        """Stop the reader after the batch at hand; what is under way stays unanswered."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread:
            self._thread.join()
