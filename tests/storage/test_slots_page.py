"""Buckets as bytes: the checksum is xxh3's, order is key order, and pages that are not right are told apart."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from records import WORDS, rows_of, spread

from flashnest.jit import kernel
from flashnest.storage.page_io import PAGE_BYTES, PageMemory
from flashnest.storage.slots_hash import page_checksum
from flashnest.storage.slots_page import (
    DAMAGED,
    EMPTY,
    WHOLE,
    buckets_of,
    check_pages,
    list_pages,
    merge_pages,
    plan_reads,
    slots_for,
)
from flashnest.storage.store import State

STORE = np.uint64(99)
SLOTS = slots_for(WORDS)


@kernel
def checksums(pages: np.ndarray, out: np.ndarray) -> None:
    product, plain = np.empty(8, np.uint64), np.empty(8, np.uint64)
    for i in range(pages.shape[0]):
        out[i] = page_checksum(pages[i], product, plain)


def test_checksum_is_the_librarys() -> None:
    pages = np.random.default_rng(0).integers(0, 1 << 64, (50, 512), dtype=np.uint64)
    pages[0] = 0
    pages[1] = 0xFFFF_FFFF_FFFF_FFFF
    out = np.zeros(50, np.uint64)
    checksums(pages, out)
    assert out.tolist() == [xxhash.xxh3_64_intdigest(page.tobytes()[8:]) for page in pages]


@pytest.mark.parametrize("buckets", [1, 2, 1000, 2_097_151, (1 << 32) - 1])
def test_bucket_is_the_keys_share_of_all_keys(buckets: int) -> None:
    keys = np.sort(np.append(spread(0, 500), np.array([0, 1, (1 << 64) - 1], np.uint64)))
    out = np.empty(len(keys), np.int64)
    buckets_of(keys, buckets, out)
    assert out.tolist() == [int(key) * buckets >> 64 for key in keys.tolist()]


def test_default_row_fits_56_times() -> None:
    assert slots_for(16) == 56
    assert all(64 + slots_for(words) * (8 + 4 * words) <= PAGE_BYTES for words in range(15, 40))


def one_page(keys: np.ndarray) -> np.ndarray:
    """Return a page that holds `keys` of bucket 0."""
    old, new = PageMemory(1).pages, PageMemory(1).pages
    counts = np.zeros(1, np.uint8)
    merge_pages(
        old.view(np.uint64), old.view(np.uint32), np.zeros(1, np.uint8), new.view(np.uint64), new.view(np.uint32),
        np.zeros(1, np.int64), np.array([0, len(keys)]), keys, rows_of(keys), np.argsort(keys), SLOTS, STORE, counts,
    )  # fmt: skip
    assert counts[0] == len(keys)
    return new


def status(page: np.ndarray, number: int = 0, store: np.uint64 = STORE, came: bool = True) -> int:
    out = np.zeros(1, np.uint8)
    at, numbers = np.zeros(1, np.int64), np.array([number])
    damaged = check_pages(page.view(np.uint64), numbers, np.array([came]), at, SLOTS, store, out)
    assert damaged == (out[0] == DAMAGED)
    return int(out[0])


def test_page_holds_its_records_in_key_order() -> None:
    keys = np.array([50, 7, 300, 8], np.uint64)
    page = one_page(keys)
    assert status(page) == WHOLE
    listed, rows = np.empty(SLOTS, np.uint64), np.empty((SLOTS, WORDS), np.uint32)
    n = list_pages(page.view(np.uint64), page.view(np.uint32), np.array([WHOLE], np.uint8), SLOTS, listed, rows)
    assert listed[:n].tolist() == [7, 8, 50, 300]
    assert (rows[:n] == rows_of(np.sort(keys))).all()


def test_every_single_bit_of_a_page_is_guarded() -> None:
    page = one_page(np.arange(1, 40, dtype=np.uint64))
    for bit in range(0, 8 * PAGE_BYTES, 61):
        page[0, bit // 8] ^= 1 << bit % 8
        assert status(page) == DAMAGED, bit
        page[0, bit // 8] ^= 1 << bit % 8
    assert status(page) == WHOLE


def test_page_of_zeros_is_empty_and_others_are_damaged() -> None:
    page = PageMemory(1).pages
    assert status(page) == EMPTY
    assert status(page, came=False) == DAMAGED
    page[0, -1] = 1
    assert status(page) == DAMAGED
    whole = one_page(np.arange(1, 40, dtype=np.uint64))
    assert status(whole, number=1) == DAMAGED
    assert status(whole, store=np.uint64(98)) == DAMAGED


def test_plan_asks_each_bucket_once_and_none_that_is_empty() -> None:
    keys = np.array([1 << 62, 5, (1 << 62) + 1, 3 << 62, 1 << 63, 6], np.uint64)
    state = np.array([State.PENDING] * 5 + [State.HIT], np.uint8)
    counts = np.array([1, 2, 0, 3], np.uint8)
    wanted, page_of = np.empty(6, np.int64), np.empty(6, np.int64)
    assert plan_reads(keys, state, counts, wanted, page_of) == 3
    assert wanted[:3].tolist() == [0, 1, 3]
    assert page_of.tolist() == [1, 0, 1, 2, -1, -1]
    assert state[4] == State.MISS
