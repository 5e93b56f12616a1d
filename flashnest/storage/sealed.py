"""The bytes of a record on disk: row, checksum, layout version. Knows no file and no engine.

    row        uint32[words], native byte order, as in `flashnest.record`
    checksum   64 bits over key, row and version, low word first (`row_checksum`)
    version    uint32

A value whose length, version or checksum is not right is damaged: it is a miss, never served. Version 1 (xxh3_64, one
Python call a record) is refused when a file is opened; version 2 is checked by the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from flashnest import record
from flashnest.hashing import mix64
from flashnest.jit import inline_kernel, kernel
from flashnest.record import BoolArray, Kind, U32Array, U64Array

LAYOUT_VERSION: Final = 2
SEAL_WORDS: Final = 3
SEAL_BYTES: Final = 4 * SEAL_WORDS

_U64 = np.uint64
_PRIME, _S32, _LOW = _U64(0x9FB21C651E98DF25), _U64(32), _U64(0xFFFF_FFFF)
_VERSION = np.uint32(LAYOUT_VERSION)
_SALT = _U64(0x666C_6173_686E_0000 + LAYOUT_VERSION)
_KIND, _MOST = np.uint32(0xFF), np.uint32(0xFFFF_FFFF)
_META, _HITS, _LAST_ACCESS, _INSERTED = record.META, record.HITS, record.LAST_ACCESS, record.INSERTED
_DRAFTED, _ACCEPTED, _REFS, _CHAIN = record.DRAFTED, record.ACCEPTED, record.REFS, record.CHAIN


@inline_kernel
def row_checksum(key: np.uint64, rows: U32Array, i: int, words: int) -> np.uint64:
    """Return the checksum of row i: a multiply and an xor-shift a word, between two splitmix64 finalisers.

    Each step is a bijection of the state for a given word and of the word for a given state, so one changed word is
    always seen, and more of them but for one time in 2^64. 27 ns a row of 16 words.
    """
    state = mix64(key ^ _SALT)
    for word in range(words):
        state = (state ^ _U64(rows[i, word])) * _PRIME
        state ^= state >> _S32
    return mix64(state)


@kernel
def seal_many(keys: U64Array, rows: U32Array, values: U32Array) -> None:
    """Write the values of records: rows uint32 (n, words) to values uint32 (n, words + 3)."""
    words = rows.shape[1]
    for i in range(keys.shape[0]):
        check = row_checksum(keys[i], rows, i, words)
        for word in range(words):
            values[i, word] = rows[i, word]
        values[i, words] = np.uint32(check & _LOW)
        values[i, words + 1] = np.uint32(check >> _S32)
        values[i, words + 2] = _VERSION


@kernel
def unseal_many(keys: U64Array, values: U32Array, rows: U32Array, whole: BoolArray) -> int:
    """Copy the rows of values that are not damaged; writes which they are, (n,), and returns how many are damaged."""
    words, damaged = rows.shape[1], 0
    for i in range(keys.shape[0]):
        check = _U64(values[i, words]) | _U64(values[i, words + 1]) << _S32
        whole[i] = values[i, words + 2] == _VERSION and check == row_checksum(keys[i], values, i, words)
        if not whole[i]:
            damaged += 1
            continue
        for word in range(words):
            rows[i, word] = values[i, word]
    return damaged


@inline_kernel
def _sum(a: np.uint32, b: np.uint32) -> np.uint32:
    """Return a + b, at most 2^32 - 1."""
    total = np.uint32(a + b)
    return _MOST if total < a else total


@kernel
def keep_facts(old: U32Array, whole: BoolArray, new: U32Array) -> None:
    """Carry stored rows' facts (n, words) into the rows that overwrite them, in place, where `whole`, (n,).

    The rule of `Store.insert_many`: only while kind and first continuation token stay the same. What the new row counts
    of its own (hits noted in DRAM since) is added. An n-gram learnt again adds to REFS.
    """
    for i in range(new.shape[0]):
        kind = new[i, _META] & _KIND
        if not whole[i] or (old[i, _META] & _KIND) != kind or old[i, _CHAIN] != new[i, _CHAIN]:
            continue
        new[i, _HITS] = _sum(old[i, _HITS], new[i, _HITS])
        new[i, _DRAFTED] = _sum(old[i, _DRAFTED], new[i, _DRAFTED])
        new[i, _ACCEPTED] = _sum(old[i, _ACCEPTED], new[i, _ACCEPTED])
        new[i, _INSERTED] = old[i, _INSERTED]
        new[i, _LAST_ACCESS] = max(old[i, _LAST_ACCESS], new[i, _LAST_ACCESS])
        if kind == np.uint32(Kind.NGRAM):
            new[i, _REFS] = _sum(old[i, _REFS], max(new[i, _REFS], np.uint32(1)))


def pack_values(keys: U64Array, rows: U32Array) -> list[bytes]:
    """Return the value of each record, rows (n, words)."""
    values = np.empty((len(keys), rows.shape[1] + SEAL_WORDS), np.uint32)
    seal_many(keys, rows, values)
    data, size = values.tobytes(), 4 * values.shape[1]
    return [data[at : at + size] for at in range(0, len(data), size)]


def unpack_values(keys: U64Array, values: Sequence[bytes], words: int) -> tuple[U32Array, BoolArray, int]:
    """Return rows (n, words), which values are whole, (n,), and how many are damaged. Rows of those are undefined."""
    size = 4 * (words + SEAL_WORDS)
    data = b"".join(values)
    if set(map(len, values)) - {size}:
        data = b"".join(value if len(value) == size else bytes(size) for value in values)  # zeros: a wrong version
    packed = np.frombuffer(data, np.uint32).reshape(-1, words + SEAL_WORDS)
    rows, whole = np.empty((len(values), words), np.uint32), np.empty(len(values), np.bool_)
    return rows, whole, unseal_many(keys, packed, rows, whole)


def split_keys(keys: U64Array) -> list[bytes]:
    """Return each key as the 8 native bytes that LMDB's integer keys are."""
    data = keys.tobytes()
    return [data[at : at + 8] for at in range(0, len(data), 8)]


def join_keys(keys: Sequence[bytes]) -> U64Array:
    """Return keys of 8 native bytes as one array."""
    return np.frombuffer(b"".join(keys), np.uint64)


def load_kernels(words: int) -> None:
    """Load or compile what works on rows of `words` words, so that no read or write waits for it."""
    none, rows = np.zeros(0, np.uint64), np.zeros((0, words), np.uint32)
    pack_values(none, rows)
    unpack_values(none, (), words)
    keep_facts(rows, np.zeros(0, np.bool_), rows)
