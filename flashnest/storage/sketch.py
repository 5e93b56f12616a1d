"""How often keys were seen lately, in a fixed few bytes a key: a blocked count-min sketch over a sliding window.

Count-min with conservative update (Estan and Varghese, SIGCOMM 2002) never counts too few, sometimes too many. Here all
counters of a key lie in one 64-byte line (as in Caffeine's TinyLFU), so a key costs one cache miss. A line holds four
generations of counters, each of a third of the window: three whole ones and the one under way.

    bytes 0-3  the generation in which the line was last changed
    bytes 4-63 four generations of 15 bytes: 30 counters of 4 bits, or 15 of 8 bits

Generations end without a sweep over the sketch: a line forgets its old ones when it is next changed, and a count leaves
out those that are too old. Sketches never grow and never know what a record is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

import numpy as np

from flashnest.hashing import mix64
from flashnest.jit import inline_kernel, kernel
from flashnest.record import Admission, BoolArray, U8Array, U32Array, U64Array
from flashnest.storage.lines import prefetch_keys
from flashnest.storage.store import ClockS

GENERATIONS: Final = 4
DEFAULT_KEYS: Final = 1 << 20
"""Different keys in a window that a sketch is made for where nobody says better: 10.7 MiB, or 21.3 MiB of wide ones."""
COUNT_MOST: Final = 255
"""Counts up to this are never too few."""

_NARROW_MOST: Final = 15
_NARROW_KEYS: Final = 6
"""Keys a line with 4-bit counters; 3.4 % of the keys never seen count as seen (W = 30, four counters a key: the best of
2 to 5 in a simulation of Poisson lines; 8 keys a line 6.6 %, 10 keys 10 %)."""
_WIDE_KEYS: Final = 3
"""The same for 8-bit counters: 6.5 %; 4 keys a line 10 %."""
_COUNTERS: Final = 4
_LINE_BYTES: Final = 64
_GENERATION_BYTES: Final = 15
_BLOCK: Final = 32

_U64 = np.uint64
_S32, _S16, _LOW16, _WORDS, _SALT = _U64(32), _U64(16), _U64(0xFFFF), _U64(8), _U64(0xBB67AE8584CAA73B)


def _line_of(key: np.uint64, lines: np.uint64) -> np.uint64:
    return (mix64(key ^ _SALT) >> _S32) * lines >> _S32


line_of = cast(Callable[[np.uint64, np.uint64], np.uint64], inline_kernel(_line_of))
"""Return the index of a key's line."""


@inline_kernel
def _read(memory: U8Array, start: int, counter: int, narrow: bool) -> int:
    """Return a counter of the generation whose bytes begin at `start`."""
    if narrow:
        return (int(memory[start + (counter >> 1)]) >> ((counter & 1) << 2)) & 15
    return int(memory[start + counter])


@inline_kernel
def _write(memory: U8Array, start: int, counter: int, narrow: bool, value: int) -> None:
    if narrow:
        at, shift = start + (counter >> 1), (counter & 1) << 2
        memory[at] = np.uint8((int(memory[at]) & ~(15 << shift)) | (value << shift))
    else:
        memory[start + counter] = np.uint8(value)


@inline_kernel
def _counter(places: np.uint64, row: int, narrow: bool) -> int:
    """Return which counter of a generation is a key's `row`-th: `places` holds four 16-bit numbers."""
    width = _U64(30) if narrow else _U64(15)
    return int(np.int64((((places >> (_U64(row) * _S16)) & _LOW16) * width) >> _S16))


@inline_kernel
def _least(memory: U8Array, start: int, places: np.uint64, narrow: bool) -> int:
    least: int = 255
    for row in range(_COUNTERS):
        least = min(least, _read(memory, start, _counter(places, row, narrow), narrow))
    return least


@inline_kernel
def _renew(memory: U8Array, stamps: U32Array, line: int, now: int) -> None:
    """Forget the generations of a line that ended too long ago, and say that it was changed in generation `now`."""
    last = int(stamps[line * 16])
    for generation in range(max(last + 1, now - GENERATIONS + 1), now + 1):
        start = line * _LINE_BYTES + 4 + generation % GENERATIONS * _GENERATION_BYTES
        memory[start : start + _GENERATION_BYTES] = 0
    stamps[line * 16] = np.uint32(now)


@inline_kernel
def _count(memory: U8Array, stamps: U32Array, line: int, places: np.uint64, narrow: bool, now: int) -> int:
    last, total = int(stamps[line * 16]), 0
    for generation in range(max(0, now - GENERATIONS + 1), min(last, now) + 1):
        start = line * _LINE_BYTES + 4 + generation % GENERATIONS * _GENERATION_BYTES
        total += _least(memory, start, places, narrow)
    return total


@inline_kernel
def _add(memory: U8Array, stamps: U32Array, line: int, places: np.uint64, narrow: bool, now: int) -> None:
    """Count a key once in generation `now`: raise those of its counters that hold the least of them."""
    if int(stamps[line * 16]) != now:
        _renew(memory, stamps, line, now)
    start = line * _LINE_BYTES + 4 + now % GENERATIONS * _GENERATION_BYTES
    least = _least(memory, start, places, narrow)
    if least == (_NARROW_MOST if narrow else COUNT_MOST):
        return
    for row in range(_COUNTERS):
        counter = _counter(places, row, narrow)
        if _read(memory, start, counter, narrow) == least:
            _write(memory, start, counter, narrow, least + 1)


