"""What DRAM knows of the use of cold records: hits and last access by key. Bounded, lossy, never written by itself.

A hit must not write to NVMe (a touched record costs LMDB a 4 KiB page), yet policies ask for `hits` and `idle` of cold
records. So they are counted here, 16 bytes a record: key, hits since noted, last access; four entries share a cache
line and a key belongs to one line, so a touch costs one miss. A new key takes the entry of its line that was touched
longest ago. Counts reach NVMe with a record that is written anyway: merged into its row, then forgotten. Never touches
a store.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest import record
from flashnest.hashing import mix64
from flashnest.jit import inline_kernel, kernel
from flashnest.record import U32Array, U64Array
from flashnest.storage.lines import prefetch_keys

ENTRY_BYTES: Final = 16
_LINE_BYTES: Final = 64
_BLOCK: Final = 32
_U64 = np.uint64
_ZERO, _ONE, _EIGHT, _S32 = _U64(0), _U64(1), _U64(8), _U64(32)
_LOW = _U64(0xFFFF_FFFF)
_HITS, _LAST_ACCESS = record.HITS, record.LAST_ACCESS


@inline_kernel
def _line(key: np.uint64, lines: np.uint64) -> np.uint64:
    return ((mix64(key) >> _S32) * lines >> _S32) * _EIGHT


@inline_kernel
def _find(memory: U64Array, base: np.uint64, key: np.uint64) -> np.uint64:
    """Return the entry of a key in its line, or that which a new key takes: free, or touched longest ago."""
    victim, oldest = base, _LOW
    for entry in range(4):
        at = base + _U64(2 * entry)
        if memory[at] == key:
            return at
        last = memory[at + _ONE] >> _S32 if memory[at] != _ZERO else _ZERO
        if last < oldest:
            victim, oldest = at, last
    return victim


@kernel
def _touch(memory: U64Array, keys: U64Array, now: int) -> None:
    lines, last = _U64(memory.shape[0]) // _EIGHT, _U64(now) << _S32
    for start in range(0, keys.shape[0], _BLOCK):
        stop = min(start + _BLOCK, keys.shape[0])
        for i in range(start, stop):
            prefetch_keys(memory, _line(keys[i], lines))
        for i in range(start, stop):
            if keys[i] == _ZERO:
                continue
            at = _find(memory, _line(keys[i], lines), keys[i])
            hits = memory[at + _ONE] & _LOW if memory[at] == keys[i] else _ZERO
            memory[at] = keys[i]
            memory[at + _ONE] = last | min(hits + _ONE, _LOW)


@kernel
def _merge(memory: U64Array, keys: U64Array, rows: U32Array) -> None:
    lines = _U64(memory.shape[0]) // _EIGHT
    for i in range(keys.shape[0]):
        at = _find(memory, _line(keys[i], lines), keys[i])
        if memory[at] != keys[i] or keys[i] == _ZERO:
            continue
        hits = (memory[at + _ONE] & _LOW) + _U64(rows[i, _HITS])
        rows[i, _HITS] = np.uint32(min(hits, _LOW))
        rows[i, _LAST_ACCESS] = max(rows[i, _LAST_ACCESS], np.uint32(memory[at + _ONE] >> _S32))


@kernel
def _forget(memory: U64Array, keys: U64Array) -> None:
    lines = _U64(memory.shape[0]) // _EIGHT
    for i in range(keys.shape[0]):
        at = _find(memory, _line(keys[i], lines), keys[i])
        if memory[at] == keys[i]:
            memory[at] = _ZERO


class Touches:
    """Hits and last access by key in a table of fixed size. One thread owns it. Keys are uint64 (n,); 0 is none."""

    def __init__(self, budget_bytes: int) -> None:
        """Allocate at most `budget_bytes`, at least two lines of 64 bytes; pages are taken as keys arrive."""
        lines = max(1, budget_bytes // _LINE_BYTES - 1)
        allocated = np.zeros((lines + 1) * 8, np.uint64)
        skip = -allocated.ctypes.data % _LINE_BYTES // 8  # numpy aligns to 16
        self._memory: U64Array = allocated[skip : skip + lines * 8]
        self.bytes_used = allocated.nbytes

    def compile(self) -> None:
        """Load or compile the kernels, so that no step waits for it."""
        keys, rows = np.zeros(0, np.uint64), np.zeros((0, record.HEADER_WORDS), np.uint32)
        self.touch_many(keys, 0)
        self.merge_many(keys, rows)
        self.forget_many(keys)

    def touch_many(self, keys: U64Array, now_s: int) -> None:
        """Count a hit of each key at `now_s`."""
        _touch(self._memory, keys, now_s)

    def merge_many(self, keys: U64Array, rows: U32Array) -> None:
        """Add what is known to rows, uint32 (n, words), in place: HITS grow, LAST_ACCESS is the later one."""
        _merge(self._memory, keys, rows)

    def forget_many(self, keys: U64Array) -> None:
        """Forget keys whose records are gone, or were written with their counts."""
        _forget(self._memory, keys)
