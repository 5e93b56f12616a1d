"""The kernel that turns text into n-gram records. Owns no memory and stores nothing."""

from __future__ import annotations

import numpy as np

from flashnest.hashing import hash_tail
from flashnest.jit import kernel
from flashnest.record import CHAIN, BoolArray, I32Array, I64Array, U32Array, U64Array


@kernel
def learn_rows(
    tokens: I32Array,
    rows: I64Array,
    learned: I32Array,
    lengths: I32Array,
    salts: U64Array,
    namespaces: I64Array,
    finals: BoolArray,
    ngram_lengths: I32Array,
    keys: U64Array,
    records: U32Array,
) -> int:
    """Turn what rows have gained into n-gram records until `keys` is full; returns how many were written.

    tokens int32 (R, capacity); rows int64 (n,), finals bool (n,): which rows, and which of them end here; learned,
    lengths int32 (R,): positions from learned[r] on are learnt and learned[r] moves to the first that is not: one that
    no whole chain follows yet, unless the row ends, or one that `keys` had no room for. Call again until it returns 0.
    salts uint64 (R,); namespaces int64 (R,): ids; ngram_lengths int32 (k,) ascending. keys uint64 (m,), m >= k, and
    records uint32 (m, words) receive the records. An n-gram ends before its position; its chain is what follows, cut
    at the end of the text.
    """
    width = records.shape[1] - CHAIN
    grams = np.empty(ngram_lengths.shape[0], np.uint64)
    count = 0
    for i in range(rows.shape[0]):
        r = rows[i]
        end = np.int64(lengths[r])
        stop = end if finals[i] else end - width + 1
        for p in range(max(np.int64(learned[r]), np.int64(ngram_lengths[0])), stop):
            if count + ngram_lengths.shape[0] > keys.shape[0]:
                learned[r] = p
                return count
            chain = min(width, end - p)
            for j in range(hash_tail(tokens[r], p, ngram_lengths, salts[r], grams)):
                record = records[count]
                record[:] = 0
                record[0] = (ngram_lengths[j] << 8) | (chain << 16)
                record[1] = namespaces[r]
                for t in range(chain):
                    record[CHAIN + t] = tokens[r, p + t]
                keys[count] = grams[j]
                count += 1
        learned[r] = max(np.int64(learned[r]), stop)
    return count
