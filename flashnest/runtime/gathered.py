"""Attention of the devices and head dims that have no kernel: K and V gathered from their blocks for torch's SDPA.

Sequences with few new tokens are padded together into one call, long prompt slices go one by one. Keeps nothing between
calls; who owns a block and what is stored in it is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
import torch.nn.functional as functional

from flashnest.record import CHUNK_TOKENS, BoolArray, I32Array, I64Array

if TYPE_CHECKING:
    from flashnest.runtime.forward import ForwardBatch

TOGETHER_TOKENS: Final = 16
"""Sequences with at most so many new tokens are padded together; above, the padding costs more than the calls."""


@dataclass(frozen=True, slots=True)
class GatherGroup:
    """Sequences whose K and V are gathered into one padded batch for SDPA: one prompt slice, or many decoding ones.

    tokens int64 (n, q): packed tokens, short rows padded with their first; valid bool (n, q), or None where all are;
    blocks int64 (n, kv heads, width): rows of the layer's pool seen as (blocks * kv heads, 32 * head dim);
    mask bool (n, 1, q, width * 32): what each query sees; None for one whole prompt start, which is plainly causal.
    """

    tokens: torch.Tensor
    valid: torch.Tensor | None
    blocks: torch.Tensor
    mask: torch.Tensor | None


def gather_groups(batch: ForwardBatch, heads: int, device: torch.device) -> tuple[GatherGroup, ...]:
    """Split the batch's sequences into SDPA calls; heads: KV heads of the pool."""
    few = np.diff(batch.q_starts) <= TOGETHER_TOKENS
    together = np.flatnonzero(few)
    sets = [together] if len(together) else []
    sets += [np.array([row]) for row in np.flatnonzero(~few)]
    return tuple(
        _gather_group(rows, batch.q_starts, batch.context_lens, batch.block_tables, heads, device) for rows in sets
    )


def _gather_group(
    rows: I64Array,
    q_starts: I32Array,
    context_lens: I32Array,
    tables: I32Array,
    heads: int,
    device: torch.device,
) -> GatherGroup:
    starts, contexts = q_starts[rows].astype(np.int64), context_lens[rows]
    q_lens = q_starts[rows + 1] - q_starts[rows]
    steps = np.arange(q_lens.max())
    valid: BoolArray = steps < q_lens[:, None]
    tokens = starts[:, None] + np.where(valid, steps, 0)
    width = -(-int(contexts.max()) // CHUNK_TOKENS)
    blocks = np.maximum(tables[rows, :width], 0).astype(np.int64)  # -1 past the end: any block will do, it is masked
    flat = blocks[:, None, :] * heads + np.arange(heads)[:, None]
    last_seen = (contexts - q_lens)[:, None] + np.where(valid, steps, 0)
    on_device = [torch.from_numpy(array).to(device) for array in (tokens, valid, flat)]
    if len(rows) == 1 and contexts[0] == q_lens[0]:
        return GatherGroup(on_device[0], None, on_device[2], None)
    mask = torch.from_numpy(np.arange(width * CHUNK_TOKENS) <= last_seen[:, None, :, None]).to(device)
    return GatherGroup(on_device[0], None if valid.all() else on_device[1], on_device[2], mask)


def attend_gathered(
    group: GatherGroup,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Attend for one group: query and out (T, heads, head dim), keys and values one layer's plain pool."""
    rows, heads, _ = group.blocks.shape
    width = query.shape[-1]
    k, v = (
        pool.view(-1, CHUNK_TOKENS * width).index_select(0, group.blocks.flatten()).view(rows * heads, 1, -1, width)
        for pool in (keys, values)
    )
    tokens = group.tokens.flatten()
    steps = group.tokens.shape[1]
    folded = query.index_select(0, tokens).view(rows, steps, heads, -1, width)  # (n, q, kv heads, group, head dim)
    shared = folded.shape[3]
    mask = group.mask
    if rows == 1:  # many queries: the KV head is read through a stride of 0 by each query head, nothing is copied
        q = folded[0].permute(1, 2, 0, 3)
        k, v = k.expand(-1, shared, -1, -1), v.expand(-1, shared, -1, -1)
    else:  # few queries: query heads beside each other on the query axis, so that each KV head is read once
        q = folded.permute(0, 2, 3, 1, 4).reshape(rows, heads, shared * steps, width)
        k, v = k.view(rows, heads, -1, width), v.view(rows, heads, -1, width)
        mask = None if mask is None else mask.repeat(1, 1, shared, 1)
    if mask is None:  # SDPA skips what a causal query cannot see: half of the work
        k, v = k[..., :steps, :], v[..., :steps, :]
    result = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale)
    result = result.reshape(rows, heads, shared, steps, width).permute(0, 3, 1, 2, 4).reshape(rows * steps, -1, width)
    if group.valid is None:
        out[tokens] = result
    else:
        valid = group.valid.flatten()
        out[tokens[valid]] = result[valid]
