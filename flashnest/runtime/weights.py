"""Loads weights and tokenizer from a model source, and digests them. Runs nothing.

Weights come from safetensors or GGUF only: a pickle (`*.bin`) can run code, so it is refused, and `trust_remote_code`
is never given. transformers is imported on first use; it takes seconds.
"""

from __future__ import annotations

import json
from typing import Any, Final, Protocol

import torch
import xxhash

from flashnest.errors import ModelError
from flashnest.runtime.adapter import merge_adapter
from flashnest.runtime.int8_linear import quantise_linears
from flashnest.runtime.model_source import explained, is_local, quiet, resolve
from flashnest.runtime.packed_linear import has_bfloat16

_NOT_KV: Final = frozenset(
    {
        "_name_or_path",
        "transformers_version",
        "architectures",
        "dtype",
        "torch_dtype",
        "_attn_implementation",
        "use_cache",
    }
)

DTYPES: Final = ("float32", "bfloat16", "float16")

_ROLLING_ROPE: Final = frozenset({"dynamic", "longrope"})


class Tokenizer(Protocol):
    """What flashnest uses of a Hugging Face tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of `token_ids`."""

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool = True, add_generation_prompt: bool = False
    ) -> Any:
        """Return the conversation as text (tokenize=False) in the model's own chat format."""


def load_tokenizer(source: str, *, debug: bool = False) -> Tokenizer:
    """Load the tokenizer of `source`; raises ModelError where there is none."""
    place = resolve(source, debug=debug)
    from transformers import AutoTokenizer

    with quiet(debug or not is_local(place)), explained(source):  # a download shows its progress
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    if not tokenizer.encode("a", add_special_tokens=False):  # what transformers makes of a folder without one
        raise ModelError(
            f"model {source} has no tokenizer", fix="Put its tokenizer.json or tokenizer.model beside config.json."
        )
    return tokenizer


def load_causal_lm(
    source: str, dtype: str = "float32", *, adapter: str | None = None, quant: str = "none", debug: bool = False
) -> tuple[Any, int]:
    """Load `source` on the CPU in `dtype`; returns (Hugging Face module in eval mode, fingerprint of its weights).

    `adapter`: a PEFT LoRA folder to merge; `quant`: "none" or "w8a8". The fingerprint is of the weights as they are
    served, so adapter and quantisation are in it. Raises ModelError where the source cannot be found, holds no
    safetensors, or is of an architecture that is not served; the last is found out before the weights are read.
    """
    if dtype not in DTYPES:
        raise ModelError(f"unknown dtype {dtype!r}", fix=f"Use one of {', '.join(DTYPES)}.")
    place = resolve(source, debug=debug)
    from transformers import AutoConfig, AutoModelForCausalLM

    with quiet(debug or not is_local(place)), explained(source):  # a download shows its progress
        config = AutoConfig.from_pretrained(place, trust_remote_code=False)
        check_architecture(config, source)
        module = AutoModelForCausalLM.from_pretrained(
            place, config=config, dtype=getattr(torch, dtype), use_safetensors=True, trust_remote_code=False
        )
    return as_served(module, adapter=adapter, quant=quant)


def as_served(module: Any, *, adapter: str | None = None, quant: str = "none") -> tuple[Any, int]:
    """Merge the adapter, quantise, and return (the same module in eval mode, its weights' fingerprint)."""
    if adapter is not None:
        merge_adapter(module, adapter)
    if quant == "w8a8":
        quantise_linears(module)
    return module.eval(), weights_fingerprint(module)


def resolved_dtype(dtype: str, device: str) -> str:
    """Return `dtype`, with "auto" resolved for `device` ("cpu" or "cuda").

    bfloat16 where the device multiplies it in hardware, else float32: without the instructions bfloat16 takes 2.5 times
    as long at 32 tokens and 5.3 times at 512 (docs/decisions/0001).
    """
    if dtype != "auto":
        return dtype
    native = torch.cuda.is_bf16_supported(including_emulation=False) if device == "cuda" else has_bfloat16()
    return "bfloat16" if native else "float32"


def check_architecture(config: Any, name: str) -> None:
    """Raise ModelError unless every layer is plain full attention, whose KV can be rolled back and reused."""
    text = config.get_text_config()
    if reason := _unserved(text):
        raise ModelError(
            f"model {name}: {text.model_type} is not served, it has {reason}",
            why="Rejected draft tokens are rolled back and prompt chunks are reused; both need KV that depends on "
            "nothing but the tokens before it, kept for the whole context.",
            fix="Use a model with full attention in every layer, such as Llama or Qwen3.",
        )


def _unserved(config: Any) -> str | None:
    layers = set(getattr(config, "layer_types", None) or ["full_attention"]) - {"full_attention"}
    if layers:
        return f"layers of type {', '.join(sorted(layers))}"
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return "sliding-window attention"
    if getattr(config, "is_encoder_decoder", False):
        return "an encoder"
    if getattr(config, "kv_lora_rank", None):
        return "latent attention"
    if getattr(config, "attn_logit_softcapping", None):
        return "soft-capped attention scores"
    for marker in ("mamba_d_state", "state_size", "attention_chunk_size"):
        if getattr(config, marker, None):
            return f"a layer state or window ({marker})"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in _ROLLING_ROPE:
        return f"{rope['rope_type']} rope, whose angles change with the longest sequence of the batch"
    return None


def weights_fingerprint(module: Any) -> int:
    """Return the 64-bit xxh3 of every parameter and stored buffer: name, dtype, shape, bytes (0.1 s for 540 MB)."""
    digest = xxhash.xxh3_64()
    tensors = dict(module.named_parameters())  # tied weights appear once
    tensors |= {name: buffer for name, buffer in module.named_buffers() if name in module.state_dict()}
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.intdigest()


def kv_version(config: Any, fingerprint: int, dtype: str, kv_dtype: str | None = None) -> int:
    """Return the 32-bit digest of all that KV depends on besides the tokens; never 0.

    That is the weights as served (adapter merged, quantised), the dtype they compute in, the dtype KV is kept in (None:
    the same), and the whole configuration, in which rope settings are; only what cannot matter (names, versions) is
    left out, so a change too many costs reuse, never a wrong answer.
    """
    facts = {key: value for key, value in config.to_dict().items() if key not in _NOT_KV}
    text = json.dumps([fingerprint, dtype, kv_dtype or dtype, facts], sort_keys=True, default=str)
    return xxhash.xxh3_64_intdigest(text.encode()) & 0xFFFFFFFF or 1


def tiny_qwen3(seed: int, *, vocab: int = 512, layers: int = 2, hidden: int = 64, heads: int = 4) -> Any:
    """Return a random Qwen3ForCausalLM in float32, for tests and trials: no file, no download, milliseconds a step.

    Two query heads share a KV head; the context limit is 2048 tokens. The same seed gives the same weights. They are
    drawn wide (0.3, not 0.02), so that greedy output varies instead of repeating one token.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=hidden // heads,
        max_position_embeddings=2048,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config).eval()
