"""Opens what computes: real weights through torch on this machine, or the platform's roofline, with its tokenizer.

torch and transformers are imported only where real weights are asked for: an emulated run starts without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from flashnest.app.weights import TINY_SOURCE, open_weights
from flashnest.config import ModelConfig, PlatformConfig, RunConfig, ShapeConfig
from flashnest.record import CHUNK_TOKENS, I32Array
from flashnest.runtime.emulated import EmulatedModel, Roofline, emulated_spec
from flashnest.runtime.forward import Model
from flashnest.runtime.forward_cost import ForwardShape
from flashnest.runtime.forward_profile import Profile, Trial, profile_of
from flashnest.runtime.request import Request
from flashnest.runtime.stopping import Detokenise
from flashnest.workload.tokens import PieceTokenizer

EMULATED_EOS: Final = 2
EMULATED_EFFICIENCY: Final = 0.6
"""Share of the sheet's dense arithmetic that large GEMMs reach; an assumption, only prefill feels it."""


@dataclass(frozen=True, slots=True)
class Compute:
    """A model with its tokenizer.

    encode turns a user's text into the model's own prompt, int32 (n,); detokenise is None where only ids exist.
    admit is called with each submitted request before its first step, forget when it ended. kv_blocks_limit is what the
    emulated platform's memory holds, None where this machine decides. emulated: one sentence a part that is not real.
    profile: returns what forwards cost, from the trials wanted and the KV blocks that are free; None: not known.
    """

    model: Model
    encode: Callable[[str], I32Array]
    detokenise: Detokenise | None
    admit: Callable[[Request], None]
    forget: Callable[[Request], None]
    kv_blocks_limit: int | None
    emulated: tuple[str, ...]
    profile: Callable[[Sequence[Trial], int], Profile] | None = None


def open_compute(run: RunConfig) -> Compute:
    """Open the back end that `run` asks for. Raises ModelError."""
    if run.platform.emulated:
        return _emulated(run.platform, run.model)
    return _real(run)


def _nothing(_: Request) -> None:
    return None


def _emulated(platform: PlatformConfig, model: ModelConfig) -> Compute:
    shape, bandwidth = model.emulated_shape, platform.gpu_bytes_per_s
    if shape is None or bandwidth is None or platform.compute is None:
        raise AssertionError("RunConfig refuses emulation without shape, bandwidth and compute")
    spec = emulated_spec(
        model.name,
        dtype=_emulated_dtype(model, shape),
        vocab_size=shape.vocab_size,
        eos_ids=(EMULATED_EOS,),
        max_context_tokens=shape.max_context_tokens,
        kv_bytes_per_token=shape.kv_bytes_per_token,
    )
    ops = (platform.compute.tops_int8 if model.quant == "w8a8" else platform.compute.tflops_fp16) * 1e12
    roofline = _roofline(shape, bandwidth, ops)
    emulated = EmulatedModel(spec, roofline, memory_bytes=platform.gpu_memory_bytes)

    def admit(request: Request) -> None:
        emulated.register(request.id, request.prompt.tokens, request.prompt.reference)

    return Compute(
        model=emulated,
        encode=PieceTokenizer.for_model(shape.vocab_size, spec.eos_ids).encode,
        detokenise=None,
        admit=admit,
        forget=lambda request: emulated.release(request.id),
        kv_blocks_limit=emulated.kv_blocks_that_fit,
        emulated=(
            f"compute: {platform.name}'s roofline ({bandwidth / 1e9:.0f} GB/s, {ops / 1e12:.0f} T ops/s) "
            f"replays reference text as {model.name}",
            "tokenizer: text is cut into hashed pieces, about as long as BPE tokens",
        ),
        profile=lambda wanted, _: [(trial.shape, _seconds(roofline, trial.shape)) for trial in wanted],
    )


def _seconds(roofline: Roofline, shape: ForwardShape) -> float:
    return roofline.step_seconds(shape.tokens, shape.context_tokens, shape.attended_tokens)


def _emulated_dtype(model: ModelConfig, shape: ShapeConfig) -> str:
    """Return what the report calls the dtype; nothing here has instructions that `auto` could ask for."""
    if model.quant != "none":
        return model.quant
    return shape.kv_dtype if model.dtype == "auto" else model.dtype


def _roofline(shape: ShapeConfig, bandwidth: float, ops: float) -> Roofline:
    return Roofline(
        weight_bytes=shape.weight_bytes,
        bandwidth_bytes_per_s=bandwidth,
        kv_bytes_per_token=shape.kv_bytes_per_token,
        parameters=shape.parameters,
        ops_per_s=ops,
        attention_ops_per_pair=shape.attention_ops_per_pair,
        compute_efficiency=EMULATED_EFFICIENCY,
    )


def _real(run: RunConfig) -> Compute:
    weights = open_weights(run.model, seed=run.seed, debug=run.debug)
    model = weights.serve(run.model.kv_dtype, keep=False)

    def profile(wanted: Sequence[Trial], blocks: int) -> Profile:
        import torch

        return profile_of(model, blocks, wanted, device=weights.device, threads=torch.get_num_threads())

    measured = None if run.model.source == TINY_SOURCE else profile  # made in code: a cache would never see it again
    return Compute(model, weights.prompt, weights.detokenise, _nothing, _nothing, None, (), measured)


def kv_block_bytes(model: Model) -> int:
    """Return the bytes of one KV block of 32 tokens."""
    return CHUNK_TOKENS * model.spec.kv_bytes_per_token
