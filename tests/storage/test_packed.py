"""Packed rows: what goes in comes out at the stated resolution, whatever it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashnest.jit import kernel
from flashnest.record import (
    ACCEPTED,
    CHAIN,
    CHUNK_BLOCK,
    CHUNK_DIGEST,
    CHUNK_KV_VERSION,
    DRAFTED,
    HITS,
    INSERTED,
    LAST_ACCESS,
    META,
    NAMESPACE,
    REFS,
    Kind,
    U32Array,
    U64Array,
    pack_meta,
    row_chain_lengths,
    row_kinds,
    row_tokens,
)
from flashnest.storage.packed import (
    MAX_DRAFTED,
    MAX_HITS,
    MAX_REFS,
    PERIOD_S,
    TOKEN_BITS,
    pack_row,
    packed_words,
    unpack_row,
)

_U64 = np.uint64


@kernel
def pack_many(rows: U32Array, namespaces: U32Array, token_bits: int, now: int, packed: U64Array) -> None:
    """Pack rows (n, words) into packed (n, packed_words); namespaces (n,): the index of each row's namespace id."""
    flat, out, words, size = rows.reshape(-1), packed.reshape(-1), rows.shape[1], packed.shape[1]
    for i in range(rows.shape[0]):
        pack_row(
            out,
            _U64(i * size),
            flat,
            _U64(i * words),
            words,
            _U64(token_bits),
            _U64(namespaces[i]),
            now,
        )


@kernel
def unpack_many(packed: U64Array, keys: U64Array, names: U32Array, token_bits: int, now: int, rows: U32Array) -> None:
    """Unpack rows; names uint32 (4096,): the namespace ids by index; keys (n,): where a chunk's digest begins."""
    flat, out, words, size = packed.reshape(-1), rows.reshape(-1), rows.shape[1], packed.shape[1]
    for i in range(rows.shape[0]):
        unpack_row(flat, _U64(i * size), out, _U64(i * words), words, _U64(token_bits), keys[i], names, now)


NOW = 3 * PERIOD_S + 12345
NAMES = np.arange(4096, dtype=np.uint32) * np.uint32(2654435761)
U32 = st.integers(0, 2**32 - 1)


def round_trip(
    row: np.ndarray, *, token_bits: int = TOKEN_BITS, now: int = NOW, later: int | None = None, key: int = 1
) -> np.ndarray:
    """Pack one row at `now` and unpack it at `later`; its NAMESPACE is an index into NAMES."""
    rows = row.astype(np.uint32).reshape(1, -1)
    packed = np.full((1, packed_words(rows.shape[1], token_bits)), 0xDEAD, np.uint64)
    pack_many(rows, rows[:, NAMESPACE].copy(), token_bits, now, packed)
    out = np.full_like(rows, 77)
    unpack_many(packed, np.array([key], np.uint64), NAMES, token_bits, now if later is None else later, out)
    return out[0]


def ngram(chain: list[int], **facts: int) -> np.ndarray:
    row = np.zeros(CHAIN + len(chain), np.uint32)
    row[META] = pack_meta(facts.get("kind", Kind.NGRAM), facts.get("tokens", 32), len(chain))
    row[NAMESPACE], row[HITS], row[REFS] = facts.get("namespace", 9), facts.get("hits", 3), facts.get("refs", 2)
    row[LAST_ACCESS], row[INSERTED] = facts.get("last", NOW - 5), facts.get("inserted", NOW - 99)
    row[DRAFTED], row[ACCEPTED] = facts.get("drafted", 20), facts.get("accepted", 10)
    row[CHAIN:] = chain
    return row


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_row_that_fits_comes_back_bit_for_bit(data: st.DataObject) -> None:
    bits = data.draw(st.integers(8, 32))
    tokens = st.integers(0, 2**bits - 1)
    now = data.draw(st.integers(PERIOD_S, 2**32 - 1))
    row = ngram(
        data.draw(st.lists(tokens, min_size=7, max_size=31)),
        kind=data.draw(st.sampled_from([Kind.NGRAM, 2, 3])),
        tokens=data.draw(st.integers(0, 255)),
        namespace=data.draw(st.integers(0, 4095)),
        hits=data.draw(st.integers(0, MAX_HITS)),
        refs=data.draw(st.integers(0, MAX_REFS)),
        last=now - data.draw(st.integers(0, PERIOD_S - 1)),
        inserted=now - data.draw(st.integers(0, PERIOD_S - 1)),
        drafted=data.draw(st.integers(0, MAX_DRAFTED)),
        accepted=data.draw(st.integers(0, MAX_DRAFTED)),
    )
    expected = row.copy()
    expected[NAMESPACE] = NAMES[row[NAMESPACE]]
    assert round_trip(row, token_bits=bits, now=now).tolist() == expected.tolist()


