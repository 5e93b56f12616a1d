"""Opens real weights with their tokenizer, as the model's config asks: dtype, adapter, quantisation.

torch and transformers are imported when something is opened, not before. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from flashnest.config import ModelConfig
from flashnest.record import I32Array
from flashnest.runtime.stopping import Detokenise
from flashnest.workload.tokens import PieceTokenizer

if TYPE_CHECKING:
    from flashnest.runtime.model import TorchModel

TINY_SOURCE: Final = "tiny:qwen3"

Encode = Callable[[str], I32Array]


@dataclass(frozen=True, slots=True)
class OpenWeights:
    """A Hugging Face module with what turns text into its tokens.

    fingerprint: of the weights as served; prompt: a user's text to the model's own prompt, int32 (n,), in its chat
    format; ids: text to ids, nothing added; detokenise: None where only ids exist.
    """

    module: Any
    fingerprint: int
    name: str
    device: str
    prompt: Encode
    ids: Encode
    detokenise: Detokenise | None

    def serve(self, kv_dtype: str = "auto", *, keep: bool) -> TorchModel:
        """Return the model over these weights; it takes the module over, and with `keep` gives it back at `close()`."""
        from flashnest.runtime.model import TorchModel

        return TorchModel(self.module, self.fingerprint, self.name, self.device, kv_dtype=kv_dtype, keep_weights=keep)


def open_weights(config: ModelConfig, *, seed: int = 0, debug: bool = False) -> OpenWeights:
    """Load what `config` names; `seed` is for `tiny:qwen3`, whose weights are random. Raises ModelError."""
    return _tiny(config, seed) if config.source == TINY_SOURCE else _loaded(config, debug)


def _tiny(config: ModelConfig, seed: int) -> OpenWeights:
    from flashnest.runtime.weights import as_served, tiny_qwen3

    module, fingerprint = as_served(tiny_qwen3(seed), adapter=config.adapter, quant=config.quant)
    encode = PieceTokenizer.for_model(module.config.vocab_size, (module.config.eos_token_id,)).encode
    return OpenWeights(module, fingerprint, "tiny_qwen3", "cpu", encode, encode, None)


def _loaded(config: ModelConfig, debug: bool) -> OpenWeights:
    import torch

    from flashnest.runtime.weights import load_causal_lm, load_tokenizer, resolved_dtype

    tokenizer = load_tokenizer(config.source, debug=debug)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = resolved_dtype(config.dtype, device)
    module, fingerprint = load_causal_lm(config.source, dtype, adapter=config.adapter, quant=config.quant, debug=debug)

    def ids(text: str) -> I32Array:
        return np.array(tokenizer.encode(text, add_special_tokens=False), np.int32)

    def prompt(text: str) -> I32Array:
        turns = [{"role": "user", "content": text}]
        return ids(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))

    def detokenise(tokens: list[int]) -> str:
        return tokenizer.decode(tokens, skip_special_tokens=False)

    return OpenWeights(module, fingerprint, config.name, device, prompt, ids, detokenise)
