"""Machine code for readers in other threads: rows checked by sequence counts, nothing touched. Owns no memory.

One thread writes. It makes the count of a key's stripe odd before it changes what the key has or where it lies, and
even again after (Lamport 1977; Linux seqlock). A reader that sees one even number before and after has read one state
of the record. A record that lies still is always found: the counts of the buckets on its way contain it whatever the
writer does with other keys, and each word is read and written whole.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest.jit import inline_kernel, kernel
from flashnest.record import U8Array, U32Array, U64Array
from flashnest.storage.kernels_layout import ABSENT, BLOCK, Layout, ask_bucket, find, layout_of, row_of, stripe_of
from flashnest.storage.lines import fence_acquire, load_acquire
from flashnest.storage.packed import unpack_row

_U64 = np.uint64
_ODD = np.uint32(1)
_TRIES: Final = 4096
"""Tries before the call returns to Python, so that a writer that was interrupted gets the core: some 50 us."""


@inline_kernel
def _peek(layout: Layout, key: np.uint64, out: U32Array, to: np.uint64, now: int) -> int:
    """Return 1 where the key is stored (its row is at `to` then), 0 where it is not, -1 where it keeps changing."""
    stripe = stripe_of(layout, key)
    for _ in range(_TRIES):
        before = load_acquire(layout.stripes, stripe)
        if before & _ODD:
            continue
        slot = find(layout, key)
        if slot != ABSENT:
            unpack_row(
                layout.memory, row_of(layout, slot), out, to, layout.words, layout.bits, key, layout.names, now
            )  # fmt: skip
        fence_acquire()
        if load_acquire(layout.stripes, stripe) == before:
            return 1 if slot != ABSENT else 0
    return -1


@kernel
def table_peek(
    desk: U64Array, keys: U64Array, state: U8Array, tier: U8Array, rows: U32Array, code: int, now: int, first: int
) -> int:
    """Answer keys from index `first` on; returns the index of a key that kept changing, or how many keys there are."""
    layout, out = layout_of(desk), rows.reshape(-1)
    if layout.buckets == 0:  # closed
        state[: keys.shape[0]] = 0
        return len(keys)
    for start in range(first, keys.shape[0], BLOCK):
        stop = min(start + BLOCK, keys.shape[0])
        for i in range(start, stop):
            ask_bucket(layout, keys[i])
        for i in range(start, stop):
            there = _peek(layout, keys[i], out, _U64(i * layout.words), now)
            if there < 0:
                return i
            state[i], tier[i] = there, code
    return len(keys)
