"""A LoRA folder merged at load gives W + scale B A; what would serve another model is refused, and nothing changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_folder import lora_pairs, save_adapter

from flashnest.errors import ModelError
from flashnest.runtime.adapter import merge_adapter
from flashnest.runtime.weights import load_causal_lm, tiny_qwen3, weights_fingerprint

Q = "model.layers.0.self_attn.q_proj"
DOWN = "model.layers.1.mlp.down_proj"
PAIRS = lora_pairs((Q, 64, 64), (DOWN, 128, 64))


def delta(name: str) -> torch.Tensor:
    a, b = (PAIRS[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
    return b @ a


def change(module: Any, name: str) -> torch.Tensor:
    return module.get_submodule(name).weight.detach() - tiny_qwen3(0).get_submodule(name).weight.detach()


@pytest.mark.parametrize(
    ("config", "q_scale", "down_scale"),
    [
        ({}, 2.0, 2.0),
        ({"lora_alpha": 4}, 1.0, 1.0),
        ({"use_rslora": True}, 4.0, 4.0),
        ({"alpha_pattern": {"q_proj": 2}}, 0.5, 2.0),
        ({"alpha_pattern": {r"layers\.1\..*down_proj": 16}}, 2.0, 4.0),
        ({"alpha_pattern": {"^model.layers.0": 16}}, 4.0, 2.0),
        ({"alpha_pattern": {"proj": 16}}, 2.0, 2.0),  # a whole name or the end of a path, not a part of a word
        ({"init_lora_weights": True, "modules_to_save": None}, 2.0, 2.0),
    ],
)
def test_merging_adds_the_scaled_product(
    tmp_path: Path, config: dict[str, Any], q_scale: float, down_scale: float
) -> None:
    module = tiny_qwen3(0)
    merge_adapter(module, save_adapter(tmp_path / "lora", PAIRS, **config))
    torch.testing.assert_close(change(module, Q), q_scale * delta(Q))
    torch.testing.assert_close(change(module, DOWN), down_scale * delta(DOWN))
    assert not change(module, "model.layers.1.self_attn.q_proj").any()


def test_bfloat16_weights_are_rounded_once(tmp_path: Path) -> None:
    module = tiny_qwen3(0).to(torch.bfloat16)
    before = module.get_submodule(Q).weight.detach().float()
    merge_adapter(module, save_adapter(tmp_path / "lora", PAIRS))
    after = module.get_submodule(Q).weight
    assert after.dtype == torch.bfloat16
    assert torch.equal(after, (before + 2 * delta(Q)).bfloat16())


def test_loading_with_an_adapter_changes_the_fingerprint(tmp_path: Path) -> None:
    tiny_qwen3(0).save_pretrained(tmp_path / "tiny")
    adapter = save_adapter(tmp_path / "lora", PAIRS)
    plain, without = load_causal_lm(str(tmp_path / "tiny"))
    tuned, with_it = load_causal_lm(str(tmp_path / "tiny"), adapter=adapter)
    assert without != with_it == weights_fingerprint(tuned)
    tokens = torch.arange(3, 20)[None]
    assert not torch.allclose(plain(tokens).logits, tuned(tokens).logits, atol=0.1)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"peft_type": "IA3"}, "peft_type is not LORA"),
        ({"use_dora": True}, "DoRA"),
        ({"fan_in_fan_out": True}, "transposed"),
        ({"bias": "all"}, "biases"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa_niter_4"),
        ({"lora_alpha": None}, "lacks a number"),
        ({"alpha_pattern": [1]}, "lacks a number"),
    ],
)
def test_what_is_not_plain_lora_is_refused(tmp_path: Path, config: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match="cannot be merged") as caught:
        merge_adapter(tiny_qwen3(0), save_adapter(tmp_path / "lora", PAIRS, **config))
    assert why in (caught.value.why or "")
    assert caught.value.fix


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({**PAIRS, f"base_model.model.{Q}.lora_magnitude_vector": torch.ones(64)}, "lora_magnitude_vector"),
        ({**PAIRS, "base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(4, 512)}, "lora_embedding_A"),
        (lora_pairs((Q, 64, 64), ("model.layers.9.mlp.up_proj", 64, 128)), "no linear layer model.layers.9"),
        (lora_pairs((Q, 64, 64), ("model.norm", 64, 64)), "no linear layer model.norm"),
        (lora_pairs((Q, 64, 64), (DOWN, 64, 64)), "is (64, 128) here and (64, 64) in it"),
        ({k: v for k, v in PAIRS.items() if k.endswith("lora_A.weight")}, "do not belong together"),
        ({}, "is empty"),
    ],
)
def test_a_refused_adapter_changes_nothing(tmp_path: Path, tensors: dict[str, torch.Tensor], why: str) -> None:
    module = tiny_qwen3(0)
    with pytest.raises(ModelError, match="cannot be merged") as caught:
        merge_adapter(module, save_adapter(tmp_path / "lora", tensors))
    assert why in (caught.value.why or "")
    assert weights_fingerprint(module) == weights_fingerprint(tiny_qwen3(0))


def test_weights_tied_to_the_embedding_are_refused(tmp_path: Path) -> None:
    module = tiny_qwen3(0)
    module.lm_head.weight = module.model.embed_tokens.weight
    with pytest.raises(ModelError) as caught:
        merge_adapter(module, save_adapter(tmp_path / "lora", lora_pairs(("lm_head", 64, 512))))
    assert "input embedding" in (caught.value.why or "")


def test_pickled_damaged_and_missing_adapters_are_one_clear_error(tmp_path: Path) -> None:
    folder = Path(save_adapter(tmp_path / "lora", PAIRS))
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(b"not safetensors")
    with pytest.raises(ModelError, match="cannot be merged"):
        merge_adapter(tiny_qwen3(0), str(folder))
    weights.unlink()
    torch.save(PAIRS, folder / "adapter_model.bin")
    with pytest.raises(ModelError) as caught:
        merge_adapter(tiny_qwen3(0), str(folder))
    assert "pickle" in (caught.value.why or "")
    with pytest.raises(ModelError) as caught:
        merge_adapter(tiny_qwen3(0), str(tmp_path / "nowhere"))
    assert "adapter_config.json" in (caught.value.why or "")
    (folder / "adapter_config.json").write_text("{")
    with pytest.raises(ModelError) as caught:
        merge_adapter(tiny_qwen3(0), str(folder))
    assert "not JSON" in (caught.value.why or "")
