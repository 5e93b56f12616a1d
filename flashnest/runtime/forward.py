"""The seam between the engine and whatever computes: one packed batch in, scores out. Computes nothing itself.

Tokens of all sequences are packed into one axis of T tokens, as in vLLM's and HF's continuous batching: a decoding
sequence brings 1 + its draft tokens, a prefilling one a slice of its prompt. KV lives in blocks of 32 tokens; a
sequence names its blocks in order, the new tokens' blocks included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from flashnest.record import I32Array, I64Array

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What the engine must know of a model.

    `kv_version` is the interned 32-bit digest of weights, dtype, quantisation and rope settings: KV made under another
    version is never reused. `back_end` is "torch" or "emulated"; whatever prints a number prints it too.
    """

    name: str
    back_end: str
    dtype: str
    vocab_size: int
    eos_ids: tuple[int, ...]
    max_context_tokens: int
    kv_version: int
    kv_bytes_per_token: int


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One forward pass over R sequences and T packed tokens.

    token_ids int64 (T,); positions int64 (T,): place in the sequence, from 0; q_starts int32 (R + 1,): sequence r owns
    tokens q_starts[r]..q_starts[r+1]-1; context_lens int32 (R,): tokens of sequence r in KV after this pass, so its
    last token has position context_lens[r] - 1; block_tables int32 (R, width): KV block ids in order, -1 past the end;
    score_rows int64 (S,): the packed tokens whose next-token scores are wanted, ascending;
    request_ids int64 (R,): for the emulated back end, which replays a reference by request;
    logit_rows int64 (L,): indexes into score_rows, ascending, whose whole logits are wanted; empty where the arg max
    is enough (greedy).
    """

    token_ids: I64Array
    positions: I64Array
    q_starts: I32Array
    context_lens: I32Array
    block_tables: I32Array
    score_rows: I64Array
    request_ids: I64Array
    logit_rows: I64Array


@dataclass(frozen=True, slots=True)
class Scores:
    """Next-token scores of the rows asked for, in their order.

    best int64 (S,): the arg max; logits float32 (L, vocab) on the CPU, of `ForwardBatch.logit_rows`;
    None where L is 0 or the back end has none.
    """

    best: I64Array
    logits: torch.Tensor | None


class Model(Protocol):
    """A compute back end. One thread calls it; `forward` returns when its scores are on the CPU."""

    @property
    def spec(self) -> ModelSpec:
        """What the engine must know of the model."""

    def allocate_kv(self, blocks: int) -> None:
        """Make room for `blocks` KV blocks of 32 tokens; called once, before the first forward.

        Raises ModelError where the memory cannot be had.
        """

    def forward(self, batch: ForwardBatch) -> Scores:
        """Write the batch's KV into its blocks, attend over each sequence's own context, return the scores."""

    def close(self) -> None:
        """Give the memory back. A second call does nothing."""
