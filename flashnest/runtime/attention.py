"""Paged attention for Hugging Face modules: KV blocks of 32 tokens, packed sequences, no T x T mask.

Registers one function with transformers' attention interface. Per layer it writes the new K and V into the pool and
attends per sequence over its own blocks. transformers builds no mask for it, because it has none registered under its
name. On the CPU `paged_kernel` does both, elsewhere `gathered` attends. Knows nothing of weights, requests or who owns
a block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numba
import numpy as np
import torch
import transformers

from flashnest.record import CHUNK_TOKENS, I32Array, I64Array
from flashnest.runtime import paged_kernel
from flashnest.runtime.gathered import GatherGroup, attend_gathered, gather_groups
from flashnest.runtime.vector_tiles import HAS_BFLOAT16_DOT, WIDTH_STEP, WordArray

if TYPE_CHECKING:
    from flashnest.runtime.forward import ForwardBatch

ATTENTION_NAME: Final = "nest_paged"
"""The `attn_implementation` under which `paged_attention` is registered. transformers takes any name with "flash" in it
for a flash-attention package and looks for that instead."""

PIECE_TOKENS: Final = 16
"""Tokens of a kernel's task. With 3 query heads a KV head their sums, weights and queries and one block's K and V fill
32 KiB, a core's first cache. Fixed, so that a sequence's result does not depend on the batch."""

ALONE_WORK: Final = 1500
"""Query rows x blocks up to which one thread does it all: some 60 us, what waking another may cost."""

_WORDS: Final = {torch.float32: torch.float32, torch.bfloat16: torch.int32, torch.float16: torch.uint32}
"""The dtypes that the CPU kernel reads, and as what words (see `vector_tiles`)."""

_NUMBERS: Final = {torch.float32: torch.float32, torch.bfloat16: torch.uint16, torch.float16: torch.uint16}
"""The same as single numbers: what is moved, but not computed with."""

_CACHE_LINE_BYTES: Final = 64
"""A pool starts on one: an AVX-512 load that straddles two lines costs twice."""


@dataclass(frozen=True, slots=True, eq=False)
class FlatPool:
    """The memory of all layers' blocks as the kernel takes it; `value_numbers` is that of `value_words`."""

    key_words: WordArray
    value_words: WordArray
    value_numbers: paged_kernel.KvArray


