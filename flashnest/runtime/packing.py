"""Packs the step's shares and drafts into one forward, and says which scores belong to whom. Computes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from flashnest.record import CHUNK_TOKENS, BoolArray, I32Array, I64Array
from flashnest.runtime.forward import ForwardBatch
from flashnest.runtime.forward_cost import ForwardShape
from flashnest.runtime.row_kernels import pack_rows
from flashnest.runtime.rows import Rows
from flashnest.runtime.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Shares:
    """Who takes part in a step: rows int64 (n,), decoding ones first, each with its next uncomputed tokens.

    counts int32 (n,): how many; scored bool (n,): they reach the row's last token, so this step yields its next;
    prefill bool (n,): they are prompt, or text of a request that was preempted.
    """

    rows: I64Array
    counts: I32Array
    scored: BoolArray
    prefill: BoolArray

    @classmethod
    def of(cls, rows: Rows, decoding: I64Array, prefilling: I64Array, counts: I32Array) -> Self:
        """Return a token each of the decoding rows and `counts` tokens of the prefilling ones."""
        reached = rows.computed[prefilling] + counts == rows.lengths[prefilling]
        return cls(
            np.concatenate([decoding, prefilling]),
            np.concatenate([np.ones(len(decoding), np.int32), counts]),
            np.concatenate([np.ones(len(decoding), np.bool_), reached]),
            np.arange(len(decoding) + len(prefilling)) >= len(decoding),
        )


@dataclass(frozen=True, slots=True)
class Packed:
    """A batch and, for its scored sequences in order, where their scores start and how many draft tokens they carry.

    scored[i], in row rows[i], has score rows score_starts[i] .. score_starts[i] + draft_lengths[i], the last token
    first, then drafts. scored[logit_sequences[i]] is the one that asked for the i-th of the batch's logit rows.
    rows, score_starts int64 (n,); draft_lengths int32 (n,); logit_sequences int64 (L,).
    """

    batch: ForwardBatch
    scored: list[Sequence]
    rows: I64Array
    score_starts: I64Array
    draft_lengths: I32Array
    logit_sequences: I64Array


def pack(rows: Rows, shares: Shares, scored: list[Sequence], draft_tokens: I32Array, draft_lengths: I32Array) -> Packed:
    """Pack shares; draft i belongs to the i-th scored one: draft_tokens int32 (n, width), draft_lengths int32 (n,)."""
    scored_rows = shares.rows[shares.scored]
    drafted = np.ascontiguousarray(draft_lengths[: len(scored_rows)], np.int32)
    spans = drafted.astype(np.int64) + 1
    starts = np.cumsum(spans) - spans
    grown = shares.counts.copy()
    grown[shares.scored] += drafted
    total, scores = int(grown.sum()), int(spans.sum())
    wants = rows.wants_logits[scored_rows]
    logit_rows, logit_sequences = _logit_rows(wants, spans) if wants.any() else (_NOBODY, _NOBODY)
    batch = ForwardBatch(
        token_ids=np.empty(total, np.int64),
        positions=np.empty(total, np.int64),
        q_starts=np.empty(len(shares.rows) + 1, np.int32),
        context_lens=rows.computed[shares.rows] + grown,
        block_tables=np.empty((len(shares.rows), int(rows.block_counts[shares.rows].max())), np.int32),
        score_rows=np.empty(scores, np.int64),
        request_ids=rows.request_ids[shares.rows],
        logit_rows=logit_rows,
    )
    pack_rows(
        rows.tokens,
        rows.computed,
        rows.blocks,
        rows.block_counts,
        shares.rows,
        shares.counts,
        shares.scored,
        draft_tokens,
        drafted,
        batch.q_starts,
        batch.token_ids,
        batch.positions,
        batch.block_tables,
        batch.score_rows,
    )
    return Packed(batch, scored, scored_rows, starts, drafted, logit_sequences)


_NOBODY = np.zeros(0, np.int64)


def _logit_rows(wants: BoolArray, spans: I64Array) -> tuple[I64Array, I64Array]:
    """Return the score rows whose logits are wanted and whose they are."""
    owners = np.repeat(np.arange(len(spans), dtype=np.int64), spans)
    wanted = np.flatnonzero(np.repeat(wants, spans)).astype(np.int64)
    return wanted, owners[wanted]


def base_shape(rows: Rows, shares: Shares) -> tuple[ForwardShape, I64Array]:
    """Return the step's shape without drafts, and the KV tokens of each scored row after it, int64 (n,)."""
    counts = shares.counts.astype(np.int64)
    contexts = counts + rows.computed[shares.rows]
    return ForwardShape.of_pieces(counts, contexts, int(shares.scored.sum())), contexts[shares.scored]


def draft_caps(rows: Rows, scored: I64Array) -> I32Array:
    """Return the most tokens each of rows scored int64 (n,) may draft, int32 (n,).

    The model's own next one comes on top of a draft, and the draft's KV has to fit the blocks at hand.
    """
    lengths = rows.lengths[scored]
    room = rows.block_counts[scored] * CHUNK_TOKENS - lengths
    caps: I32Array = np.minimum(rows.limits[scored] - lengths - 1, room)
    return caps
