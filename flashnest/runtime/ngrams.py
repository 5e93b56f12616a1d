"""Kernels of the drafter: the longest earlier match in a sequence's own text, and n-gram records built from a text."""

from __future__ import annotations

import numpy as np

from flashnest.jit import kernel
from flashnest.record import CHAIN, I32Array, I64Array, U32Array, U64Array


@kernel
def match_own(tokens: I32Array, length: int, shortest: int, longest: int, out: I64Array) -> None:
    """Find the earlier place in a sequence whose last tokens equal the sequence's own tail over the most tokens.

    Writes out[0] = index after the match (0 for none), out[1] = matched tokens, at most `longest`. The most recent of
    equals wins. O(length) comparisons, most of which fail on the first token.
    """
    out[0] = 0
    out[1] = 0
    best = shortest - 1
    for end in range(length - 1, shortest - 1, -1):
        if tokens[end - 1] != tokens[length - 1]:
            continue
        matched = 1
        while matched < longest and matched < end and tokens[end - 1 - matched] == tokens[length - 1 - matched]:
            matched += 1
        if matched > best:
            best = matched
            out[0] = end
            out[1] = matched
            if matched == longest:
                return


@kernel
def build_rows(
    tokens: I32Array,
    start: int,
    stop: int,
    length: int,
    lengths: I32Array,
    namespace: int,
    grams: U64Array,
    keys: U64Array,
    rows: U32Array,
) -> int:
    """Turn hashed positions start..stop-1 of one sequence into n-gram records; returns how many were written.

    grams uint64 (stop - start, k) as from `hash_positions`; keys (m,) and rows (m, words) receive the records;
    a record's chain is what follows its position, cut at `length`.
    """
    width = rows.shape[1] - CHAIN
    count = 0
    for p in range(start, stop):
        chain = min(width, length - p)
        for i in range(lengths.shape[0]):
            key = grams[p - start, i]
            if key == np.uint64(0):
                continue
            row = rows[count]
            row[:] = 0
            row[0] = (lengths[i] << 8) | (chain << 16)
            row[1] = namespace
            for j in range(chain):
                row[CHAIN + j] = tokens[p + j]
            keys[count] = key
            count += 1
    return count