@dataclass(frozen=True, slots=True, eq=False)
class KvBlocks:
    """The pool's tensors; the dtype may differ from the model's.

    Where the kernel serves (`flat`): keys (layers, blocks, kv heads, head dim / n, 32, n) and values (layers, blocks,
    kv heads, 32 / n, head dim, n), n = 1 in float32 and 2 in 16 bits: the words of `vector_tiles`. Else both (layers,
    blocks, kv heads, 32, head dim).
    """

    keys: torch.Tensor
    values: torch.Tensor
    flat: FlatPool | None

    @classmethod
    def allocate(
        cls, layers: int, blocks: int, heads: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> Self:
        """Return zeroed blocks. On the CPU the pages are mapped on first use, so an empty pool costs no memory yet.

        Zeroed, because a masked slot still takes part in 0 x value, and 0 x NaN is NaN.
        """
        plain = (layers, blocks, heads, CHUNK_TOKENS, width)
        if device.type != "cpu":
            keys, values = (torch.zeros(plain, dtype=dtype, device=device) for _ in range(2))
            return cls(keys, values, None)
        keys, values = (_mapped(math.prod(plain) * dtype.itemsize).view(dtype) for _ in range(2))
        if dtype not in _WORDS or width % WIDTH_STEP:
            return cls(keys.view(plain), values.view(plain), None)
        n = 4 // dtype.itemsize
        flat = FlatPool(
            keys.view(_WORDS[dtype]).numpy(), values.view(_WORDS[dtype]).numpy(), values.view(_NUMBERS[dtype]).numpy()
        )
        return cls(
            keys.view(layers, blocks, heads, width // n, CHUNK_TOKENS, n),
            values.view(layers, blocks, heads, CHUNK_TOKENS // n, width, n),
            flat,
        )

    def token(self, layer: int, block: int, offset: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return one slot's K and V, each (kv heads, head dim), as copies."""
        keys, values = self.keys[layer, block], self.values[layer, block]
        if self.flat is None:
            return keys[:, offset].clone(), values[:, offset].clone()
        n = values.shape[-1]
        return keys[:, :, offset].flatten(1), values[:, offset // n, :, offset % n].clone()


@dataclass(frozen=True, slots=True)
class PagedCall:
    """One forward's attention, planned once and used by every layer. Arrays as in `paged_kernel.attend`.

    work: tokens x blocks, summed: how much there is to do, but for the heads.
    """

    pool: KvBlocks
    slots: I32Array
    tables: I32Array
    pieces: I32Array
    shares: I32Array
    work: int
    groups: tuple[GatherGroup, ...]

    @classmethod
    def plan(cls, batch: ForwardBatch, pool: KvBlocks) -> Self:
        """Compute each new token's slot; cut the sequences into pieces and deal them out to the threads."""
        q_lens = np.diff(batch.q_starts)
        tables = np.ascontiguousarray(batch.block_tables, np.int32)
        owner = np.repeat(np.arange(len(q_lens)), q_lens)
        places = np.divmod(batch.positions, CHUNK_TOKENS)
        slots = np.stack([tables[owner, places[0]], places[1]]).astype(np.int32)
        heads, device = pool.keys.shape[2], pool.keys.device
        groups = () if pool.flat is not None else gather_groups(batch, heads, device)
        pieces = _pieces(batch.q_starts.astype(np.int64), batch.context_lens.astype(np.int64))
        costs = pieces[:, 2] * -(-(pieces[:, 3] + pieces[:, 2] - 1) // CHUNK_TOKENS)
        return cls(pool, slots, tables, pieces, _shares(costs, heads), int(costs.sum()), groups)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Store K and V of the new tokens, then attend: all (T, heads, head dim); returns query's shape.

        The three may be slices of one buffer. K and V are rounded to the pool's dtype.
        """
        pool = self.pool
        key, value = _rounded(key, pool.keys.dtype), _rounded(value, pool.keys.dtype)
        flat = pool.flat
        if flat is None:
            return self._attend_gathered(layer, query, key, value, scale)
        dots = HAS_BFLOAT16_DOT and query.dtype == pool.keys.dtype == torch.bfloat16
        factors = query if dots else query.to(torch.float32)
        out = torch.empty(query.shape, dtype=factors.dtype)
        (q, q_stride), (k, k_stride) = _flat(factors, _WORDS), _flat(key, _WORDS)
        v, v_stride = _flat(value, _NUMBERS)
        _, blocks, heads, key_words = pool.keys.shape[:4]
        _, query_heads, width = query.shape
        paged_kernel.attend(
            self.work * query_heads <= ALONE_WORK,
            (
                layer * blocks,
                heads,
                query_heads // heads,
                width,
                key_words,
                width // (2 if dots else 1),
                q_stride,
                k_stride,
                v_stride,
            ),
            q,
            k,
            v,
            flat.key_words,
            flat.value_words,
            flat.value_numbers,
            self.slots,
            self.tables,
            self.pieces,
            self.shares,
            np.float32(scale),
            _flat(out, _NUMBERS)[0],
        )
        return out.to(query.dtype)

    def _attend_gathered(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        keys, values = self.pool.keys[layer], self.pool.values[layer]
        blocks, offsets = torch.from_numpy(self.slots).to(keys.device, torch.int64)
        keys[blocks, :, offsets] = key
        values[blocks, :, offsets] = value
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for group in self.groups:
            attend_gathered(group, query, keys, values, scale, out)
        return out


def _mapped(count: int) -> torch.Tensor:
    """Return `count` zeroed bytes from a cache line's start on."""
    memory = np.zeros(count + _CACHE_LINE_BYTES, np.uint8)
    skip = -memory.ctypes.data % _CACHE_LINE_BYTES
    return torch.from_numpy(memory[skip : skip + count])


def _rounded(states: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return K or V in the pool's dtype. float16 ends at 65504: what lies beyond is cut to it, not made infinite."""
    if states.dtype == dtype:
        return states
    if dtype == torch.float16:
        largest = torch.finfo(dtype).max
        states = states.clamp(-largest, largest)
    return states.to(dtype)


def _flat(states: torch.Tensor, kinds: dict[torch.dtype, torch.dtype]) -> tuple[Any, int]:
    """Return the memory of (T, heads, head dim) as one axis of `kinds`, and the step from token to token on it.

    One axis, because numba compiles anew for a strided array, and one token's slice of a buffer counts as contiguous.
    """
    tokens, heads, width = states.shape
    step = states.stride(0)
    if states.stride(1) != width or states.stride(2) != 1 or step % 2 or states.storage_offset() % 2:
        states = states.contiguous()
        step = states.stride(0)
    kind = kinds[states.dtype]
    array = states.as_strided(((tokens - 1) * step + heads * width,), (1,)).view(kind).numpy()
    return array, step * states.dtype.itemsize // kind.itemsize


def _pieces(q_starts: I64Array, context_lens: I64Array) -> I32Array:
    """Return `paged_kernel.attend`'s pieces, int32 (n, 4): each sequence's new tokens in runs of up to PIECE_TOKENS."""
    q_lens = np.diff(q_starts)
    counts = -(-q_lens // PIECE_TOKENS)
    rows = np.repeat(np.arange(len(q_lens)), counts)
    skipped = (np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)) * PIECE_TOKENS
    tokens = np.minimum(q_lens[rows] - skipped, PIECE_TOKENS)
    seen = context_lens[rows] - q_lens[rows] + skipped + 1
    return np.stack([rows, q_starts[rows] + skipped, tokens, seen], axis=1).astype(np.int32)


def _shares(costs: I64Array, heads: int) -> I32Array:
    """Return the bounds of each thread's tasks (a piece and a KV head), such that each has about as much to do."""
    threads = numba.get_num_threads()
    done = np.cumsum(np.repeat(costs, heads))
    bounds = np.searchsorted(done, done[-1] * np.arange(1, threads) / threads)
    return np.concatenate([[0], bounds + 1, [len(done)]]).astype(np.int32)


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
