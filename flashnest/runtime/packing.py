"""Packs the step's slices and drafts into one forward, and says which scores belong to whom. Computes nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashnest.record import I32Array, I64Array
from flashnest.runtime.forward import ForwardBatch
from flashnest.runtime.forward_cost import ForwardShape
from flashnest.runtime.scheduler import Sequence, Slice, draft_room


@dataclass(frozen=True, slots=True)
class Packed:
    """A batch and, for its scored sequences in order, where their scores start and how many draft tokens they carry.

    scored[i] has score rows score_starts[i] .. score_starts[i] + draft_lengths[i], the last token first, then drafts.
    scored[logit_sequences[i]] is the one that asked for the i-th of the batch's logit rows: int64 (L,).
    """

    batch: ForwardBatch
    scored: list[Sequence]
    score_starts: I64Array
    draft_lengths: I32Array
    logit_sequences: I64Array


def pack(slices: list[Slice], draft_tokens: I32Array, draft_lengths: I32Array) -> Packed:
    """Pack slices; draft row i belongs to the i-th scored slice: draft_tokens int32 (n, width), draft_lengths (n,)."""
    scored_at = np.flatnonzero([s.scored for s in slices])
    drafts = np.zeros(len(slices), np.int64)
    drafts[scored_at] = draft_lengths[: len(scored_at)]
    counts = np.array([s.count for s in slices], np.int64)
    q_starts = np.zeros(len(slices) + 1, np.int32)
    np.cumsum(counts + drafts, out=q_starts[1:])
    computed = np.array([s.sequence.request.computed for s in slices], np.int64)
    batch_tokens = np.empty(q_starts[-1], np.int64)
    positions = np.arange(q_starts[-1], dtype=np.int64) + np.repeat(computed - q_starts[:-1], counts + drafts)
    _fill_tokens(batch_tokens, q_starts, slices)
    for row, at in enumerate(scored_at):
        end = q_starts[at + 1]
        batch_tokens[end - drafts[at] : end] = draft_tokens[row, : drafts[at]]
    spans = drafts[scored_at] + 1
    starts = np.concatenate(([0], np.cumsum(spans)[:-1])).astype(np.int64)[: len(scored_at)]
    first = q_starts[1:][scored_at] - spans
    score_rows = np.arange(int(spans.sum()), dtype=np.int64) + np.repeat(first - starts, spans)
    wants = np.array([slices[at].sequence.request.prompt.sampling.needs_logits for at in scored_at], np.bool_)
    owners = np.repeat(np.arange(len(scored_at), dtype=np.int64), spans)
    logit_rows = np.flatnonzero(np.repeat(wants, spans)).astype(np.int64)
    batch = ForwardBatch(
        token_ids=batch_tokens,
        positions=positions,
        q_starts=q_starts,
        context_lens=(computed + counts + drafts).astype(np.int32),
        block_tables=_block_tables(slices),
        score_rows=score_rows,
        request_ids=np.array([s.sequence.request.id for s in slices], np.int64),
        logit_rows=logit_rows,
    )
    scored = [slices[at].sequence for at in scored_at]
    return Packed(batch, scored, starts, drafts[scored_at].astype(np.int32), owners[logit_rows])


def _fill_tokens(out: I64Array, q_starts: I32Array, slices: list[Slice]) -> None:
    for i, piece in enumerate(slices):
        request = piece.sequence.request
        at = q_starts[i]
        out[at : at + piece.count] = request.tokens[request.computed : request.computed + piece.count]


def _block_tables(slices: list[Slice]) -> I32Array:
    width = max(len(s.sequence.request.blocks) for s in slices)
    tables = np.full((len(slices), width), -1, np.int32)
    for i, piece in enumerate(slices):
        blocks = piece.sequence.request.blocks
        tables[i, : len(blocks)] = blocks
    return tables


def base_shape(slices: list[Slice]) -> tuple[ForwardShape, I64Array]:
    """Return the step's shape without drafts, and the KV tokens of each scored sequence after it, int64 (n,)."""
    counts = np.array([s.count for s in slices], np.int64)
    contexts = counts + np.array([s.sequence.request.computed for s in slices], np.int64)
    scored = np.array([s.scored for s in slices], np.bool_)
    return ForwardShape.of_pieces(counts, contexts, int(scored.sum())), contexts[scored]


def draft_caps(scored: list[Sequence]) -> I32Array:
    """Return the most tokens each sequence may draft, int32 (n,).

    The model's own next one comes on top of a draft, and the draft's KV has to fit the blocks at hand.
    """
    left = [min(len(s.request.tokens) - s.request.length - 1, draft_room(s)) for s in scored]
    return np.array(left, np.int32)
