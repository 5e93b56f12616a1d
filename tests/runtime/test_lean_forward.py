"""The written-out forward against the Hugging Face module it was made from, family by family."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from flashnest.runtime import lean_kernels
from flashnest.runtime.attention import KvBlocks, PagedCall
from flashnest.runtime.forward import ForwardBatch
from flashnest.runtime.int8_linear import quantise_linears
from flashnest.runtime.lean_forward import LeanForward, serves
from flashnest.runtime.model import TorchModel
from flashnest.runtime.packed_linear import has_bfloat16
from flashnest.runtime.tile_linear import can_tile

SHAPE = {
    "vocab_size": 300,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES: dict[str, tuple[type, type, dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "llama-biases": (LlamaForCausalLM, LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "llama-tied": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True, "rms_norm_eps": 1e-2}),
    "llama3-rope": (LlamaForCausalLM, LlamaConfig, {"rope_parameters": LLAMA3_ROPE}),
    "yarn-rope": (
        LlamaForCausalLM,
        LlamaConfig,
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            }
        },
    ),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 32}),
}


def made(name: str) -> Any:
    """Return a random module of a case, its norms and biases random too: fresh ones are all ones and zeros."""
    of, config, more = CASES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        module = of(config(**SHAPE | more)).eval()
        for parameter_name, parameter in module.named_parameters():
            if "norm" in parameter_name or "bias" in parameter_name:
                parameter.data.uniform_(0.5, 1.5)
    return module


def one_sequence(tokens: list[int], score_rows: list[int] | None = None) -> ForwardBatch:
    """Return a batch of one sequence in block 0; every token is scored where nothing else is said."""
    count = len(tokens)
    return ForwardBatch(
        token_ids=np.array(tokens, np.int64),
        positions=np.arange(count),
        q_starts=np.array([0, count], np.int32),
        context_lens=np.array([count], np.int32),
        block_tables=np.zeros((1, 1), np.int32),
        score_rows=np.arange(count) if score_rows is None else np.array(score_rows),
        request_ids=np.zeros(1, np.int64),
        logit_rows=np.zeros(0, np.int64),
    )


def lean_logits(module: Any, tokens: list[int], cuts: list[int], dtype: torch.dtype) -> np.ndarray:
    """Return all tokens' logits of the lean forward, the sequence given in pieces that end at `cuts`."""
    config = module.config
    width = module.model.layers[0].self_attn.head_dim
    pool = KvBlocks.allocate(config.num_hidden_layers, 4, config.num_key_value_heads, width, dtype, torch.device("cpu"))
    lean = LeanForward(module)
    logits = []
    for lo, hi in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        batch = ForwardBatch(
            token_ids=np.array(tokens[lo:hi], np.int64),
            positions=np.arange(lo, hi),
            q_starts=np.array([0, hi - lo], np.int32),
            context_lens=np.array([hi], np.int32),
            block_tables=np.array([[2, 0, 3, 1]], np.int32),
            score_rows=np.arange(hi - lo),
            request_ids=np.zeros(1, np.int64),
            logit_rows=np.arange(hi - lo),
        )
        logits.append(
            lean.logits(
                torch.from_numpy(batch.token_ids),
                torch.from_numpy(batch.positions),
                torch.from_numpy(batch.score_rows),
                PagedCall.plan(batch, pool),
            )
        )
    return torch.cat(logits).float().numpy()


@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_logits_are_the_modules(name: str) -> None:
    module = made(name)
    tokens = np.random.default_rng(3).integers(0, 300, 110).tolist()
    expected = module(torch.tensor([tokens])).logits[0].numpy()
    got = lean_logits(module, tokens, [40, 41, 50, 51], torch.float32)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=2e-4 * np.abs(expected).max())


