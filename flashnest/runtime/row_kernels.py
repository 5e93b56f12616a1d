"""Kernels over `Rows`: packing a step's tokens, cutting what was said where a request ends, and committing it.

Pure on arrays: no request, no model. A Python loop over 128 requests took a millisecond for each of the three.
"""

from __future__ import annotations

import numpy as np

from flashnest.jit import kernel
from flashnest.record import BoolArray, F64Array, I32Array, I64Array, U8Array
from flashnest.runtime.rows import Rows

ONGOING, ENDED_BY_EOS, ENDED_BY_LENGTH = 0, 1, 2
"""Codes of `count_kept`."""


@kernel
def pack_rows(
    tokens: I32Array,
    computed: I32Array,
    blocks: I32Array,
    block_counts: I32Array,
    rows: I64Array,
    counts: I32Array,
    scored: BoolArray,
    draft_tokens: I32Array,
    draft_lengths: I32Array,
    q_starts: I32Array,
    token_ids: I64Array,
    positions: I64Array,
    tables: I32Array,
    score_rows: I64Array,
) -> None:
    """Write n shares one after the other, each its next counts int32 (n,) uncomputed tokens and, if scored, a draft.

    rows int64 (n,); draft_tokens int32 (m, width) and draft_lengths int32 (m,): those of the scored shares in order.
    Written: q_starts int32 (n + 1,), token_ids and positions int64 (T,), tables int32 (n, width), -1 past a row's
    blocks, score_rows int64 (S,): the packed places of each scored share's last known token and draft.
    """
    at = scores = drafts = 0
    for i in range(rows.shape[0]):
        row, place = rows[i], computed[rows[i]]
        q_starts[i] = at
        for j in range(counts[i]):
            token_ids[at + j] = tokens[row, place + j]
            positions[at + j] = place + j
        at += counts[i]
        if scored[i]:
            place += counts[i]
            score_rows[scores] = at - 1
            for j in range(draft_lengths[drafts]):
                token_ids[at + j] = draft_tokens[drafts, j]
                positions[at + j] = place + j
                score_rows[scores + 1 + j] = at + j
            at += draft_lengths[drafts]
            scores += 1 + draft_lengths[drafts]
            drafts += 1
        for j in range(block_counts[row]):
            tables[i, j] = blocks[row, j]
        tables[i, block_counts[row] :] = -1
    q_starts[rows.shape[0]] = at


@kernel
def count_kept(
    said: I64Array,
    starts: I64Array,
    accepted: I32Array,
    rows: I64Array,
    lengths: I32Array,
    limits: I32Array,
    ignores_eos: BoolArray,
    eos_ids: I64Array,
    kept: I32Array,
    endings: U8Array,
) -> None:
    """Count how many of each row's verified tokens its request keeps, EOS and the token limit considered.

    said int64 (S,): the model's tokens, row i's from starts[i] on: accepted[i] drafted ones and one more; an EOS is not
    kept. Writes kept int32 (n,) and endings uint8 (n,).
    """
    for i in range(rows.shape[0]):
        row = rows[i]
        room = limits[row] - lengths[row]
        count = min(accepted[i] + 1, room)
        kept[i] = count
        endings[i] = ENDED_BY_LENGTH if count == room else ONGOING
        if ignores_eos[row]:
            continue
        for j in range(count):
            if (eos_ids == said[starts[i] + j]).any():
                kept[i] = j
                endings[i] = ENDED_BY_EOS
                break


@kernel
def append_rows(
    said: I64Array,
    starts: I64Array,
    accepted: I32Array,
    kept: I32Array,
    rows: I64Array,
    now_s: float,
    tokens: I32Array,
    times_s: F64Array,
    lengths: I32Array,
    prompt_lengths: I32Array,
    computed: I32Array,
) -> None:
    """Add the kept tokens to the rows, with the time; kept is below 0 where a stop string began in earlier ones.

    KV is in place for the accepted draft tokens, not for the model's own last one.
    """
    for i in range(rows.shape[0]):
        row = rows[i]
        before = lengths[row]
        for j in range(kept[i]):
            tokens[row, before + j] = said[starts[i] + j]
            times_s[row, before - prompt_lengths[row] + j] = now_s
        lengths[row] = before + kept[i]
        computed[row] = min(before + accepted[i], lengths[row])


def load_row_kernels(rows: Rows) -> None:
    """Load or compile the kernels for `rows` now, so that no step waits for it."""
    nobody, no_numbers = np.zeros(0, np.int64), np.zeros(0, np.int32)
    none, no_drafts, one = np.zeros(0, np.bool_), np.zeros((0, 1), np.int32), np.zeros(1, np.int32)
    pack_rows(
        rows.tokens,
        rows.computed,
        rows.blocks,
        rows.block_counts,
        nobody,
        no_numbers,
        none,
        no_drafts,
        no_numbers,
        one,
        nobody,
        nobody,
        no_drafts,
        nobody,
    )
    ends = (rows.lengths, rows.limits, rows.ignores_eos)
    count_kept(nobody, nobody, no_numbers, nobody, *ends, nobody, no_numbers, np.zeros(0, np.uint8))
    texts = (rows.tokens, rows.times_s, rows.lengths, rows.prompt_lengths, rows.computed)
    append_rows(nobody, nobody, no_numbers, no_numbers, nobody, 0.0, *texts)
