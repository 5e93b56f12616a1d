"""The target distribution of a request, and its numbers by seed and position."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sampling_reference import position_uniforms

from flashnest.runtime import sampler
from flashnest.runtime.sampler import target_probs


def test_temperature_sharpens_and_flattens() -> None:
    logits = torch.tensor([[0.0, np.log(2.0), np.log(4.0)]], dtype=torch.float32)
    np.testing.assert_allclose(target_probs(logits, 1.0, 1.0)[0], np.array([1, 2, 4]) / 7, rtol=1e-6)
    np.testing.assert_allclose(target_probs(logits, 0.5, 1.0)[0], np.array([1, 4, 16]) / 21, rtol=1e-6)


def test_a_very_low_temperature_is_the_arg_max() -> None:
    probs = target_probs(torch.tensor([[1.0, 3.0, 2.0]]), 1e-6, 1.0)
    np.testing.assert_array_equal(probs[0], [0.0, 1.0, 0.0])


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.1, [3]), (0.39, [3]), (0.41, [3, 2]), (0.75, [3, 2, 1]), (1.0, [0, 1, 2, 3])]
)
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p: float, kept: list[int]) -> None:
    shares = np.array([0.1, 0.2, 0.3, 0.4])
    probs = target_probs(torch.tensor(np.log(shares), dtype=torch.float32)[None], 1.0, top_p)[0]
    expected = np.where(np.isin(np.arange(4), kept), shares, 0.0)
    np.testing.assert_allclose(probs, expected / expected.sum(), rtol=1e-6)


def test_top_p_over_a_flat_distribution_needs_the_full_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the first partial sort does not reach top_p the answer is the same as with a sort of everything."""
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(0))
    whole = target_probs(logits, 1.0, 0.9)
    monkeypatch.setattr(sampler, "NUCLEUS_HEAD", 8)
    np.testing.assert_allclose(target_probs(logits, 1.0, 0.9), whole)
    assert ((whole > 0).sum(1) > 8).all()


@pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (1.0, 1.1)])
def test_values_that_make_no_distribution_are_refused(temperature: float, top_p: float) -> None:
    with pytest.raises(ValueError, match="temperature must be above 0"):
        target_probs(torch.zeros(1, 4), temperature, top_p)


def test_uniforms_belong_to_seed_and_position() -> None:
    """However the positions are cut into calls, a position's number stays the same."""
    whole = position_uniforms(42, 0, 10)
    np.testing.assert_array_equal(np.concatenate([position_uniforms(42, 0, 3), position_uniforms(42, 3, 7)]), whole)
    assert not np.isin(position_uniforms(43, 0, 10), whole).any()


def test_uniforms_are_uniform_over_positions_and_over_seeds() -> None:
    """Chi-square over 64 bins, 63 degrees of freedom, 99.9 % below 103.4: along one seed, and over many seeds."""
    along = position_uniforms(7, 0, 64_000)
    across = np.concatenate([position_uniforms(seed, 0, 1) for seed in range(6_400)])
    for values in (along, across):
        counts = np.bincount((values * 64).astype(int), minlength=64)
        expected = len(values) / 64
        assert ((counts - expected) ** 2 / expected).sum() < 103.4
        assert values.min() >= 0.0
        assert values.max() < 1.0


@pytest.mark.parametrize("seed", [-1, 0, 2**64 - 1, 2**70])
def test_any_integer_is_a_seed(seed: int) -> None:
    assert len(set(position_uniforms(seed, 0, 100))) == 100
