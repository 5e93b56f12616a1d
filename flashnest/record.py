"""The words that policy, storage and runtime share: kinds, tiers, the row layout, namespaces.

A record is a 64-bit key and a row of `HEADER_WORDS + chain_words` uint32 words. Rows travel verbatim between
tiers, so a tier never parses more than it needs. There is never a Python object per record.

    word  name         meaning
    0     META         kind (bits 0-7) | tokens matched (8-15) | chain length (16-23)
    1     NAMESPACE    namespace_id(name); for policy and statistics only: isolation comes from the salted key
    2     HITS         saturating count of lookups that found the record
    3     LAST_ACCESS  seconds on the store's clock
    4     INSERTED     seconds on the store's clock
    5     DRAFTED      tokens of this chain put before the model
    6     ACCEPTED     tokens of this chain the model agreed with
    7     REFS         chunk: requests that hold the block now; ngram: times the same continuation was learnt
    8..   CHAIN        ngram: continuation token ids; chunk: block id, kv_version, 128-bit digest (see CHUNK_*)

HITS, LAST_ACCESS, DRAFTED and ACCEPTED change on use and therefore live in DRAM only; they reach NVMe with a
batch that is written anyway, never by themselves (design.md 4: a hit never writes to NVMe).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

U8Array = npt.NDArray[np.uint8]
U16Array = npt.NDArray[np.uint16]
U32Array = npt.NDArray[np.uint32]
U64Array = npt.NDArray[np.uint64]
F32Array = npt.NDArray[np.float32]
I32Array = npt.NDArray[np.int32]
I64Array = npt.NDArray[np.int64]
F64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


class Kind(IntEnum):
    """What a record is for: drafting a continuation, or finding a KV block."""

    NGRAM = 0
    CHUNK = 1


class Tier(IntEnum):
    """The medium that owns a record. L0/L1/L2 are only the field report's names for these."""

    VRAM = 0
    DRAM = 1
    NVME = 2


@dataclass(frozen=True, slots=True)
class FactArrays:
    """What a policy may ask of a batch of stored records; every array has shape (n,).

    tokens, kind uint8; namespace, nbytes, hits, refs uint32; idle_s, age_s uint32: seconds since the last access and
    since the record was first stored; accept_percent uint8 0..100: share of its drafted tokens that were accepted, 100
    while none was drafted; window_hits: one uint32 array for each of `MovePlan.windows_s`, lookups that found the
    record within that time, a little too many rather than too few.
    """

    tokens: U8Array
    kind: U8Array
    namespace: U32Array
    nbytes: U32Array
    hits: U32Array
    idle_s: U32Array
    age_s: U32Array
    refs: U32Array
    accept_percent: U8Array
    window_hits: tuple[U32Array, ...] = ()


@dataclass(frozen=True, slots=True)
class Admission:
    """A record is stored once it has been learnt `hits` times within `window_s` seconds."""

    hits: int
    window_s: int


CHUNK_TOKENS: Final = 32
"""Tokens in a chunk and in a KV block (facts F1)."""

NGRAM_LENGTHS: Final = (4, 8, 16, 32)
"""Default n-gram lengths; the longest match wins."""

MAX_NGRAM_TOKENS: Final = 32

MAX_NGRAM_LENGTHS: Final = 8
"""Most n-gram lengths looked up at once; a cold read's ticket has three bits for which it was."""

META: Final = 0
NAMESPACE: Final = 1
HITS: Final = 2
LAST_ACCESS: Final = 3
INSERTED: Final = 4
DRAFTED: Final = 5
ACCEPTED: Final = 6
REFS: Final = 7
HEADER_WORDS: Final = 8
CHAIN: Final = HEADER_WORDS

CHUNK_BLOCK: Final = CHAIN
"""Chunk rows: words CHAIN, CHAIN+1 hold the KV block id (low, high word of an int64)."""
CHUNK_KV_VERSION: Final = CHAIN + 2
CHUNK_DIGEST: Final = CHAIN + 3
"""Chunk rows: four words from here hold the 128-bit chained digest, low word first."""

DEFAULT_CHAIN_WORDS: Final = 8
MAX_CHAIN_WORDS: Final = 31
"""The DRAM table keeps the chain length in five bits."""
MIN_CHAIN_WORDS: Final = 7
"""A chunk row needs block id (2), kv_version (1) and digest (4)."""

KEY_BYTES: Final = 8


def row_words(chain_words: int = DEFAULT_CHAIN_WORDS) -> int:
    """Return the uint32 words in a row whose chain holds `chain_words` tokens."""
    return HEADER_WORDS + chain_words


def record_bytes(chain_words: int = DEFAULT_CHAIN_WORDS) -> int:
    """Return the size of one record, key and row: the policy fact `bytes`."""
    return KEY_BYTES + 4 * row_words(chain_words)


def pack_meta(kind: int, tokens: int, chain_length: int) -> int:
    """Return word META for one record. `tokens` and `chain_length` are at most 255."""
    return kind | tokens << 8 | chain_length << 16


def row_kinds(rows: U32Array) -> U8Array:
    """Return each row's `Kind` code, shape (n,)."""
    return (rows[:, META] & 0xFF).astype(np.uint8)


def row_tokens(rows: U32Array) -> U8Array:
    """Return the length in tokens of what each row matches, shape (n,)."""
    return ((rows[:, META] >> 8) & 0xFF).astype(np.uint8)


def row_chain_lengths(rows: U32Array) -> U8Array:
    """Return how many continuation tokens each ngram row holds, shape (n,)."""
    return ((rows[:, META] >> 16) & 0xFF).astype(np.uint8)


def first_of_each(keys: U64Array) -> BoolArray:
    """Return which keys are the first of their value, bool (n,)."""
    first = np.zeros(len(keys), np.bool_)
    first[np.unique(keys, return_index=True)[1]] = True
    return first


def namespace_salt(namespace: str) -> int:
    """Return the 64-bit salt mixed into every key of a tenant: other tenants cannot reach its records."""
    return xxhash.xxh3_64_intdigest(b"flashnest.namespace\0" + namespace.encode())


def namespace_id(namespace: str) -> int:
    """Return the 32-bit id that stands for a namespace in rows and policies.

    Only placement and statistics use it. A clash of two ids merges their statistics, never their data.
    """
    return namespace_salt(namespace) & 0xFFFFFFFF