@torch.inference_mode()
def test_only_scored_rows_are_given_back() -> None:
    module = made("llama")
    tokens = np.random.default_rng(4).integers(0, 300, 20)
    batch = one_sequence(tokens.tolist(), score_rows=[3, 19])
    pool = KvBlocks.allocate(3, 1, 2, 16, torch.float32, torch.device("cpu"))
    rows = (torch.from_numpy(a) for a in (batch.token_ids, batch.positions, batch.score_rows))
    got = LeanForward(module).logits(*rows, PagedCall.plan(batch, pool)).numpy()
    expected = module(torch.from_numpy(tokens)[None]).logits[0].numpy()[[3, 19]]
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize("change", [{"model_type": "granite"}, {"hidden_act": "gelu"}])
def test_another_architecture_is_left_to_its_module(change: dict[str, str]) -> None:
    module = made("llama")
    assert serves(module)
    for key, value in change.items():
        setattr(module.config, key, value)
    assert not serves(module)


def bits(values: np.ndarray) -> np.ndarray:
    """Return float32 values as bfloat16 bits, rounded by torch."""
    return torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()


def widened(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.uint32) << 16).view(np.float32)


@settings(max_examples=30, deadline=None)
@given(rows=st.sampled_from([1, 3, 400]), seed=st.integers(0, 99), as_bits=st.booleans())
def test_kernels_are_what_torch_computes(rows: int, seed: int, as_bits: bool) -> None:
    """At 400 rows the work is shared out between threads; bfloat16 is rounded as torch rounds."""
    rng = np.random.default_rng(seed)
    width = 96
    gate_up = rng.normal(0, 4, (rows, 2 * width)).astype(np.float32)
    given_rows = bits(gate_up) if as_bits else gate_up
    exact = widened(given_rows) if as_bits else gate_up
    out = np.empty((rows, width), given_rows.dtype)
    lean_kernels.swiglu(given_rows, out)
    halves = torch.from_numpy(exact).split(width, dim=1)
    expected = (torch.nn.functional.silu(halves[0]) * halves[1]).numpy()
    check(out, expected, as_bits)

    hidden = rng.normal(0, 1, (rows, width)).astype(np.float32)
    fresh = given_rows[:, :width].copy()
    weight = rng.uniform(0.5, 2, width).astype(np.float32)
    total = hidden + (widened(fresh) if as_bits else fresh)
    lean_kernels.add_norm(hidden, fresh, weight, np.float32(1e-5), out)
    np.testing.assert_allclose(hidden, total, rtol=1e-6)
    normed = torch.nn.functional.rms_norm(torch.from_numpy(total), (width,), torch.from_numpy(weight), 1e-5)
    check(out, normed.numpy(), as_bits)


@settings(max_examples=30, deadline=None)
@given(
    rows=st.sampled_from([1, 5]),
    vocab=st.sampled_from([1, 300, 512, 1300]),
    seed=st.integers(0, 99),
    as_bits=st.booleans(),
)
def test_the_arg_max_is_the_first_of_equals(rows: int, vocab: int, seed: int, as_bits: bool) -> None:
    logits = np.random.default_rng(seed).integers(-9, 9, (rows, vocab)).astype(np.float32)
    got = lean_kernels.best_of_rows(bits(logits) if as_bits else logits)
    np.testing.assert_array_equal(got, logits.argmax(axis=1))


def check(got: np.ndarray, expected: np.ndarray, as_bits: bool) -> None:
    if as_bits:  # one unit in the last place: the sums before the rounding differ in order
        np.testing.assert_allclose(widened(got), expected, rtol=2**-7, atol=1e-30)
        assert (got == bits(expected)).mean() > 0.99
    else:
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["llama-tied", "qwen3"])
@torch.inference_mode()
def test_packed_weights_can_be_freed(name: str) -> None:
    module = made(name)
    tokens = list(range(20))
    kept = TorchModel(made(name), 1, name)
    freed = TorchModel(module, 1, name, keep_weights=False)
    assert sum(p.numel() for n, p in module.named_parameters() if "proj" in n or "lm_head" in n) == 0
    answers = []
    for served in (kept, freed):
        served.allocate_kv(1)
        answers.append(served.forward(one_sequence(tokens)).best)
        served.close()
    np.testing.assert_array_equal(*answers)


