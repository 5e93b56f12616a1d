"""The torch back end: a Hugging Face causal LM whose KV lives in our blocks. `forward.Model` on real weights.

The module gives weights and architecture. On the CPU `lean_forward` does the mathematics where it knows the family;
else the module does, with `attention` in place of its own. Loads nothing by itself beyond calling `weights`; decides
nothing about batches, drafts or blocks.
"""

from __future__ import annotations

from typing import Any, Self

import numba
import numpy as np
import psutil
import torch

from flashnest.errors import ModelError
from flashnest.record import CHUNK_TOKENS
from flashnest.runtime.attention import ATTENTION_NAME, KvBlocks, PagedCall
from flashnest.runtime.forward import ForwardBatch, ModelSpec, Scores
from flashnest.runtime.int8_linear import is_quantised
from flashnest.runtime.lean_forward import LeanForward, serves
from flashnest.runtime.packed_linear import free_weights, pack_linears, unpack_linears
from flashnest.runtime.weights import check_architecture, kv_version, load_causal_lm


class TorchModel:
    """`forward.Model` over a Hugging Face causal LM. One thread calls it.

    The module passed in is taken over: its attention and, on the CPU, its linear layers are ours until `close()`, which
    gives it back as it was.
    """

    def __init__(
        self,
        module: Any,
        fingerprint: int,
        name: str,
        device: str = "cpu",
        *,
        kv_dtype: str = "auto",
        keep_weights: bool = True,
    ) -> None:
        """Take over `module` and move it to `device`. Raises ModelError where it is not plain full attention.

        kv_dtype: what KV is kept in; "auto" is the module's own dtype. keep_weights False: the module is nobody else's,
        so what was packed is freed and `close()` gives nothing back.
        """
        check_architecture(module.config, name)
        if not getattr(module, "_supports_attention_backend", False):
            raise ModelError(
                f"model {name}: {type(module).__name__} does not take a custom attention function",
                why="Its KV cannot be kept in blocks, so drafts could not be rolled back.",
                fix="Use a Llama or Qwen3 family model.",
            )
        self._module = module.to(device).eval()
        self._device = torch.device(device)
        self._former_attention = module.config._attn_implementation
        module.set_attn_implementation(ATTENTION_NAME)
        self._lean = LeanForward(module) if serves(module) else None
        self._packed = () if self._lean else pack_linears(module)
        # One pool of threads serves both; libgomp ends and starts threads where its teams differ in size.
        numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
        self._pool: KvBlocks | None = None
        self._kv_dtype: torch.dtype = module.dtype if kv_dtype == "auto" else getattr(torch, kv_dtype)
        self._spec = _spec(module, fingerprint, name, self._kv_dtype)
        if self._lean and not keep_weights:
            free_weights(module)

    @classmethod
    def load(cls, source: str, dtype: str = "float32", device: str = "cpu") -> Self:
        """Load `source` (see `weights`) in `dtype` and take it over."""
        module, fingerprint = load_causal_lm(source, dtype)
        return cls(module, fingerprint, source, device, keep_weights=False)

    @property
    def spec(self) -> ModelSpec:
        """What the engine must know of the model."""
        return self._spec

    def allocate_kv(self, blocks: int) -> None:
        """Make room for `blocks` KV blocks; raises ModelError where this machine has not the memory."""
        needed = blocks * CHUNK_TOKENS * self._spec.kv_bytes_per_token
        free = _free_bytes(self._device)
        if needed > free:
            raise ModelError(
                f"a KV pool of {blocks} blocks needs {needed / 2**30:.2f} GiB; {free / 2**30:.2f} GiB are free",
                why=f"One token of {self._spec.name} takes {self._spec.kv_bytes_per_token} bytes of KV.",
                fix="Give the pool fewer blocks, or keep KV in 2 bytes: model.kv_dtype=bfloat16.",
            )
        layers, heads, width = _kv_shape(self._module.config)
        self._pool = KvBlocks.allocate(layers, blocks, heads, width, self._kv_dtype, self._device)

    def forward(self, batch: ForwardBatch) -> Scores:
        """Write the batch's KV into its blocks, attend over each sequence's own context, return the scores."""
        if self._pool is None:
            raise RuntimeError("forward before allocate_kv")
        with torch.inference_mode():
            logits = self._logits(batch, PagedCall.plan(batch, self._pool))
            best = self._lean.best(logits) if self._lean else logits.argmax(dim=-1).cpu().numpy()
            wanted = logits[self._tensor(batch.logit_rows)].float().cpu() if len(batch.logit_rows) else None
            return Scores(best, wanted)

    def close(self) -> None:
        """Free the KV pool and give the module its own attention back. A second call does nothing."""
        if self._module is None:
            return
        self._pool = self._lean = None
        unpack_linears(self._packed)
        self._module.set_attn_implementation(self._former_attention)
        self._module = None

    def _logits(self, batch: ForwardBatch, paged: PagedCall) -> torch.Tensor:
        """Return logits (S, vocab) of the batch's score rows; the head is a fifth of a step, so of these only."""
        tokens, positions, rows = map(self._tensor, (batch.token_ids, batch.positions, batch.score_rows))
        if self._lean is not None:
            return self._lean.logits(tokens, positions, rows, paged)
        logits: torch.Tensor = self._module(
            input_ids=tokens[None], position_ids=positions[None], use_cache=False, logits_to_keep=rows, paged=paged
        ).logits[0]
        return logits

    def _tensor(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.int64)).to(self._device)


def _kv_shape(config: Any) -> tuple[int, int, int]:
    """Return (layers, KV heads, head dim)."""
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return config.num_hidden_layers, getattr(config, "num_key_value_heads", None) or heads, width


def _spec(module: Any, fingerprint: int, name: str, kv_dtype: torch.dtype) -> ModelSpec:
    config = module.config
    layers, heads, width = _kv_shape(config)
    dtype = str(module.dtype).removeprefix("torch.")
    return ModelSpec(
        name=name,
        back_end="torch",
        dtype="w8a8" if is_quantised(module) else dtype,
        vocab_size=config.vocab_size,
        eos_ids=_eos_ids(module),
        max_context_tokens=config.max_position_embeddings,
        kv_version=kv_version(config, fingerprint, dtype, str(kv_dtype).removeprefix("torch.")),
        kv_bytes_per_token=2 * layers * heads * width * kv_dtype.itemsize,
    )


def _eos_ids(module: Any) -> tuple[int, ...]:
    """Return the ids that end a text: what generation_config says, else config; chat models name several."""
    generation = getattr(module, "generation_config", None)
    ids = getattr(generation, "eos_token_id", None)
    ids = module.config.eos_token_id if ids is None else ids
    return () if ids is None else tuple(ids) if isinstance(ids, (list, tuple)) else (int(ids),)


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)
