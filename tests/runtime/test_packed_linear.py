"""Packed linear layers compute what plain ones do, and leave no trace."""

import pytest
import torch
from torch import nn

from flashnest.runtime import packed_linear
from flashnest.runtime.packed_linear import pack_linears, unpack_linears


def make(bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96, bias=bias), nn.SiLU(), nn.Linear(96, 32, bias=bias))


@pytest.mark.parametrize("shape", [(1, 64), (1, 1, 64), (7, 64), (1, 33, 64), (2, 5, 64), (300, 64)])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_equals_plain_within_rounding(shape: tuple[int, ...], bias: bool) -> None:
    module = make(bias)
    rows = torch.randn(shape)
    with torch.inference_mode():
        expected = module(rows)
        layers = pack_linears(module)
        assert len(layers) == 2
        got = module(rows)
    assert got.shape == expected.shape
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_unpacking_restores_the_layers_bit_for_bit() -> None:
    module = make()
    rows = torch.randn(9, 64)
    with torch.inference_mode():
        expected = module(rows)
        unpack_linears(pack_linears(module))
        assert torch.equal(module(rows), expected)
    assert all("forward" not in vars(child) for child in module.modules())


def test_bfloat16_is_packed_where_the_cpu_multiplies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = make().to(torch.bfloat16)
    monkeypatch.setattr(packed_linear, "has_bfloat16", lambda: False)
    assert pack_linears(module) == ()
    monkeypatch.setattr(packed_linear, "has_bfloat16", lambda: True)
    rows = torch.randn(9, 64, dtype=torch.bfloat16)
    with torch.inference_mode():
        expected = module(rows)
        assert len(pack_linears(module)) == 2
        torch.testing.assert_close(module(rows), expected, rtol=2e-2, atol=2e-2)


def test_other_dtypes_are_left_alone() -> None:
    assert pack_linears(make().to(torch.float16)) == ()
