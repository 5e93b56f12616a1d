"""xxh3_64 of a 4 KiB page without its first eight bytes, as a kernel: the checksum of a bucket. Nothing else.

The same value as `xxhash.xxh3_64_intdigest(page[8:])` (Y. Collet's XXH3, specification in xxHash's
`doc/xxhash_spec.md`, inputs above 240 bytes, default secret, seed 0), so that other tools can check a file. A kernel
because pages are checked a batch at a time with the GIL released. Little-endian, as the files are.
"""

from __future__ import annotations

import numpy as np

from flashnest.jit import inline_kernel
from flashnest.record import U64Array

_SECRET_BYTES = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_SECRET = np.frombuffer(_SECRET_BYTES[:192], "<u8").copy()
_LAST = np.frombuffer(_SECRET_BYTES[121:185], "<u8").copy()  # the last stripe's secret, seven bytes before the end
_FOLD = np.frombuffer(_SECRET_BYTES[11:75], "<u8").copy()

_P32_1, _P32_2, _P32_3 = np.uint64(0x9E3779B1), np.uint64(0x85EBCA77), np.uint64(0xC2B2AE3D)
_P64_1, _P64_2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_P64_3, _P64_4, _P64_5 = (
    np.uint64(0x165667B19E3779F9),
    np.uint64(0x85EBCA77C2B2AE63),
    np.uint64(0x27D4EB2F165667C5),
)
_START = np.array([_P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1], np.uint64)
_AVALANCHE = np.uint64(0x165667919E3779F9)
_LOW32, _S32, _S37, _S47 = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(37), np.uint64(47)

_WORDS = 511
_BLOCK_WORDS = 128  # 16 stripes of 8 words, as many as the secret has room for
_STRIPE_WORDS = 8


@inline_kernel
def _fold_product(a: np.uint64, b: np.uint64) -> np.uint64:
    """Return the low xor the high half of the 128-bit product."""
    low = (a & _LOW32) * (b & _LOW32)
    middle_a = (a >> _S32) * (b & _LOW32) + (low >> _S32)
    middle_b = (a & _LOW32) * (b >> _S32) + (middle_a & _LOW32)
    high = (a >> _S32) * (b >> _S32) + (middle_a >> _S32) + (middle_b >> _S32)
    return high ^ ((middle_b << _S32) | (low & _LOW32))


@inline_kernel
def _stripe(page: U64Array, at: int, secret: U64Array, secret_at: int, product: U64Array, plain: U64Array) -> None:
    # XXH3 adds each word to its neighbour's lane; they are summed apart and swapped at the end of a block, which gives
    # the same sums and loops that LLVM vectorises
    for i in range(_STRIPE_WORDS):
        key = page[at + i] ^ secret[secret_at + i]
        product[i] += (key & _LOW32) * (key >> _S32)
    for i in range(_STRIPE_WORDS):
        plain[i] += page[at + i]


@inline_kernel
def _swap_in(product: U64Array, plain: U64Array) -> None:
    for i in range(_STRIPE_WORDS):
        product[i] += plain[i ^ 1]
    for i in range(_STRIPE_WORDS):
        plain[i] = 0


@inline_kernel
def page_checksum(page: U64Array, product: U64Array, plain: U64Array) -> np.uint64:
    """Return the checksum of words 1..511 of a page, uint64 (512,). `product` and `plain` are scratch, uint64 (8,)."""
    for i in range(_STRIPE_WORDS):
        product[i], plain[i] = _START[i], 0
    at, end = 1, 1 + _WORDS
    while at + _BLOCK_WORDS < end:
        for stripe in range(16):
            _stripe(page, at + stripe * _STRIPE_WORDS, _SECRET, stripe, product, plain)
        _swap_in(product, plain)
        for i in range(_STRIPE_WORDS):
            product[i] = (product[i] ^ (product[i] >> _S47) ^ _SECRET[16 + i]) * _P32_1
        at += _BLOCK_WORDS
    for stripe in range((end - 1 - at) // _STRIPE_WORDS):
        _stripe(page, at + stripe * _STRIPE_WORDS, _SECRET, stripe, product, plain)
    _stripe(page, end - _STRIPE_WORDS, _LAST, 0, product, plain)
    _swap_in(product, plain)
    result = np.uint64(8 * _WORDS) * _P64_1
    for i in range(0, _STRIPE_WORDS, 2):
        result += _fold_product(product[i] ^ _FOLD[i], product[i + 1] ^ _FOLD[i + 1])
    result = (result ^ (result >> _S37)) * _AVALANCHE
    return result ^ (result >> _S32)
