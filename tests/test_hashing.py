"""Keys: what they depend on, and what they must not."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash

from flashnest.hashing import ChunkKeys, chunk_keys, chunk_seed, hash_tails, mix64
from flashnest.record import CHUNK_TOKENS, NGRAM_LENGTHS, namespace_salt

LENGTHS = np.array(NGRAM_LENGTHS, np.int32)
SALT = namespace_salt("default")


def tails(sequences: list[list[int]], salts: list[int] | None = None, lengths: np.ndarray = LENGTHS) -> np.ndarray:
    width = max(len(s) for s in sequences)
    tokens = np.zeros((len(sequences), width), np.int32)
    for r, sequence in enumerate(sequences):
        tokens[r, : len(sequence)] = sequence
    ends = np.array([len(s) for s in sequences], np.int32)
    out = np.full((len(sequences), len(lengths)), 7, np.uint64)
    hash_tails(tokens, ends, np.array(salts or [SALT] * len(sequences), np.uint64), lengths, out)
    return out


def test_mix64_is_the_published_splitmix64() -> None:
    """First outputs of splitmix64 seeded with 1234567 (Vigna's reference), whose finaliser this is."""
    golden = 0x9E3779B97F4A7C15
    states = [(1234567 + golden * i) % 2**64 for i in (1, 2, 3)]
    assert [int(mix64(np.uint64(s))) for s in states] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_key_depends_on_its_last_tokens_only() -> None:
    tail = list(range(100, 108))
    a, b = tails([[1, 2, 3, *tail], [9, 9, *tail]])
    assert a[:2].tolist() == b[:2].tolist()
    assert a[1] != tails([[1, 2, 3, *tail[:-1], 5]])[0][1]


def test_every_token_and_its_place_matter() -> None:
    base = list(range(32))
    keys = {int(tails([base])[0][3])}
    for i in range(32):
        changed = base.copy()
        changed[i] += 1000
        keys.add(int(tails([changed])[0][3]))
    for i in range(31):
        swapped = base.copy()
        swapped[i], swapped[i + 1] = swapped[i + 1], swapped[i]
        keys.add(int(tails([swapped])[0][3]))
    assert len(keys) == 1 + 32 + 31


def test_lengths_of_equal_tokens_do_not_share_keys() -> None:
    keys = tails([[0] * 40])[0]
    assert len(set(keys.tolist())) == 4


def test_namespaces_do_not_share_keys() -> None:
    sequence = list(range(32))
    a, b = tails([sequence, sequence], [namespace_salt("a"), namespace_salt("b")])
    assert not set(a.tolist()) & set(b.tolist())


def test_lengths_that_do_not_fit_are_zero() -> None:
    keys = tails([[1, 2, 3], [1, 2, 3, 4], list(range(31))])
    assert (keys != 0).tolist() == [[False] * 4, [True, False, False, False], [True, True, True, False]]


def test_one_sequence_and_many_have_the_same_keys() -> None:
    """Four sequences are hashed side by side where there are as many; the others one by one."""
    tokens = np.random.default_rng(0).integers(0, 50_000, 60).astype(np.int32)
    sequences = [tokens[:p].tolist() for p in range(1, 60)]
    assert tails(sequences).tolist() == [tails([one])[0].tolist() for one in sequences]


def test_keys_are_well_spread() -> None:
    """Sequential texts give keys whose every bit is set half of the time."""
    tokens = np.lib.stride_tricks.sliding_window_view(np.arange(20_000, dtype=np.int32), 4).copy()
    ends, salts = np.full(len(tokens), 4, np.int32), np.full(len(tokens), SALT, np.uint64)
    out = np.zeros((len(tokens), 1), np.uint64)
    hash_tails(tokens, ends, salts, np.array([4], np.int32), out)
    assert len(np.unique(out)) == len(out)
    bits = np.unpackbits(out.view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
    assert (abs(bits - 0.5) < 0.02).all()


def test_chunk_digest_chains_its_parent_by_xxh3_128() -> None:
    tokens = np.arange(70, dtype=np.int32)
    keys = chunk_keys(tokens, 42)
    assert len(keys) == 2
    parent = b"\0" * 16
    for i in range(2):
        data = tokens[i * CHUNK_TOKENS : (i + 1) * CHUNK_TOKENS].astype("<i4").tobytes()
        value = xxhash.xxh3_128_intdigest(parent + data, seed=42)
        parent = value.to_bytes(16, "little")
        assert keys.digests[i].tobytes() == parent
        assert int(keys.keys[i]) == value & (2**64 - 1)


def test_chunk_keys_change_from_the_first_difference_on() -> None:
    a = np.arange(32 * 4, dtype=np.int32)
    b = a.copy()
    b[40] += 1
    first, second = chunk_keys(a, 1), chunk_keys(b, 1)
    assert (first.keys == second.keys).tolist() == [True, False, False, False]


def test_chunks_continued_from_a_digest_equal_chunks_hashed_at_once() -> None:
    tokens = np.arange(128, dtype=np.int32)
    whole = chunk_keys(tokens, 5)
    rest: ChunkKeys = chunk_keys(tokens[64:], 5, whole.digests[1].tobytes())
    assert (rest.digests == whole.digests[2:]).all()


@pytest.mark.parametrize("count", [0, 31])
def test_part_chunks_have_no_key(count: int) -> None:
    assert len(chunk_keys(np.zeros(count, np.int32), 1)) == 0


def test_chunk_seed_keeps_tenants_and_weights_apart() -> None:
    seeds = {chunk_seed(salt, version) for salt in (SALT, namespace_salt("b")) for version in (1, 2)}
    assert len(seeds) == 4
    a, b = (chunk_keys(np.arange(32, dtype=np.int32), seed).keys[0] for seed in sorted(seeds)[:2])
    assert a != b
