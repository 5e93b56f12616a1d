"""The row layout: packing, sizes, namespaces."""

from __future__ import annotations

import numpy as np
import pytest

from flashnest import record
from flashnest.record import (
    CHAIN,
    CHUNK_DIGEST,
    META,
    MIN_CHAIN_WORDS,
    Kind,
    namespace_id,
    namespace_salt,
    pack_meta,
    record_bytes,
    row_chain_lengths,
    row_kinds,
    row_tokens,
    row_words,
)


@pytest.mark.parametrize(("kind", "tokens", "chain"), [(Kind.NGRAM, 32, 8), (Kind.CHUNK, 255, 255), (Kind.NGRAM, 0, 0)])
def test_meta_comes_apart_as_it_was_packed(kind: Kind, tokens: int, chain: int) -> None:
    rows = np.zeros((3, row_words()), np.uint32)
    rows[1, META] = pack_meta(kind, tokens, chain)
    assert row_kinds(rows).tolist() == [0, kind, 0]
    assert row_tokens(rows).tolist() == [0, tokens, 0]
    assert row_chain_lengths(rows).tolist() == [0, chain, 0]


def test_flag_bits_above_the_fields_do_not_disturb_them() -> None:
    rows = np.zeros((1, row_words()), np.uint32)
    rows[0, META] = pack_meta(Kind.CHUNK, 32, 7) | 0xFF00_0000
    assert (row_kinds(rows)[0], row_tokens(rows)[0], row_chain_lengths(rows)[0]) == (Kind.CHUNK, 32, 7)


def test_default_row_is_one_cache_line() -> None:
    assert row_words() * 4 == 64
    assert record_bytes() == 72
    assert record_bytes(16) - record_bytes(8) == 32


def test_header_words_are_distinct_and_in_front_of_the_chain() -> None:
    names = ("META", "NAMESPACE", "HITS", "LAST_ACCESS", "INSERTED", "DRAFTED", "ACCEPTED", "REFS")
    assert [getattr(record, name) for name in names] == list(range(CHAIN))


def test_chunk_row_fits_the_least_chain() -> None:
    assert CHUNK_DIGEST + 4 <= CHAIN + MIN_CHAIN_WORDS


def test_namespaces_have_their_own_salt_and_id() -> None:
    names = ["default", "a", "b", "", "tenant-1"]
    assert len({namespace_salt(name) for name in names}) == len(names)
    assert all(0 <= namespace_salt(name) < 2**64 for name in names)
    assert all(namespace_id(name) == namespace_salt(name) % 2**32 for name in names)
