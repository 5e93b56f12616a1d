"""The bytes of a record on disk: row, checksum, layout version. Knows no file and no engine.

    row        uint32[words], native byte order, as in `flashnest.record`
    checksum   xxh3_64 of key, row and version: 8 bytes
    version    uint32

A value whose length, version or checksum is not right is damaged: it is a miss, never served.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import xxhash

from flashnest.record import ACCEPTED, CHAIN, DRAFTED, HITS, INSERTED, META, REFS, Kind, U32Array

LAYOUT_VERSION: Final = 1
SEAL_BYTES: Final = 12
_VERSION = struct.pack("=I", LAYOUT_VERSION)


def seal(key: bytes, row: bytes) -> bytes:
    """Return the value stored for a record."""
    return row + xxhash.xxh3_64_digest(key + row + _VERSION) + _VERSION


def unseal(key: bytes, value: bytes | memoryview, row_bytes: int) -> bytes | None:
    """Return the row of a stored value, or None where the value is damaged or of another layout."""
    if len(value) != row_bytes + SEAL_BYTES:
        return None
    row = bytes(value[:row_bytes])
    whole = value[row_bytes + 8 :] == _VERSION and value[row_bytes : row_bytes + 8] == xxhash.xxh3_64_digest(
        key + row + _VERSION
    )
    return row if whole else None


def keep_facts(old: U32Array, new: U32Array) -> None:
    """Carry a stored row's facts (words,) into the row that overwrites it, in place.

    The rule of `Store.insert_many`: only while kind and first continuation token stay the same. An n-gram learnt again
    adds to REFS.
    """
    if (int(old[META]) ^ int(new[META])) & 0xFF or old[CHAIN] != new[CHAIN]:
        return
    for word in (HITS, INSERTED, DRAFTED, ACCEPTED):
        new[word] = old[word]
    if int(new[META]) & 0xFF == Kind.NGRAM:
        new[REFS] = np.uint32(min(int(old[REFS]) + max(int(new[REFS]), 1), 0xFFFF_FFFF))
