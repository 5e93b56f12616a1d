"""Keys: 64-bit n-gram hashes by numba, 128-bit chained chunk digests by xxh3. Stores see only the keys.

An n-gram key hashes the last n tokens walking backwards from the newest, so one walk over 32 tokens gives the
keys of all lengths. The mix is one round of the published splitmix64 finaliser a token (Steele et al., OOPSLA 2014),
salted by the namespace; drafts are verified by the model, so this hash needs speed and spread, not secrecy.

A chunk digest is xxh3_128(parent digest, 32 token ids) seeded from namespace and kv_version: KV depends on every
token before it, so the key chains its parent (design.md 4). The table's key is the digest's low half; the whole
digest and the tokens themselves are compared before a block is reused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, cast

import numpy as np
import xxhash

from flashnest.jit import inline_kernel, kernel
from flashnest.record import CHUNK_TOKENS, I32Array, U32Array, U64Array

_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


def mix64_many(x: U64Array) -> U64Array:
    """Return the splitmix64 finaliser of each uint64 of `x`: a bijection with full avalanche."""
    x = (x ^ (x >> _S30)) * _M1
    x = (x ^ (x >> _S27)) * _M2
    return x ^ (x >> _S31)


mix64 = cast(Callable[[np.uint64], np.uint64], inline_kernel(mix64_many))
"""The same of one uint64, for kernels: one text serves both, since the operators are the same."""


@inline_kernel
def _key(h: np.uint64, length: int) -> np.uint64:
    key = mix64(h ^ np.uint64(length))
    return key if key != np.uint64(0) else _GOLDEN


@inline_kernel
def hash_tail(tokens: I32Array, end: int, lengths: I32Array, salt: np.uint64, out: U64Array) -> int:
    """Write the keys of the n-grams that end before index `end`, one for each length (ascending) that fits.

    Returns how many lengths fitted. A key is never 0: stores use 0 for an empty slot.
    """
    h = salt
    done = 0
    fitted = 0
    for i in range(len(lengths)):
        n = lengths[i]
        if n > end:
            break
        fitted += 1
        while done < n:
            done += 1
            h = mix64(h + _GOLDEN + np.uint64(np.uint32(tokens[end - done])))
        out[i] = _key(h, n)
    return fitted


@inline_kernel
def _hash_four_tails(
    tokens: I32Array, ends: I32Array, lengths: I32Array, salts: U64Array, out: U64Array, r: int
) -> None:
    """Do what `hash_tail` does for rows r..r+3, all at least as long as the longest length, token by token in turn.

    One mix waits for the last: alone, a row of 32 tokens takes 150 ns; four in turn 40 ns each.
    """
    a, b, c, d, done = salts[r], salts[r + 1], salts[r + 2], salts[r + 3], 0
    for i in range(len(lengths)):
        while done < lengths[i]:
            done += 1
            a = mix64(a + _GOLDEN + np.uint64(np.uint32(tokens[r, ends[r] - done])))
            b = mix64(b + _GOLDEN + np.uint64(np.uint32(tokens[r + 1, ends[r + 1] - done])))
            c = mix64(c + _GOLDEN + np.uint64(np.uint32(tokens[r + 2, ends[r + 2] - done])))
            d = mix64(d + _GOLDEN + np.uint64(np.uint32(tokens[r + 3, ends[r + 3] - done])))
        out[r, i], out[r + 1, i] = _key(a, lengths[i]), _key(b, lengths[i])
        out[r + 2, i], out[r + 3, i] = _key(c, lengths[i]), _key(d, lengths[i])


@inline_kernel
def hash_rows(
    tokens: I32Array, ends: I32Array, salts: U64Array, lengths: I32Array, out: U64Array, start: int, stop: int
) -> None:
    """Do what `hash_tails` does for rows start..stop-1."""
    longest = lengths[len(lengths) - 1]
    r = start
    while r < stop:
        if r + 4 <= stop and min(min(ends[r], ends[r + 1]), min(ends[r + 2], ends[r + 3])) >= longest:
            _hash_four_tails(tokens, ends, lengths, salts, out, r)
            r += 4
        else:
            for i in range(hash_tail(tokens[r], ends[r], lengths, salts[r], out[r]), lengths.shape[0]):
                out[r, i] = np.uint64(0)
            r += 1


@kernel
def hash_tails(tokens: I32Array, ends: I32Array, salts: U64Array, lengths: I32Array, out: U64Array) -> None:
    """Hash the tails of many sequences in one call.

    tokens int32 (rows, width): row r holds a sequence; ends int32 (rows,): its length; salts uint64 (rows,);
    lengths int32 (k,) ascending; out uint64 (rows, k): 0 where the sequence is shorter than the length.
    """
    hash_rows(tokens, ends, salts, lengths, out, 0, ends.shape[0])


@dataclass(frozen=True, slots=True)
class ChunkKeys:
    """The chained keys of a prompt's full chunks.

    keys uint64 (chunks,): what the table is asked; digests uint32 (chunks, 4): the whole 128-bit digest, low word
    first. `parents[i]` is `digests[i - 1]`, zeros for the first.
    """

    keys: U64Array
    digests: U32Array

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def of(cls, digests: U32Array) -> Self:
        """Return the keys of digests uint32 (chunks, 4)."""
        keys = digests[:, :2].copy().view(np.uint64).reshape(len(digests))
        keys[keys == 0] = _GOLDEN
        return cls(keys, digests)


def chunk_seed(salt: int, kv_version: int) -> int:
    """Return the 64-bit seed that keeps tenants and weights apart in chunk digests."""
    return xxhash.xxh3_64_intdigest(salt.to_bytes(8, "little") + kv_version.to_bytes(8, "little"))


def chunk_keys(tokens: I32Array, seed: int, parent: bytes = b"\0" * 16) -> ChunkKeys:
    """Hash the full 32-token chunks of `tokens` (int32, 1-D), chained from `parent`; a last part chunk is left out."""
    count = len(tokens) // CHUNK_TOKENS
    data = np.ascontiguousarray(tokens[: count * CHUNK_TOKENS], dtype="<i4").tobytes()
    step = 4 * CHUNK_TOKENS
    digests = np.empty((count, 16), np.uint8)
    for i in range(count):
        parent = chunk_digest(data[i * step : (i + 1) * step], seed, parent)
        digests[i] = np.frombuffer(parent, np.uint8)
    return ChunkKeys.of(digests.view(np.uint32).reshape(count, 4))


def chunk_digest(tokens: bytes, seed: int, parent: bytes) -> bytes:
    """Return the 16 bytes, low word first, of the digest of 32 little-endian int32 tokens that follow `parent`."""
    return xxhash.xxh3_128_digest(parent + tokens, seed=seed)[::-1]
