"""KV of other weights is never reused: same table, same pool, same prompts, another model, and nothing is shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from adapter_folder import lora_pairs, save_adapter
from engine_setup import Rig, Tiers, open_tiers, text

from flashnest.runtime.engine import Engine
from flashnest.runtime.kv_pool import BlockPool
from flashnest.runtime.model import TorchModel
from flashnest.runtime.request import Prompt, Request, SamplingParams
from flashnest.runtime.weights import as_served, tiny_qwen3

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = [
    Prompt(np.concatenate([text(64, 1), text(9, 2 + i)]), sampling=SamplingParams(12, ignore_eos=True))
    for i in range(3)
]


def model_of(module: Any, *, kv_dtype: str = "auto", **changes: Any) -> TorchModel:
    return TorchModel(*as_served(module, **changes), "tiny_qwen3", kv_dtype=kv_dtype)


def same(_: Path) -> TorchModel:
    return model_of(tiny_qwen3(0))


def other_weights(_: Path) -> TorchModel:
    module = tiny_qwen3(0)
    with torch.no_grad():
        module.model.layers[0].self_attn.k_proj.weight[0, 0] += 1.0
    return model_of(module)


def adapter(folder: Path) -> TorchModel:
    pairs = lora_pairs(("model.layers.0.self_attn.v_proj", 64, 32))
    return model_of(tiny_qwen3(0), adapter=save_adapter(folder / "lora", pairs))


def same_folder_trained_on(folder: Path) -> TorchModel:
    """As vLLM's #42125: an adapter of the same name and place, with other contents."""
    pairs = lora_pairs(("model.layers.0.self_attn.v_proj", 64, 32), seed=1)
    return model_of(tiny_qwen3(0), adapter=save_adapter(folder / "lora", pairs))


def other_dtype(_: Path) -> TorchModel:
    return model_of(tiny_qwen3(0).to(torch.bfloat16))


def other_kv_dtype(_: Path) -> TorchModel:
    return model_of(tiny_qwen3(0), kv_dtype="float16")


def quantised(_: Path) -> TorchModel:
    return model_of(tiny_qwen3(0), quant="w8a8")


def other_rope(_: Path) -> TorchModel:
    module = tiny_qwen3(0)
    config = module.config
    config.rope_parameters = {**config.rope_parameters, "rope_theta": 5e5}
    module.model.rotary_emb = type(module.model.rotary_emb)(config)
    return model_of(module)


def serve(tiers: Tiers, pool: BlockPool, model: TorchModel) -> list[Request]:
    """Serve PROMPTS on a pool whose books say what former models left in it; the model's own blocks are empty.

    Without drafts, so that bfloat16 sees the same batches each time and says the same.
    """
    with Rig(model, tiers, blocks=pool.blocks, max_draft_tokens=0) as rig:
        rig.pool = pool
        rig.engine = Engine(model, tiers.router, pool, rig.engine._limits, clock_s=rig.clock)
        return rig.serve(PROMPTS)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (same, other_weights),
        (same, adapter),
        (adapter, same),
        (adapter, same_folder_trained_on),
        (same, other_dtype),
        (same, other_kv_dtype),
        (same, quantised),
        (same, other_rope),
    ],
)
def test_kv_of_another_model_is_never_reused(
    tmp_path: Path, before: Callable[[Path], TorchModel], after: Callable[[Path], TorchModel]
) -> None:
    with open_tiers() as tiers:
        alone = [r.output.tolist() for r in serve(tiers, BlockPool(64), after(tmp_path))]
    with open_tiers() as tiers:
        pool = BlockPool(64)
        serve(tiers, pool, before(tmp_path))
        cached = pool.stats().cached
        requests = serve(tiers, pool, after(tmp_path))
        assert cached > 0
        assert requests[0].reused_tokens == 0
        assert [r.output.tolist() for r in requests] == alone


def test_kv_of_the_same_model_is_reused() -> None:
    """What the test above would show if versions were not compared: the blocks are found, and here they are empty."""
    with open_tiers() as tiers:
        pool = BlockPool(64)
        serve(tiers, pool, same(Path()))
        assert [r.reused_tokens for r in serve(tiers, pool, same(Path()))] == [64] * 3


def test_a_forged_version_would_reuse_it_and_say_something_else() -> None:
    with open_tiers() as tiers:
        alone = [r.output.tolist() for r in serve(tiers, BlockPool(64), other_weights(Path()))]
    with open_tiers() as tiers:
        pool, first, second = BlockPool(64), same(Path()), other_weights(Path())
        second._spec = replace(second.spec, kv_version=first.spec.kv_version)
        serve(tiers, pool, first)
        requests = serve(tiers, pool, second)
        assert requests[0].reused_tokens == 64
        assert [r.output.tolist() for r in requests] != alone
