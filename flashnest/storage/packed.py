"""A record's row as the DRAM table keeps it: bit fields, 32 bytes with the default chain. Owns no memory, knows no key.

    bits      field
    0-7       tokens matched
    8-9       kind (2 and 3 are for marks that never leave a store, such as the write buffer's removals)
    10-14     chain length
    15-16     freq: hits since the eviction algorithm last looked, at most 3
    17        queue: the record is in S3-FIFO's small queue
    18-29     namespace: index into the table's list of namespace ids, 0 = not known
    30-41     hits, at most 4095
    42-51     refs, at most 1023
    52-57     accepted
    58-63     drafted; both are halved together when drafted would pass 63, so that their ratio stays
    64-87     last access, seconds modulo 2^24 (194 days): read as the latest such time that is not in the future
    88-111    inserted, likewise
    112..     ngram: `token_bits` a token; a token that does not fit ends the chain there
    128-255   chunk: block id (low 32 bits), kv_version, digest words 2 and 3; words 0 and 1 are the key

What does not fit saturates: the row that comes out is a little coarser than the one that went in, never another's.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest import record
from flashnest.jit import inline_kernel
from flashnest.record import HEADER_WORDS, Kind, U32Array, U64Array
from flashnest.storage.lines import unpack_18

TOKEN_BITS: Final = 18
"""Bits of a token id unless said otherwise: vocabularies up to 262,144 (Qwen3's has 151,936)."""
MAX_HITS: Final = 4095
MAX_REFS: Final = 1023
MAX_DRAFTED: Final = 63
MAX_FREQ: Final = 3
PERIOD_S: Final = 1 << 24
"""Seconds after which a time comes round again."""

_HEADER_BITS: Final = 112
_CHUNK_BITS: Final = 256

_U64, _U32 = np.uint64, np.uint32
ZERO, ONE = _U64(0), _U64(1)
_KIND_SHIFT, _LENGTH_SHIFT = _U64(8), _U64(10)
FREQ_SHIFT, QUEUE_SHIFT = _U64(15), _U64(17)
_NAMESPACE_SHIFT, HITS_SHIFT, _REFS_SHIFT = _U64(18), _U64(30), _U64(42)
_ACCEPTED_SHIFT, _DRAFTED_SHIFT, _INSERTED_SHIFT = _U64(52), _U64(58), _U64(24)
FREQ_MASK, QUEUE_MASK = _U64(3) << FREQ_SHIFT, _U64(1) << QUEUE_SHIFT
_HITS_MASK = _U64(0xFFF) << HITS_SHIFT
_COUNTS_MASK = _U64(0xFFF) << _ACCEPTED_SHIFT
_STATE_MASK = FREQ_MASK | QUEUE_MASK
_M2, _M5, _M6, _M8 = _U64(3), _U64(31), _U64(63), _U64(255)
_M10, _M12, _M24, _M32 = _U64(1023), _U64(4095), _U64(PERIOD_S - 1), _U64(0xFFFF_FFFF)
_TIME: Final = PERIOD_S - 1
_CHUNK = _U64(Kind.CHUNK)
_S8, _S16, _S32, _S40, _S48, _S64 = _U64(8), _U64(16), _U64(32), _U64(40), _U64(48), _U64(64)
_WORD, _OFFSET = _U64(6), _U64(63)
_FIRST_TOKEN = _U64(_HEADER_BITS)
_TWO, _THREE = _U64(2), _U64(3)
_META, _NAMESPACE, _HITS = _U64(record.META), _U64(record.NAMESPACE), _U64(record.HITS)
_LAST_ACCESS, _INSERTED, _DRAFTED = _U64(record.LAST_ACCESS), _U64(record.INSERTED), _U64(record.DRAFTED)
_ACCEPTED, _REFS, _CHAIN = _U64(record.ACCEPTED), _U64(record.REFS), _U64(record.CHAIN)
_KV_VERSION, _DIGEST = _U64(record.CHUNK_KV_VERSION), _U64(record.CHUNK_DIGEST)
_FAST_CHAIN: Final = 8
_FAST_BITS = _U64(TOKEN_BITS)


def packed_words(words: int, token_bits: int = TOKEN_BITS) -> int:
    """Return the uint64 words that a row of `words` uint32 words takes when packed."""
    return -(-max(_CHUNK_BITS, _HEADER_BITS + (words - HEADER_WORDS) * token_bits) // 64)


@inline_kernel
def _pack_time(time: np.uint32, now: int) -> np.uint64:
    """Return a time's 24 bits; one in the future becomes now, one further back than they reach the first they do."""
    return _U64(max(min(int(time), now), now - _TIME)) & _M24


@inline_kernel
def _unpack_time(bits: np.uint64, now: int) -> np.uint32:
    return _U32(max(now - int((_U64(now) - bits) & _M24), 0))


@inline_kernel
def counts_bits(drafted: np.uint32, accepted: np.uint32) -> np.uint64:
    """Return the two fields of the draft counts, halved together until drafted fits."""
    d, a = _U64(drafted), _U64(accepted)
    while d > _M6:
        d >>= ONE
        a >>= ONE
    return (min(a, _M6) << _ACCEPTED_SHIFT) | (d << _DRAFTED_SHIFT)


@inline_kernel
def _pack_tokens(packed: U64Array, at: np.uint64, rows: U32Array, item: np.uint64, room: int, bits: np.uint64) -> int:
    """Add up to `room` tokens to a row whose chain bits are zero; returns how many fitted in `bits` before one did not.

    rows is flat, `item` the index of the first token.
    """
    place = _FIRST_TOKEN
    for j in range(room):
        token = _U64(rows[item + _U64(j)])
        if token >> bits != ZERO:
            return j
        word, shift = at + (place >> _WORD), place & _OFFSET
        packed[word] |= token << shift
        if shift + bits > _S64:
            packed[word + ONE] |= token >> (_S64 - shift)
        place += bits
    return room


@inline_kernel
def _unpack_tokens(packed: U64Array, at: np.uint64, out: U32Array, to: np.uint64, room: int, bits: np.uint64) -> None:
    mask = (ONE << bits) - ONE
    for j in range(room):
        place = _FIRST_TOKEN + _U64(j) * bits
        word, shift = at + (place >> _WORD), place & _OFFSET
        token = packed[word] >> shift
        if shift + bits > _S64:
            token |= packed[word + ONE] << (_S64 - shift)
        out[to + _U64(j)] = _U32(token & mask)


@inline_kernel
def pack_row(
    packed: U64Array,
    at: np.uint64,
    rows: U32Array,
    item: np.uint64,
    words: int,
    bits: np.uint64,
    namespace: np.uint64,
    now: int,
) -> None:
    """Pack the row at flat index `item` of `rows` into the words from `at` of `packed`; freq and queue are 0.

    `namespace` is the index that stands for the row's namespace id. INSERTED 0 means new: both times become `now`.
    """
    meta, inserted, last = _U64(rows[item + _META]), rows[item + _INSERTED], rows[item + _LAST_ACCESS]
    if inserted == _U32(0):
        inserted = last = _U32(now)
    kind, length = meta & _M2, (meta >> _S16) & _M5
    times = _pack_time(last, now) | (_pack_time(inserted, now) << _INSERTED_SHIFT)
    packed[at + ONE], packed[at + _TWO], packed[at + _THREE] = times, ZERO, ZERO
    if kind == _CHUNK:
        packed[at + _TWO] = _U64(rows[item + _CHAIN]) | (_U64(rows[item + _KV_VERSION]) << _S32)
        packed[at + _THREE] = _U64(rows[item + _DIGEST + _TWO]) | (_U64(rows[item + _DIGEST + _THREE]) << _S32)
    else:
        room = words - HEADER_WORDS
        for word in range(4, (_HEADER_BITS + room * np.int64(bits) + 63) // 64):
            packed[at + _U64(word)] = ZERO
        if room == _FAST_CHAIN and bits == _FAST_BITS:
            fitted = _pack_tokens(packed, at, rows, item + _CHAIN, _FAST_CHAIN, _FAST_BITS)
        else:
            fitted = _pack_tokens(packed, at, rows, item + _CHAIN, room, bits)
        length = min(length, _U64(fitted))
    packed[at] = (
        ((meta >> _S8) & _M8)
        | (kind << _KIND_SHIFT)
        | (length << _LENGTH_SHIFT)
        | (namespace << _NAMESPACE_SHIFT)
        | (min(_U64(rows[item + _HITS]), _M12) << HITS_SHIFT)
        | (min(_U64(rows[item + _REFS]), _M10) << _REFS_SHIFT)
        | counts_bits(rows[item + _DRAFTED], rows[item + _ACCEPTED])
    )


@inline_kernel
def _unpack_chain(
    packed: U64Array, at: np.uint64, low: np.uint64, out: U32Array, to: np.uint64, words: int, bits: np.uint64,
    key: np.uint64,
) -> None:  # fmt: skip
    room = words - HEADER_WORDS
    if (low >> _KIND_SHIFT) & _M2 == _CHUNK:
        _unpack_chunk(packed, at, out, to, room, key)
    elif room == _FAST_CHAIN and bits == _FAST_BITS:
        unpack_18(packed, at, out, to + _CHAIN)
    else:
        _unpack_tokens(packed, at, out, to + _CHAIN, room, bits)


@inline_kernel
def unpack_row(
    packed: U64Array,
    at: np.uint64,
    out: U32Array,
    to: np.uint64,
    words: int,
    bits: np.uint64,
    key: np.uint64,
    names: U32Array,
    now: int,
) -> None:
    """Write the packed row at `at` to flat index `to` of `out`, as `flashnest.record` lays rows out."""
    low, high = packed[at], packed[at + ONE]
    _unpack_chain(packed, at, low, out, to, words, bits, key)
    _unpack_header(low, high, out, to, names, now)


@inline_kernel
def _unpack_chunk(packed: U64Array, at: np.uint64, out: U32Array, to: np.uint64, room: int, key: np.uint64) -> None:
    block, digest = packed[at + _TWO], packed[at + _THREE]
    for j in range(room):
        out[to + _CHAIN + _U64(j)] = _U32(0)
    out[to + _CHAIN] = _U32(block & _M32)
    out[to + _KV_VERSION] = _U32(block >> _S32)
    out[to + _DIGEST], out[to + _DIGEST + ONE] = _U32(key & _M32), _U32(key >> _S32)
    out[to + _DIGEST + _TWO], out[to + _DIGEST + _THREE] = _U32(digest & _M32), _U32(digest >> _S32)


@inline_kernel
def _unpack_header(low: np.uint64, high: np.uint64, out: U32Array, to: np.uint64, names: U32Array, now: int) -> None:
    kind, length = (low >> _KIND_SHIFT) & _M2, (low >> _LENGTH_SHIFT) & _M5
    out[to + _META] = _U32(kind | ((low & _M8) << _S8) | (length << _S16))
    out[to + _NAMESPACE] = names[(low >> _NAMESPACE_SHIFT) & _M12]
    out[to + _HITS] = _U32((low >> HITS_SHIFT) & _M12)
    out[to + _LAST_ACCESS] = _unpack_time(high & _M24, now)
    out[to + _INSERTED] = _unpack_time((high >> _INSERTED_SHIFT) & _M24, now)
    out[to + _DRAFTED] = _U32(low >> _DRAFTED_SHIFT)
    out[to + _ACCEPTED] = _U32((low >> _ACCEPTED_SHIFT) & _M6)
    out[to + _REFS] = _U32((low >> _REFS_SHIFT) & _M10)


@inline_kernel
def take_row(
    packed: U64Array,
    at: np.uint64,
    out: U32Array,
    to: np.uint64,
    words: int,
    bits: np.uint64,
    key: np.uint64,
    names: U32Array,
    now: int,
) -> None:
    """Note a hit (hits and freq, each up to its most, and the last access) and write the row out as it is then.

    The chain is read before the header is written: a 16-byte load right after 8-byte stores waits for them.
    """
    low, high = packed[at], packed[at + ONE]
    _unpack_chain(packed, at, low, out, to, words, bits, key)
    low += _U64((low & _HITS_MASK) != _HITS_MASK) << HITS_SHIFT
    low += _U64((low & FREQ_MASK) != FREQ_MASK) << FREQ_SHIFT
    high = (high & ~_M24) | (_U64(now) & _M24)
    packed[at], packed[at + ONE] = low, high
    _unpack_header(low, high, out, to, names, now)


@inline_kernel
def feed_row(packed: U64Array, at: np.uint64, drafted: np.uint32, accepted: np.uint32) -> None:
    """Add draft counts."""
    low = packed[at]
    d = min((low >> _DRAFTED_SHIFT) + _U64(drafted), _M32)
    a = min(((low >> _ACCEPTED_SHIFT) & _M6) + _U64(accepted), _M32)
    packed[at] = (low & ~_COUNTS_MASK) | counts_bits(_U32(d), _U32(a))


@inline_kernel
def _first_token(packed: U64Array, at: np.uint64, bits: np.uint64) -> np.uint64:
    return _U64(((packed[at + ONE] >> _S48) | (packed[at + _TWO] << _S16)) & ((ONE << bits) - ONE))


@inline_kernel
def same_record(a: U64Array, at: np.uint64, b: U64Array, to: np.uint64, bits: np.uint64) -> bool:
    """Whether two packed rows are of one kind and start with the same token, or name the same KV block."""
    kind = (a[at] >> _KIND_SHIFT) & _M2
    if kind != (b[to] >> _KIND_SHIFT) & _M2:
        return False
    if kind == _CHUNK:
        return bool((a[at + _TWO] ^ b[to + _TWO]) & _M32 == ZERO)
    return bool(_first_token(a, at, bits) == _first_token(b, to, bits))


@inline_kernel
def merge_header(old_low: np.uint64, old_high: np.uint64, new: U64Array, at: np.uint64) -> None:
    """Give a packed row that replaces one of the same record its facts: hits, inserted, draft counts, freq and queue.

    An n-gram learnt again adds to refs, at least 1.
    """
    low, high = new[at], new[at + ONE]
    refs = (low >> _REFS_SHIFT) & _M10
    if (low >> _KIND_SHIFT) & _M2 == ZERO:
        refs = min(((old_low >> _REFS_SHIFT) & _M10) + max(refs, ONE), _M10)
    kept = _HITS_MASK | _COUNTS_MASK | _STATE_MASK
    new[at] = (old_low & kept) | (low & ~(kept | (_M10 << _REFS_SHIFT))) | (refs << _REFS_SHIFT)
    inserted = _M24 << _INSERTED_SHIFT
    new[at + ONE] = (high & ~inserted) | (old_high & inserted)
