"""Paged attention for Hugging Face modules: KV blocks of 32 tokens, packed sequences, no T x T mask.

Registers one function with transformers' attention interface. Per layer it writes the new K and V into the pool and
attends per sequence over its own blocks. transformers builds no mask for it, because it has none registered under its
name. On the CPU, sequences with few new tokens go through `paged_kernel`; long prompt slices, and everything on other
devices, gather K and V and call torch's SDPA. Knows nothing of weights, requests or who owns a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import torch
import torch.nn.functional as functional
import transformers

from flashnest.record import CHUNK_TOKENS, BoolArray, I32Array
from flashnest.runtime import paged_kernel

if TYPE_CHECKING:
    from flashnest.runtime.forward import ForwardBatch

ATTENTION_NAME: Final = "nest_paged"
"""The `attn_implementation` under which `paged_attention` is registered. transformers takes any name with "flash" in it
for a flash-attention package and looks for that instead."""

KERNEL_TOKENS: Final = 16
"""Sequences with at most so many new tokens take the CPU kernel; above, MKL's GEMMs inside SDPA win."""

_KERNEL_BITS: Final = {torch.float32: np.float32, torch.bfloat16: np.uint16}
"""The dtypes that the CPU kernel reads, and as what."""


@dataclass(frozen=True, slots=True)
class KvBlocks:
    """The pool's tensors: keys and values (layers, blocks, kv heads, 32, head dim), in the model's dtype."""

    keys: torch.Tensor
    values: torch.Tensor

    @classmethod
    def allocate(
        cls, layers: int, blocks: int, heads: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> Self:
        """Return zeroed blocks. On the CPU the pages are mapped on first use, so an empty pool costs no memory yet.

        Zeroed, because a masked slot still takes part in 0 x value, and 0 x NaN is NaN.
        """
        shape = (layers, blocks, heads, CHUNK_TOKENS, width)
        if device.type != "cpu":
            return cls(torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))
        count = int(np.prod(shape)) * dtype.itemsize
        keys, values = (torch.from_numpy(np.zeros(count, np.uint8)).view(dtype).view(shape) for _ in range(2))
        return cls(keys, values)


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


@dataclass(frozen=True, slots=True)
class PagedCall:
    """One forward's attention, planned once and used by every layer."""

    pool: KvBlocks
    slot_blocks: I32Array
    slot_offsets: I32Array
    tables: I32Array
    context_lens: I32Array
    q_starts: I32Array
    kernel_rows: I32Array
    groups: tuple[GatherGroup, ...]

    @classmethod
    def plan(cls, batch: ForwardBatch, pool: KvBlocks) -> Self:
        """Split the batch's sequences between the kernel and SDPA, and compute each token's slot."""
        q_starts = np.ascontiguousarray(batch.q_starts, np.int32)
        context_lens = np.ascontiguousarray(batch.context_lens, np.int32)
        tables = np.ascontiguousarray(batch.block_tables, np.int32)
        q_lens = np.diff(q_starts)
        owner = np.repeat(np.arange(len(q_lens)), q_lens)
        few = q_lens <= KERNEL_TOKENS
        in_kernel = few & (pool.keys.device.type == "cpu" and pool.keys.dtype in _KERNEL_BITS)
        together = np.flatnonzero(few & ~in_kernel)
        sets = [together] if len(together) else []
        sets += [np.array([row]) for row in np.flatnonzero(~few)]
        heads, device = pool.keys.shape[2], pool.keys.device
        return cls(
            pool=pool,
            slot_blocks=tables[owner, batch.positions // CHUNK_TOKENS],
            slot_offsets=(batch.positions % CHUNK_TOKENS).astype(np.int32),
            tables=tables,
            context_lens=context_lens,
            q_starts=q_starts,
            kernel_rows=np.flatnonzero(in_kernel).astype(np.int32),
            groups=tuple(_gather_group(rows, q_starts, context_lens, tables, heads, device) for rows in sets),
        )

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Store K and V of the new tokens, then attend: all (T, heads, head dim); returns query's shape."""
        keys, values = self.pool.keys[layer], self.pool.values[layer]
        self._store(keys, key)
        self._store(values, value)
        out = torch.empty_like(query)
        if len(self.kernel_rows):
            out = self._attend_in_kernel(query, keys, values, scale)
        for group in self.groups:
            _attend_gathered(group, query, keys, values, scale, out)
        return out

    def _store(self, pool: torch.Tensor, fresh: torch.Tensor) -> None:
        if pool.device.type == "cpu" and pool.dtype in _KERNEL_BITS:
            paged_kernel.store(_array(fresh), _array(pool), self.slot_blocks, self.slot_offsets)
            return
        blocks = torch.from_numpy(self.slot_blocks).to(pool.device, torch.int64)
        offsets = torch.from_numpy(self.slot_offsets).to(pool.device, torch.int64)
        pool[blocks, :, offsets] = fresh

    def _attend_in_kernel(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
    ) -> torch.Tensor:
        out = torch.empty(query.shape, dtype=torch.float32)
        paged_kernel.attend(
            query.to(torch.float32).numpy(),
            _array(keys),
            _array(values),
            self.tables,
            self.context_lens,
            self.q_starts,
            self.kernel_rows,
            np.float32(scale),
            out.numpy(),
        )
        return out.to(query.dtype)


def _array(tensor: torch.Tensor) -> paged_kernel.KvArray:
    """Return the CPU tensor's memory as an array: bfloat16 as its bits, since numpy has no such type."""
    array: paged_kernel.KvArray = (tensor if tensor.dtype == torch.float32 else tensor.view(torch.uint16)).numpy()
    return array


def _gather_group(
    rows: np.ndarray[Any, Any],
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


def _attend_gathered(
    group: GatherGroup,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
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


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    paged: PagedCall,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Serve one attention layer of a Hugging Face module: query (1, heads, T, head dim), key and value alike.

    `paged` reaches here as a keyword of the model's forward. Returns (1, T, heads, head dim) and no weights.
    """
    q, k, v = (states[0].transpose(0, 1).contiguous() for states in (query, key, value))
    return paged.attend(module.layer_idx, q, k, v, scaling)[None], None


transformers.AttentionInterface.register(ATTENTION_NAME, paged_attention)