@pytest.mark.skipif(not has_bfloat16(), reason="bfloat16 is left to the module on this CPU")
@torch.inference_mode()
def test_bfloat16_is_as_near_to_float32_as_the_modules_own() -> None:
    tokens = np.random.default_rng(5).integers(0, 300, 100).tolist()
    exact = made("llama")(torch.tensor([tokens])).logits[0].numpy()
    module = made("llama").to(torch.bfloat16)
    rounded = module(torch.tensor([tokens])).logits[0].float().numpy()
    lean = lean_logits(module, tokens, [60], torch.bfloat16)
    assert np.abs(lean - exact).mean() <= 1.1 * np.abs(rounded - exact).mean()


@torch.inference_mode()
def test_int8_layers_are_served_as_they_are() -> None:
    module = made("llama")
    tokens = np.random.default_rng(6).integers(0, 300, 60).tolist()
    quantise_linears(module)
    expected = module(torch.tensor([tokens])).logits[0].numpy()
    got = lean_logits(module, tokens, [30], torch.float32)
    assert np.abs(got - expected).mean() < 0.02 * np.abs(expected).mean()  # a rounding to int8 tips here and there


@pytest.mark.skipif(
    not can_tile(torch.nn.Linear(2, 2, dtype=torch.bfloat16)),
    reason="oneDNN's kernels differ from row count to another",
)
@torch.inference_mode()
def test_bfloat16_logits_do_not_depend_on_how_the_work_is_cut() -> None:
    """Bit for bit: so drafts change nothing of what is said, in bfloat16 either."""
    module = made("llama").to(torch.bfloat16)
    tokens = np.random.default_rng(8).integers(0, 300, 110).tolist()
    whole = lean_logits(module, tokens, [], torch.bfloat16)
    for cuts in ([1, 2, 3, 50], [70, 75, 76], list(range(90, 110))):
        np.testing.assert_array_equal(lean_logits(module, tokens, cuts, torch.bfloat16), whole)


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_kernels_give_a_row_the_same_bits_alone_and_among_many(dtype: type) -> None:
    """Few rows run on one thread, many on all, by code compiled apart."""
    rng = np.random.default_rng(9)
    rows, width, heads = 400, 96, 3
    numbers = rng.normal(0, 2, (rows, 2 * width)).astype(np.float32)
    wide = bits(numbers) if dtype is np.uint16 else numbers
    fresh = wide[:, :width].copy()
    hidden = rng.normal(0, 1, (rows, width)).astype(np.float32)
    weight, epsilon = rng.uniform(0.5, 2, width).astype(np.float32), np.float32(1e-5)
    angles = rng.uniform(0, 6, (rows, width // heads // 2)).astype(np.float32)
    turns = np.cos(angles), np.sin(angles)
    norms = rng.uniform(0.5, 2, (heads, width // heads)).astype(np.float32)

    def computed(part: slice) -> list[np.ndarray]:
        size = len(fresh[part]), width
        active, normed, residual, turned = np.empty(size, dtype), np.empty(size, dtype), *copies(part)
        lean_kernels.swiglu(wide[part], active)
        lean_kernels.add_norm(residual, fresh[part], weight, epsilon, normed)
        lean_kernels.rotate(turned, turns[0][part], turns[1][part], norms, heads, epsilon)
        return [active, normed, residual, turned]

    def copies(part: slice) -> tuple[np.ndarray, np.ndarray]:
        return hidden[part].copy(), fresh[part].copy()

    together = computed(slice(None))
    for row in (0, 7, 399):
        for alone, among in zip(computed(slice(row, row + 1)), together, strict=True):
            np.testing.assert_array_equal(alone[0], among[row])
