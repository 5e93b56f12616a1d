"""The 4 KiB bucket: its layout and the kernels that check, search, merge and list buckets. Opens no file.

    word (uint64)   0          xxh3_64 of the rest of the page
                    1          magic, with the layout's version
                    2          the bucket's number: a page written in the wrong place is damaged
                    3          records in it
                    4          the store's id: a page of an earlier file at the same place is damaged
                    5..7       zero
                    8..        keys, ascending, `slots` of them
    then            rows, uint32 (slots, words), as they are in `flashnest.record`

Bucket of a key = key * buckets / 2**64: monotone, so that bucket order is key order. Keys are hashes and therefore
spread evenly as they are. A page of zeros is an empty bucket. Rows of 16 words: 56 records a bucket.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest.jit import inline_kernel, kernel
from flashnest.record import LAST_ACCESS, META, BoolArray, I64Array, U8Array, U32Array, U64Array
from flashnest.storage.page_io import PAGE_BYTES
from flashnest.storage.slots_hash import page_checksum

LAYOUT_VERSION: Final = 1
TOMBSTONE: Final = 0xFF
"""Kind code of a removal in log and segments; no record has it and no bucket holds one."""
EMPTY, WHOLE, DAMAGED = 0, 1, 2
"""What `check_pages` says of a page."""

_HEADER_BYTES: Final = 64
_CHECKSUM, _MAGIC, _NUMBER, _COUNT, _STORE, _KEYS = 0, 1, 2, 3, 4, 8
_MAGIC_WORD: Final = np.uint64(0x0001_544F_4C53_4E46)  # "FNSLOT", then the version
_MISS, _HIT, _UNKNOWN = np.uint8(0), np.uint8(1), np.uint8(2)  # `State`; PENDING stands for "ask the pages"


def slots_for(words: int) -> int:
    """Return how many records of `words` uint32 words a bucket holds; counts of buckets are kept in a byte."""
    return min(255, (PAGE_BYTES - _HEADER_BYTES) // (8 + 4 * words))


@inline_kernel
def bucket_of(key: np.uint64, buckets: np.uint64) -> np.uint64:
    """Return key * buckets >> 64; `buckets` is below 2**32."""
    low = ((key & np.uint64(0xFFFFFFFF)) * buckets) >> np.uint64(32)
    return ((key >> np.uint64(32)) * buckets + low) >> np.uint64(32)


@kernel
def buckets_of(keys: U64Array, buckets: int, out: I64Array) -> None:
    """Write the bucket of each key, int64 (n,)."""
    for i in range(keys.shape[0]):
        out[i] = np.int64(bucket_of(keys[i], np.uint64(buckets)))


@kernel
def plan_reads(keys: U64Array, state: U8Array, counts: U8Array, wanted: I64Array, page_of: I64Array) -> int:
    """Find which buckets must be read for the keys whose state is PENDING; keys of empty buckets become MISS.

    counts uint8 (buckets,); writes `wanted` int64, the buckets ascending, once each; page_of int64 (n,): each key's
    place in `wanted`, -1 where it needs none. Returns how many are wanted.
    """
    n = keys.shape[0]
    asked = np.empty(n, np.int64)
    bucket = np.empty(n, np.int64)
    m = 0
    for i in range(n):
        page_of[i] = -1
        if state[i] == _UNKNOWN:
            b = np.int64(bucket_of(keys[i], np.uint64(counts.shape[0])))
            if counts[b] == 0:
                state[i] = _MISS
            else:
                asked[m], bucket[m] = i, b
                m += 1
    order = np.argsort(bucket[:m])
    pages = 0
    for j in range(m):
        b = bucket[order[j]]
        if pages == 0 or wanted[pages - 1] != b:
            wanted[pages] = b
            pages += 1
        page_of[asked[order[j]]] = pages - 1
    return pages


@kernel
def check_pages(
    pages: U64Array, numbers: I64Array, came: BoolArray, at: I64Array, slots: int, store: np.uint64, out: U8Array
) -> int:
    """Say of some pages whether they are EMPTY, WHOLE or DAMAGED; returns how many are damaged.

    pages uint64 (m, 512); at int64: which of them to check; numbers int64, came bool, out uint8 (n,): by the same
    index, which buckets they should be, whether they could be read, the answer.
    """
    product, plain = np.empty(8, np.uint64), np.empty(8, np.uint64)
    damaged = 0
    for j in range(at.shape[0]):
        i = at[j]
        page = pages[i]
        out[i] = DAMAGED
        if came[i] and page[_MAGIC] == np.uint64(0):
            out[i] = EMPTY
            for word in range(page.shape[0]):
                if page[word]:
                    out[i] = DAMAGED
        elif came[i]:
            ours = page[_MAGIC] == _MAGIC_WORD and page[_STORE] == store and page[_NUMBER] == np.uint64(numbers[i])
            whole = page[_CHECKSUM] == page_checksum(page, product, plain)
            if ours and whole and page[_COUNT] <= np.uint64(slots):
                out[i] = WHOLE
        damaged += out[i] == DAMAGED
    return damaged


@kernel
def page_counts(pages: U64Array, status: U8Array, out: U8Array) -> None:
    """Write how many records each of the first len(status) pages holds, uint8 (n,)."""
    for i in range(status.shape[0]):
        out[i] = pages[i, _COUNT] if status[i] == WHOLE else 0


@kernel
def find_rows(
    pages: U64Array, words32: U32Array, status: U8Array, slots: int, first: int, page_of: I64Array, keys: U64Array,
    state: U8Array, rows: U32Array,
) -> None:  # fmt: skip
    """Answer the keys whose page is among those read: HIT with its row, or MISS.

    pages and words32 are the same memory, uint64 (m, 512) and uint32 (m, 1024); the first len(status) are pages
    `first`.. of the plan; page_of int64 (n,) as `plan_reads` made it; state uint8 and rows uint32 (n.., words).
    """
    words = rows.shape[1]
    for i in range(keys.shape[0]):
        p = page_of[i] - first
        if page_of[i] < 0 or p < 0 or p >= status.shape[0]:
            continue
        state[i] = _MISS
        if status[p] != WHOLE:
            continue
        page = pages[p]
        for slot in range(np.int64(page[_COUNT])):
            if page[_KEYS + slot] == keys[i]:
                at = 2 * (_KEYS + slots) + slot * words
                for w in range(words):
                    rows[i, w] = words32[p, at + w]
                state[i] = _HIT
                break


@kernel
def list_pages(pages: U64Array, words32: U32Array, status: U8Array, slots: int, keys: U64Array, rows: U32Array) -> int:
    """Copy every record of the whole pages out, in key order; returns how many. keys, rows: room for all slots."""
    words = rows.shape[1]
    n = 0
    for p in range(status.shape[0]):
        if status[p] == WHOLE:
            for slot in range(np.int64(pages[p, _COUNT])):
                keys[n] = pages[p, _KEYS + slot]
                at = 2 * (_KEYS + slots) + slot * words
                for w in range(words):
                    rows[n, w] = words32[p, at + w]
                n += 1
    return n


@inline_kernel
def _merge_order(
    old: U64Array, held: np.int64, keys: U64Array, rows: U32Array, order: I64Array, first: np.int64, stop: np.int64,
    slots: int, sources: I64Array,
) -> int:  # fmt: skip
    """Write where each record of the new page comes from, in key order; returns how many there are.

    A source is a slot of the old page, or `slots` + an index into keys and rows.
    """
    total, i, j = 0, 0, first
    while i < held or j < stop:
        if j < stop and (i >= held or keys[order[j]] <= old[_KEYS + i]):
            if i < held and keys[order[j]] == old[_KEYS + i]:
                i += 1
            if rows[order[j], META] & 0xFF != TOMBSTONE:
                sources[total] = slots + order[j]
                total += 1
            j += 1
        else:
            sources[total] = i
            total += 1
            i += 1
    return total


@inline_kernel
def _drop_oldest(sources: I64Array, access: U32Array, total: int, slots: int) -> int:
    """Keep the `slots` of the candidates that were used last, in their order; returns how many went."""
    order = np.argsort(access[:total])
    for i in range(total - slots):
        sources[order[i]] = -1
    kept = 0
    for i in range(total):
        if sources[i] >= 0:
            sources[kept] = sources[i]
            kept += 1
    return total - slots


@kernel
def merge_pages(
    old: U64Array, old32: U32Array, status: U8Array, new: U64Array, new32: U32Array, numbers: I64Array,
    starts: I64Array, keys: U64Array, rows: U32Array, order: I64Array, slots: int, store: np.uint64, counts: U8Array,
) -> int:  # fmt: skip
    """Build pages anew from the old ones and the records that go into them; returns how many records were evicted.

    old, old32 and new, new32: two views of each memory, as in `find_rows`; numbers int64 (n,): the buckets; status
    uint8 (n,) of the old pages, only WHOLE ones give records. Records order[starts[p]:starts[p + 1]] of keys and rows
    go into page p, ascending, and replace those there; tombstones erase; where more than `slots` remain, those with
    the oldest LAST_ACCESS go. counts uint8 (n,): records in each new page.
    """
    words, row_at, most = rows.shape[1], 2 * (_KEYS + slots), 0
    for p in range(numbers.shape[0]):
        most = max(most, starts[p + 1] - starts[p])
    sources, access = np.empty(slots + most, np.int64), np.empty(slots + most, np.uint32)
    product, plain = np.empty(8, np.uint64), np.empty(8, np.uint64)
    evicted = 0
    for p in range(numbers.shape[0]):
        held = np.int64(old[p, _COUNT]) if status[p] == WHOLE else np.int64(0)
        first, stop = starts[p], starts[p + 1]
        total = _merge_order(old[p], held, keys, rows, order, first, stop, slots, sources)
        if total > slots:
            for i in range(total):
                source = sources[i]
                at = row_at + source * words + LAST_ACCESS
                access[i] = old32[p, at] if source < slots else rows[source - slots, LAST_ACCESS]
            evicted += _drop_oldest(sources, access, total, slots)
            total = slots
        new[p, :] = 0
        for slot in range(total):
            source, at = sources[slot], row_at + slot * words
            new[p, _KEYS + slot] = old[p, _KEYS + source] if source < slots else keys[source - slots]
            for w in range(words):
                word = old32[p, row_at + source * words + w] if source < slots else rows[source - slots, w]
                new32[p, at + w] = word
        new[p, _MAGIC], new[p, _NUMBER] = _MAGIC_WORD, np.uint64(numbers[p])
        new[p, _COUNT], new[p, _STORE] = np.uint64(total), store
        new[p, _CHECKSUM] = page_checksum(new[p], product, plain)
        counts[p] = total
    return evicted
