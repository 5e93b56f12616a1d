"""A decoder's forward on the CPU, written out: one packed matrix for Q, K and V, one for gate and up, fused rest.

Serves the Llama, Qwen2 and Qwen3 families over a Hugging Face module's own weights; rope angles come from the module's
own code. A module's eager forward spends as long between its matrix products as in them (docs/decisions/0004). Knows
no requests, owns no KV; `model.TorchModel` falls back to the module where `serves` says no.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import torch

from flashnest.record import I64Array
from flashnest.runtime import lean_kernels
from flashnest.runtime.attention import PagedCall
from flashnest.runtime.int8_linear import Int8Linear
from flashnest.runtime.packed_linear import Linear, can_pack, pack
from flashnest.runtime.paged_kernel import F32Array, KvArray
from flashnest.runtime.tile_linear import TileLinear, can_tile

FAMILIES: Final = ("llama", "qwen2", "qwen3")
"""`model_type`s whose layers are these and nothing else; tests compare each with its module."""


def serves(module: Any) -> bool:
    """Return whether `module` is a decoder of a family and dtype that is written out here, on the CPU."""
    config = module.config
    return (
        config.model_type in FAMILIES
        and hasattr(module, "lm_head")
        and config.hidden_act == "silu"
        and can_pack(module)
    )


@dataclass(frozen=True, slots=True)
class _Layer:
    """One decoder layer. norms float32 (heads + KV heads, head dim): of Q and K, or (0, 0) where it has none."""

    index: int
    scale: float
    before_attention: F32Array
    qkv: Linear
    norms: F32Array
    output: Linear
    before_mlp: F32Array
    gate_up: Linear
    down: Linear

    @classmethod
    def of(cls, layer: Any, index: int, heads: tuple[int, int]) -> Self:
        """Pack a module's layer; heads: query heads and KV heads."""
        attention, mlp = layer.self_attn, layer.mlp
        return cls(
            index=index,
            scale=attention.scaling,
            before_attention=_float32(layer.input_layernorm.weight),
            qkv=_product(attention.q_proj, attention.k_proj, attention.v_proj),
            norms=_head_norms(attention, heads),
            output=_product(attention.o_proj),
            before_mlp=_float32(layer.post_attention_layernorm.weight),
            gate_up=_product(mlp.gate_proj, mlp.up_proj),
            down=_product(mlp.down_proj),
        )


class LeanForward:
    """Computes scores. One thread calls it; buffers are kept between calls of the same number of tokens."""

    def __init__(self, module: Any) -> None:
        config = module.config
        decoder = module.model
        heads = config.num_attention_heads, config.num_key_value_heads
        self._heads = heads
        self._width: int = decoder.layers[0].self_attn.head_dim
        self._epsilon = np.float32(config.rms_norm_eps)
        self._embedding: torch.Tensor = decoder.embed_tokens.weight.detach()
        self._angles = decoder.rotary_emb
        self._layers = tuple(_Layer.of(layer, i, heads) for i, layer in enumerate(decoder.layers))
        self._last_norm = _float32(decoder.norm.weight)
        self._head = _product(module.lm_head)

    def logits(
        self, token_ids: torch.Tensor, positions: torch.Tensor, score_rows: torch.Tensor, paged: PagedCall
    ) -> torch.Tensor:
        """Return the next-token logits of `score_rows`, (S, vocab), in the weights' dtype.

        token_ids and positions int64 (T,), score_rows int64 (S,); K and V of all T tokens go into the blocks of
        `paged`. The last layer is computed beyond its attention for the scored rows alone.
        """
        fresh = self._embedding.index_select(0, token_ids)
        hidden = np.zeros(fresh.shape, np.float32)
        cosines, sines = self._turns(positions)
        for layer in self._layers:
            normed = torch.empty_like(fresh)
            self._add_norm(hidden, fresh, layer.before_attention, normed)
            attended = self._attend(layer, normed, cosines, sines, paged)
            if layer is self._layers[-1]:
                attended, hidden = attended[score_rows], hidden[score_rows.numpy()]
            fresh = self._mlp(layer, hidden, layer.output(attended))
        normed = torch.empty_like(fresh)
        self._add_norm(hidden, fresh, self._last_norm, normed)
        return self._head(normed)

    def best(self, logits: torch.Tensor) -> I64Array:
        """Return the arg max of each row of `logits`'s answer, int64 (S,), the first of equals."""
        return lean_kernels.best_of_rows(_array(logits))

    def _turns(self, positions: torch.Tensor) -> tuple[F32Array, F32Array]:
        """Return cosines and sines of each token's angles, float32 (T, head dim / 2)."""
        cosines, sines = self._angles(torch.empty(0), positions[None])
        half = self._width // 2  # the other half repeats the first
        return cosines[0, :, :half].contiguous().numpy(), sines[0, :, :half].contiguous().numpy()

    def _add_norm(self, hidden: F32Array, fresh: torch.Tensor, weight: F32Array, out: torch.Tensor) -> None:
        lean_kernels.add_norm(hidden, _array(fresh), weight, self._epsilon, _array(out))

    def _attend(
        self, layer: _Layer, normed: torch.Tensor, cosines: F32Array, sines: F32Array, paged: PagedCall
    ) -> torch.Tensor:
        queries, keys = self._heads
        qkv = layer.qkv(normed)
        lean_kernels.rotate(_array(qkv), cosines, sines, layer.norms, queries + keys, self._epsilon)
        q, k, v = qkv.view(len(qkv), -1, self._width).split((queries, keys, keys), dim=1)
        return paged.attend(layer.index, q, k, v, layer.scale).reshape(len(qkv), -1)

    def _mlp(self, layer: _Layer, hidden: F32Array, fresh: torch.Tensor) -> torch.Tensor:
        normed = torch.empty_like(fresh)
        self._add_norm(hidden, fresh, layer.before_mlp, normed)
        gate_up = layer.gate_up(normed)
        active = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
        lean_kernels.swiglu(_array(gate_up), _array(active))
        return layer.down(active)


def _product(*layers: Any) -> Linear:
    """Return one product for layers over the same input: in int8 where they are, else what is best on this CPU."""
    if isinstance(layers[0], Int8Linear):
        return Int8Linear.of(*layers)
    return TileLinear(*layers) if can_tile(layers[0]) else pack(*layers)


def _array(tensor: torch.Tensor) -> KvArray:
    """Return a CPU tensor's memory, bfloat16 as its bits: numpy has no such type."""
    array: KvArray = (tensor if tensor.dtype == torch.float32 else tensor.view(torch.uint16)).numpy()
    return array


def _float32(weight: torch.Tensor) -> F32Array:
    array: F32Array = weight.detach().float().contiguous().numpy()
    return array


def _head_norms(attention: Any, heads: tuple[int, int]) -> F32Array:
    if getattr(attention, "q_norm", None) is None:
        return np.zeros((0, 0), np.float32)
    norms = attention.q_norm, attention.k_norm
    of_each = [np.tile(_float32(norm.weight), (n, 1)) for norm, n in zip(norms, heads, strict=True)]
    return np.concatenate(of_each)
