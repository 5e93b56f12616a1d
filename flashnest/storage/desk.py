"""The DRAM table's memory: one allocation of an exact size, and the thread that touches its pages. Knows no record.

The allocation holds the units, the list of namespace ids, the sequence counts and the desk (`kernels_layout.py`), each
on lines of its own. Whoever holds the desk holds the allocation: a reader in another thread survives a `close`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

import numpy as np

from flashnest.jit import kernel
from flashnest.record import U8Array, U64Array
from flashnest.storage import kernels_layout as layout
from flashnest.storage.lines import LINE_BYTES, touch
from flashnest.storage.packed import packed_words

MOST_NAMES: Final = 4096
"""Namespace ids that rows can tell apart, 0 included."""
_MOST_STRIPES: Final = 4096
_PAGE_WORDS: Final = 512
_SLICE_WORDS: Final = 1 << 20
_AT_ONCE_WORDS: Final = 1 << 21
"""16 MiB are touched in 5 ms: not worth a thread."""


@dataclass(frozen=True, slots=True)
class Desk:
    """The allocation and its parts. `fixed_bytes`: what is not units."""

    allocated: U8Array
    desk: U64Array
    memory: U64Array
    """The units, (buckets // 2 x unit words,)."""


def _power_of_two(at_most: int) -> int:
    return 1 << max(at_most, 1).bit_length() - 1


def _side_sizes(budget_bytes: int) -> tuple[int, int]:
    """Return (namespace ids, stripes): 4096 each from 4 MiB on, fewer for tables that hold fewer records anyway."""
    scaled = _power_of_two(budget_bytes // 1024)
    return min(max(scaled, 64), MOST_NAMES), min(max(scaled, 16), _MOST_STRIPES)


def fixed_bytes(budget_bytes: int) -> int:
    """Return the bytes of an allocation that are not units: names and their hash, stripes, desk, alignment."""
    names, stripes = _side_sizes(budget_bytes)
    return LINE_BYTES + 8 * layout.DESK_WORDS + (4 + 2 * 2) * names + 4 * stripes


def allocate(budget_bytes: int, units: int, words: int, token_bits: int) -> Desk:
    """Allocate zeroed memory for `units` units and fill in the desk. Pages are taken only when touched."""
    names, stripes = _side_sizes(budget_bytes)
    unit = layout.unit_words(words, token_bits)
    # 64 bytes more than needed, to start on a line of its own: numpy aligns to 16.
    allocated = np.zeros(8 * unit * units + fixed_bytes(budget_bytes), np.uint8)
    start = -allocated.ctypes.data % LINE_BYTES
    desk_at = start + 8 * unit * units
    desk = allocated[desk_at : desk_at + 8 * layout.DESK_WORDS].view(np.uint64)
    names_at = allocated.ctypes.data + desk_at + desk.nbytes
    desk[layout.MEMORY] = allocated.ctypes.data + start
    desk[layout.BUCKETS], desk[layout.UNIT] = layout.UNIT_BUCKETS * units, unit
    desk[layout.ROW], desk[layout.WORDS] = packed_words(words, token_bits), words
    desk[layout.TOKEN_BITS] = token_bits
    desk[layout.NAMES], desk[layout.NAMES_ROOM] = names_at, names
    desk[layout.NAME_SLOTS], desk[layout.STRIPES] = names_at + 4 * names, names_at + 8 * names
    desk[layout.STRIPE_COUNT] = stripes
    return Desk(allocated, desk, allocated[start:desk_at].view(np.uint64))


@kernel
def touch_pages(memory: U64Array, start: int, stop: int) -> None:
    """Make every page of memory[start:stop] present, whatever other threads write meanwhile."""
    for word in range(start, min(stop, memory.shape[0]), _PAGE_WORDS):
        touch(memory, np.uint64(word))


class PageToucher:
    """Touches a table's pages in a thread of its own, 8 MiB at a time, so that no decode step pays for zeroing them.

    Without it the first records to reach a 2 MiB page wait some 200 us each. Small memories are touched at once.
    """

    def __init__(self, memory: U64Array) -> None:
        """Start."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        if len(memory) <= _AT_ONCE_WORDS:
            touch_pages(memory, 0, len(memory))
            return
        self._thread = threading.Thread(target=self._run, args=(memory,), name="flashnest-pages", daemon=True)
        self._thread.start()

    def _run(self, memory: U64Array) -> None:
        for start in range(0, len(memory), _SLICE_WORDS):
            if self._stopping.is_set():
                return
            touch_pages(memory, start, start + _SLICE_WORDS)

    def wait(self) -> None:
        """Return when every page is there."""
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        """Stop within one slice."""
        self._stopping.set()
        self.wait()