@kernel
def _see(memory: U8Array, narrow: bool, now: int, keys: U64Array, add: bool, counts: U32Array) -> None:
    """Add each key if told to, and write its count to `counts` unless that is empty. Keys of 0 count 0."""
    words, stamps = memory.view(np.uint64), memory.view(np.uint32)
    lines, n = _U64(memory.shape[0]) >> _U64(6), keys.shape[0]
    for block in range(0, n + _BLOCK, _BLOCK):
        for i in range(block, min(block + _BLOCK, n)):
            prefetch_keys(words, line_of(keys[i], lines) * _WORDS)
        for i in range(max(0, block - _BLOCK), min(block, n)):
            line, places, total = int(np.int64(line_of(keys[i], lines))), mix64(keys[i]), 0
            if keys[i] != _U64(0):
                if add:
                    _add(memory, stamps, line, places, narrow, now)
                if counts.shape[0]:
                    total = _count(memory, stamps, line, places, narrow, now)
            if counts.shape[0]:
                counts[i] = total


_NO_COUNTS: Final = np.zeros(0, np.uint32)


class WindowedCounts:
    """How often each key was added within a sliding window. One thread owns it; keys are uint64 (n,), 0 is never seen.

    A count holds every add of the last `window_s` seconds and none that is `window_s` * 4/3 old or older; between the
    two it depends on where the window's third began. It may be too high where other keys share all counters of a key:
    at the design load, `expected_keys` different keys a window, 3.4 % of the keys never added count more than 0 (6.5 %
    with wide counters), beyond it more, up to all. It is too low only above `most`.
    """

    def __init__(
        self, window_s: int, *, clock_s: ClockS, expected_keys: int = DEFAULT_KEYS, most: int = COUNT_MOST
    ) -> None:
        """Allocate; `most`: the highest count that must be right, 1..255; up to 15 takes half the memory.

        Raises ValueError where the window is shorter than a second or `most` is out of range.
        """
        if window_s < 1 or not 1 <= most <= COUNT_MOST:
            raise ValueError(
                f"a window of {window_s} s and counts up to {most}: needs 1 s or more, and 1..{COUNT_MOST}"
            )
        self.window_s = window_s
        self._clock_s = clock_s
        self._narrow = most <= _NARROW_MOST
        lines = -(-max(1, expected_keys) // (_NARROW_KEYS if self._narrow else _WIDE_KEYS))
        # 64 bytes more than needed, to start on a line of its own: numpy aligns to 16.
        self._allocated = np.zeros((lines + 1) * _LINE_BYTES, np.uint8)
        skip = -self._allocated.ctypes.data % _LINE_BYTES
        self._memory: U8Array = self._allocated[skip : skip + lines * _LINE_BYTES]
        self._start_s = int(clock_s())
        self._generation = GENERATIONS
        self.count_many(np.zeros(1, np.uint64))  # compiled now, not in a step

    @property
    def bytes_used(self) -> int:
        """Bytes allocated."""
        return self._allocated.nbytes

    def add_many(self, keys: U64Array) -> None:
        """Count each key once; a key given twice counts twice."""
        _see(self._memory, self._narrow, self._now(), keys, True, _NO_COUNTS)

    def count_many(self, keys: U64Array) -> U32Array:
        """Return how often each key was added within the window, shape (n,), changing nothing."""
        counts = np.empty(len(keys), np.uint32)
        _see(self._memory, self._narrow, self._now(), keys, False, counts)
        return counts

    def add_and_count_many(self, keys: U64Array) -> U32Array:
        """Count each key once, then return its count with this one, shape (n,); the second of two equal keys is 2."""
        counts = np.empty(len(keys), np.uint32)
        _see(self._memory, self._narrow, self._now(), keys, True, counts)
        return counts

    def _now(self) -> int:
        """Return the generation under way. A clock that goes back stands still."""
        seconds = int(self._clock_s()) - self._start_s
        self._generation = max(self._generation, GENERATIONS + seconds * (GENERATIONS - 1) // self.window_s)
        return self._generation


class AdmissionGate:
    """Lets a key pass once it was seen often enough: keeps one-hit wonders out of a tier. One thread owns it.

    About `expected_keys` different keys are seen in a window; beyond that more and more pass too early, none too late.
    """

    def __init__(self, admission: Admission, *, clock_s: ClockS, expected_keys: int = DEFAULT_KEYS) -> None:
        """Raises ValueError where `admission` asks for more than 255 hits, or a window shorter than a second."""
        self.admission = admission
        self._seen = WindowedCounts(
            admission.window_s, clock_s=clock_s, expected_keys=expected_keys, most=max(1, admission.hits)
        )

    @property
    def bytes_used(self) -> int:
        """Bytes allocated."""
        return self._seen.bytes_used

    def admit_many(self, keys: U64Array) -> BoolArray:
        """Count this sighting of each key; return which were seen `hits` times within the window, shape (n,)."""
        return self._seen.add_and_count_many(keys) >= self.admission.hits
