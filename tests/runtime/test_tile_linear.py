"""Tile products against torch in float32: any shape, any bias, and no row that depends on its neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashnest.runtime.tile_linear import ROWS_AT_ONCE, TileLinear, can_tile

needs_tiles = pytest.mark.skipif(
    not can_tile(torch.nn.Linear(2, 2, dtype=torch.bfloat16)), reason="this CPU is served by oneDNN"
)


def linear(inputs: int, outputs: int, *, bias: bool = False) -> torch.nn.Linear:
    layer = torch.nn.Linear(inputs, outputs, bias=bias, dtype=torch.bfloat16)
    layer.weight.data.normal_(std=inputs**-0.5)
    return layer


@needs_tiles
@settings(max_examples=40, deadline=None)
@given(
    inputs=st.integers(1, 80).map(lambda half: 2 * half),
    outputs=st.lists(st.integers(1, 100), min_size=1, max_size=3),
    biased=st.booleans(),
    rows=st.sampled_from([1, 2, 5, 6, 7, 11, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 130]),
    seed=st.integers(0, 99),
)
@torch.inference_mode()
def test_products_are_torchs(inputs: int, outputs: list[int], biased: bool, rows: int, seed: int) -> None:
    torch.manual_seed(seed)
    layers = [linear(inputs, n, bias=biased and i != 1) for i, n in enumerate(outputs)]
    x = torch.randn(rows, inputs).to(torch.bfloat16)
    expected = torch.cat([layer.float()(x.float()) for layer in layers], dim=1)
    layers = [layer.to(torch.bfloat16) for layer in layers]
    got = TileLinear(*layers)(x)
    np.testing.assert_allclose(got.float().numpy(), expected.numpy(), rtol=2**-7, atol=2e-3)


@needs_tiles
@torch.inference_mode()
def test_a_row_does_not_depend_on_its_neighbours() -> None:
    torch.manual_seed(1)
    product = TileLinear(linear(576, 200))
    x = torch.randn(130, 576).to(torch.bfloat16)
    together = product(x)
    for start, count in ((0, 1), (3, 2), (60, 7), (129, 1), (40, 49)):
        assert torch.equal(product(x[start : start + count].clone()), together[start : start + count])


def test_other_layers_are_left_to_onednn() -> None:
    assert not can_tile(torch.nn.Linear(4, 4))
    assert not can_tile(torch.nn.Linear(3, 4, dtype=torch.bfloat16))
