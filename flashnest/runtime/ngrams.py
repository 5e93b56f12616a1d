"""Kernels of the drafter: the longest earlier match in a sequence's own text, and n-gram records built from a text."""

from __future__ import annotations

import numpy as np

from flashnest.hashing import hash_tail
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
def learn_spans(
    text: I32Array, spans: I64Array, salts: U64Array, lengths: I32Array, keys: U64Array, rows: U32Array
) -> int:
    """Turn spans of sequences into n-gram records; returns how many were written.

    text int32 (t,): the spans' tokens one after the other. spans int64 (s, 5): where a span's text begins in `text`,
    the positions start..stop-1 whose n-grams are learnt, and where the text ends, all counted from there, then the
    namespace id. salts uint64 (s,). lengths int32 (k,) ascending. keys uint64 (m,) and rows uint32 (m, words) receive
    the records. An n-gram ends before its position, its chain is what follows, cut at the end of the text.
    """
    width = rows.shape[1] - CHAIN
    grams = np.empty(lengths.shape[0], np.uint64)
    count = 0
    for s in range(spans.shape[0]):
        base, end = spans[s, 0], spans[s, 3]
        tokens = text[base : base + end]
        for p in range(spans[s, 1], spans[s, 2]):
            chain = min(width, end - p)
            for i in range(hash_tail(tokens, p, lengths, salts[s], grams)):
                row = rows[count]
                row[:] = 0
                row[0] = (lengths[i] << 8) | (chain << 16)
                row[1] = spans[s, 4]
                for j in range(chain):
                    row[CHAIN + j] = tokens[p + j]
                keys[count] = grams[i]
                count += 1
    return count