@settings(max_examples=200, deadline=None)
@given(hits=U32, refs=U32, drafted=U32, accepted=U32, last=U32, inserted=st.integers(1, 2**32 - 1))
def test_whatever_does_not_fit_saturates(
    hits: int, refs: int, drafted: int, accepted: int, last: int, inserted: int
) -> None:
    accepted = min(accepted, drafted)
    facts = {"hits": hits, "refs": refs, "drafted": drafted, "accepted": accepted, "last": last, "inserted": inserted}
    out = round_trip(ngram([1] * 8, **facts)).astype(np.int64)
    assert (out[HITS], out[REFS]) == (min(hits, MAX_HITS), min(refs, MAX_REFS))
    oldest = NOW - PERIOD_S + 1
    assert out[LAST_ACCESS] == min(max(last, oldest), NOW)
    assert out[INSERTED] == min(max(inserted, oldest), NOW)
    assert out[DRAFTED] <= MAX_DRAFTED
    if drafted <= MAX_DRAFTED:
        assert (out[DRAFTED], out[ACCEPTED]) == (drafted, accepted)
    else:
        assert out[DRAFTED] > MAX_DRAFTED // 2
        assert out[ACCEPTED] / out[DRAFTED] == pytest.approx(accepted / drafted, abs=1 / 31)


@settings(max_examples=100, deadline=None)
@given(later=st.integers(0, PERIOD_S - 100))
def test_times_stay_true_as_the_clock_passes_the_period(later: int) -> None:
    out = round_trip(ngram([1] * 8), later=NOW + later)
    assert (out[LAST_ACCESS], out[INSERTED]) == (NOW - 5, NOW - 99)


def test_a_time_older_than_the_period_is_read_as_a_later_one_never_as_the_future() -> None:
    out = round_trip(ngram([1] * 8), later=NOW + PERIOD_S)
    assert (out[LAST_ACCESS], out[INSERTED]) == (NOW + PERIOD_S - 5, NOW + PERIOD_S - 99)


def test_times_of_a_young_clock_never_go_below_zero() -> None:
    out = round_trip(ngram([1] * 8, last=1, inserted=2), now=3)
    assert (out[LAST_ACCESS], out[INSERTED]) == (1, 2)
    assert round_trip(ngram([1] * 8, last=9, inserted=9), now=9, later=5)[INSERTED] == 0


def test_a_row_without_times_is_new() -> None:
    out = round_trip(ngram([1] * 8, last=0, inserted=0))
    assert (out[LAST_ACCESS], out[INSERTED]) == (NOW, NOW)


@settings(max_examples=100, deadline=None)
@given(chain=st.lists(st.integers(0, 2**20), min_size=7, max_size=31), bits=st.integers(16, 20))
def test_a_chain_ends_before_the_first_token_that_does_not_fit(chain: list[int], bits: int) -> None:
    fitting = next((j for j, token in enumerate(chain) if token >= 1 << bits), len(chain))
    out = round_trip(ngram(chain), token_bits=bits).reshape(1, -1)
    assert row_chain_lengths(out)[0] == fitting
    assert out[0, CHAIN:].tolist() == chain[:fitting] + [0] * (len(chain) - fitting)
    assert (row_tokens(out)[0], row_kinds(out)[0]) == (32, Kind.NGRAM)


@settings(max_examples=100, deadline=None)
@given(block=U32, version=U32, digest=st.lists(U32, min_size=4, max_size=4), words=st.integers(15, 39))
def test_a_chunk_keeps_block_version_and_digest(block: int, version: int, digest: list[int], words: int) -> None:
    row = ngram([0] * (words - CHAIN), kind=Kind.CHUNK)
    row[CHUNK_BLOCK], row[CHUNK_KV_VERSION], row[CHUNK_DIGEST : CHUNK_DIGEST + 4] = block, version, digest
    expected = row.copy()
    expected[NAMESPACE] = NAMES[9]
    key = digest[0] | digest[1] << 32
    assert round_trip(row, key=key).tolist() == expected.tolist()


def test_the_default_row_takes_32_bytes() -> None:
    assert packed_words(16) == 4
    assert packed_words(15) == 4, "a chunk needs them"
    assert packed_words(17) == 5
    assert packed_words(16, 16) == 4
    assert packed_words(39, 32) == 18
