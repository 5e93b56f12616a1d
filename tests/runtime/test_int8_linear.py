"""W8A8 layers compute what the float ones do within 8 bits, row by row, and touch nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flashnest.runtime import int8_linear
from flashnest.runtime.int8_linear import Int8Linear, is_quantised, quantise_linears
from flashnest.runtime.weights import load_causal_lm, tiny_qwen3, weights_fingerprint


def make(inputs: int = 64, outputs: int = 96, *, bias: bool = False) -> nn.Linear:
    torch.manual_seed(outputs)
    return nn.Linear(inputs, outputs, bias=bias)


@pytest.mark.parametrize("shape", [(1, 64), (7, 64), (2, 5, 64), (0, 64)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_are_the_float_layers_within_eight_bits(shape: tuple[int, ...], bias: bool, dtype: torch.dtype) -> None:
    linear, rows = make(bias=bias), torch.randn(shape)
    with torch.inference_mode():
        expected = linear(rows)
        got = Int8Linear.of(linear.to(dtype))(rows.to(dtype))
    assert got.shape == expected.shape
    assert got.dtype == dtype
    error = (got.float() - expected).norm() / expected.norm().clamp_min(1e-9)
    assert error < 0.02


def test_rounding_is_to_the_nearest_by_hand() -> None:
    """Three inputs: no power of two divides them, so nothing is turned."""
    layer = Int8Linear.of(make(3, 2))
    layer.weight, layer.scales = torch.tensor([[127, -64, 0], [0, 1, 0]], dtype=torch.int8), torch.tensor([0.5, 2.0])
    rows = torch.tensor([[127.0, 1.0, 0.0], [0.0, 0.0, 0.0], [-254.0, 127.2, 0.0]])  # scales 1, any, 2: 63.6 becomes 64
    expected = [[(127 * 127 - 64) * 0.5, 2.0], [0.0, 0.0], [(-127 * 127 - 64 * 64) * 2 * 0.5, 64 * 2 * 2.0]]
    torch.testing.assert_close(layer(rows), torch.tensor(expected))


@pytest.mark.parametrize("inputs", [3, 20, 64, 96, 576])
def test_turning_keeps_products_and_spreads_outliers(inputs: int) -> None:
    torch.manual_seed(inputs)
    rows, weight = torch.randn(5, inputs), torch.randn(7, inputs)
    rows[:, 1] *= 300.0
    block = min(64, inputs & -inputs)
    turned = int8_linear._turned(rows, block)
    torch.testing.assert_close(turned @ int8_linear._turned(weight, block).T, rows @ weight.T, rtol=1e-4, atol=1e-2)
    assert turned.abs().max() < 1.5 * rows.abs().max() / block**0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "inputs"), [(1, 3), (3, 20), (4, 576), (200, 96)])
def test_the_kernels_compute_what_torch_does(
    rows: int, inputs: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's operations serve what has no kernels: other dtypes, other devices."""
    torch.manual_seed(rows)
    values, linear = torch.randn(rows, inputs).to(dtype), make(inputs, 24, bias=True).to(dtype)
    quantised, scales = int8_linear._int8(values)
    got = Int8Linear.of(linear)(values)
    monkeypatch.setattr(int8_linear, "_has_kernels", lambda rows: False)
    expected, expected_scales = int8_linear._int8(values)
    torch.testing.assert_close(scales, expected_scales)
    assert (quantised.int() - expected.int()).abs().max() <= 1  # ties, and the order of float sums
    torch.testing.assert_close(got, Int8Linear.of(linear)(values), rtol=0.02, atol=0.02)


def test_an_outlier_channel_does_not_cost_the_others_their_bits() -> None:
    linear, rows = make(), torch.randn(50, 64)
    rows[:, 5] *= 100.0
    with torch.inference_mode():
        exact = linear(rows)
        error = (Int8Linear.of(linear)(rows) - exact).norm() / exact.norm()
    assert error < 0.01


def test_a_row_does_not_depend_on_the_batch() -> None:
    """Bit for bit: sums are whole numbers, scales are the row's own."""
    layer, rows = Int8Linear.of(make()), torch.randn(40, 64) * torch.logspace(-3, 3, 40)[:, None]
    together = layer(rows)
    for i in range(40):
        assert torch.equal(layer(rows[i : i + 1])[0], together[i])


def test_joined_layers_give_their_outputs_side_by_side() -> None:
    q, k, v = make(outputs=96, bias=True), make(outputs=32), make(outputs=16, bias=True)
    rows = torch.randn(5, 64)
    with torch.inference_mode():
        expected = torch.cat([Int8Linear.of(layer)(rows) for layer in (q, k, v)], dim=1)
        assert torch.equal(Int8Linear.of(q, Int8Linear.of(k), v)(rows), expected)


def test_few_rows_are_padded_where_the_device_asks_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA, whose kernel takes no less than 17 rows."""
    layer, rows = Int8Linear.of(make()), torch.randn(3, 64)
    expected, plain = layer(rows), torch._int_mm
    seen = []

    def counted(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        seen.append(len(left))
        return plain(left, right)

    monkeypatch.setattr(torch, "_int_mm", counted)
    monkeypatch.setattr(int8_linear, "least_rows", lambda rows: 32)
    assert torch.equal(layer(rows), expected)
    assert seen == [32]


def test_every_linear_layer_but_the_head_is_replaced() -> None:
    module = tiny_qwen3(0)
    before = weights_fingerprint(module)
    assert not is_quantised(module)
    assert quantise_linears(module) == 2 * 7
    assert is_quantised(module)
    assert type(module.lm_head) is nn.Linear
    assert module.dtype == torch.float32
    assert weights_fingerprint(module) != before
    assert quantise_linears(module) == 0


def test_a_folder_is_loaded_quantised(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_qwen3(0).save_pretrained(folder)
    plain, one = load_causal_lm(str(folder))
    rounded, other = load_causal_lm(str(folder), quant="w8a8")
    assert one != other
    tokens = torch.arange(3, 40)[None]
    with torch.inference_mode():
        expected, got = plain(tokens).logits, rounded(tokens).logits
    assert torch.corrcoef(torch.stack([expected.flatten(), got.flatten()]))[0, 1] > 0.99
