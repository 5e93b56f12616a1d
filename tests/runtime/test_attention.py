"""Paged attention, kernel and gathered, against SDPA over each sequence's own contiguous K and V."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from hypothesis import given, settings
from hypothesis import strategies as st

from flashnest.runtime import attention
from flashnest.runtime.attention import KvBlocks, PagedCall
from flashnest.runtime.forward import ForwardBatch
from flashnest.runtime.paged_kernel import exp_below_zero

WIDTH = 16
SCALE = WIDTH**-0.5


@dataclass(frozen=True)
class Case:
    """A pool filled with history, a batch over it, and the answer."""

    batch: ForwardBatch
    pool: KvBlocks
    fresh: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    expected: torch.Tensor


def make_case(sequences: list[tuple[int, int]], heads: int, group: int, dtype: torch.dtype, seed: int) -> Case:
    """Build sequences of (history tokens, new tokens); blocks are scattered, and unused slots hold large numbers."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-(history + new) // 32) for history, new in sequences]
    ids = rng.permutation(sum(counts) + 3).astype(np.int32)
    pool = KvBlocks.allocate(1, len(ids), heads, WIDTH, dtype, torch.device("cpu"))
    pool.keys.fill_(50.0)
    pool.values.fill_(50.0)
    tables = np.full((len(sequences), max(counts)), -1, np.int32)
    fresh: list[list[torch.Tensor]] = [[], [], []]
    expected = []
    taken = 0
    for row, (history, new) in enumerate(sequences):
        tables[row, : counts[row]] = ids[taken : taken + counts[row]]
        taken += counts[row]
        k, v = (torch.randn(history + new, heads, WIDTH, generator=generator).to(dtype) for _ in range(2))
        q = torch.randn(new, heads * group, WIDTH, generator=generator).to(dtype)
        for position in range(history):
            block, offset = tables[row, position // 32], position % 32
            pool.keys[0, block, :, offset] = k[position]
            pool.values[0, block, :, offset] = v[position]
        for part, tensor in zip(fresh, (q, k[history:], v[history:]), strict=True):
            part.append(tensor)
        expected.append(reference(q, k, v, group))
    news = np.array([new for _, new in sequences])
    contexts = np.array([history + new for history, new in sequences], np.int32)
    q_starts = np.concatenate([[0], np.cumsum(news)]).astype(np.int32)
    positions = np.concatenate([np.arange(history, history + new) for history, new in sequences])
    batch = ForwardBatch(
        positions, positions, q_starts, contexts, tables, np.arange(len(positions)), np.arange(len(news)), False
    )
    q, k, v = (torch.cat(part) for part in fresh)
    return Case(batch, pool, (q, k, v), torch.cat(expected))


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: int) -> torch.Tensor:
    """Return causal attention of the last len(q) positions in float32: (q, heads * group, width)."""
    k, v = (states.float().repeat_interleave(group, dim=1).transpose(0, 1) for states in (k, v))
    seen = torch.arange(k.shape[1]) <= torch.arange(k.shape[1] - len(q), k.shape[1])[:, None]
    return functional.scaled_dot_product_attention(
        q.float().transpose(0, 1), k, v, attn_mask=seen, scale=SCALE
    ).transpose(0, 1)


def attend(case: Case) -> torch.Tensor:
    q, k, v = case.fresh
    return PagedCall.plan(case.batch, case.pool).attend(0, q, k, v, SCALE)


SEQUENCES = st.lists(
    st.tuples(st.sampled_from([0, 1, 30, 31, 32, 33, 63, 64, 100]), st.sampled_from([1, 2, 5, 31, 32, 33, 40, 70])),
    min_size=1,
    max_size=5,
)


@settings(deadline=None, max_examples=40)
@given(SEQUENCES, st.sampled_from([1, 3]), st.sampled_from([1, 3, 4]), st.integers(0, 99))
def test_attention_agrees_with_sdpa(sequences: list[tuple[int, int]], heads: int, group: int, seed: int) -> None:
    """Kernel rows and long prompt slices in one batch."""
    case = make_case(sequences, heads, group, torch.float32, seed)
    torch.testing.assert_close(attend(case), case.expected, rtol=1e-5, atol=2e-6)


@settings(deadline=None, max_examples=25)
@given(SEQUENCES, st.sampled_from([1, 3]), st.sampled_from([1, 4]), st.integers(0, 99))
def test_gathered_attention_agrees_with_sdpa(
    sequences: list[tuple[int, int]], heads: int, group: int, seed: int
) -> None:
    """float16 has no kernel, so every row is gathered, as on other devices; ragged decode rows are padded together."""
    case = make_case(sequences, heads, group, torch.float16, seed)
    assert len(PagedCall.plan(case.batch, case.pool).kernel_rows) == 0
    torch.testing.assert_close(attend(case).float(), case.expected, rtol=1e-2, atol=5e-3)


def test_bfloat16_blocks_are_read_as_they_are() -> None:
    case = make_case([(0, 3), (33, 5), (100, 1)], 2, 2, torch.bfloat16, 0)
    assert len(PagedCall.plan(case.batch, case.pool).kernel_rows) == 3
    torch.testing.assert_close(attend(case).float(), case.expected, rtol=2e-2, atol=1e-2)


def test_kernel_and_gather_agree_on_the_same_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case([(64, 1), (31, 2), (0, 9), (95, 32)], 3, 3, torch.float32, 1)
    by_kernel = attend(case)
    monkeypatch.setattr(attention, "_KERNEL_BITS", {})
    torch.testing.assert_close(attend(case), by_kernel, rtol=1e-5, atol=2e-6)


def test_new_tokens_are_written_to_their_slots_only() -> None:
    case = make_case([(30, 4)], 2, 1, torch.float32, 2)
    before = case.pool.keys.clone()
    attend(case)
    first, second = case.batch.block_tables[0, :2]
    fresh = case.fresh[1]
    torch.testing.assert_close(case.pool.keys[0, first, :, 30:], fresh[:2].transpose(0, 1))
    torch.testing.assert_close(case.pool.keys[0, second, :, :2], fresh[2:].transpose(0, 1))
    before[0, first, :, 30:] = case.pool.keys[0, first, :, 30:]
    before[0, second, :, :2] = case.pool.keys[0, second, :, :2]
    torch.testing.assert_close(case.pool.keys, before)


def test_large_scores_do_not_overflow() -> None:
    """Scores of +-20 000: the running maximum keeps every exponent at or below 0."""
    case = make_case([(70, 3)], 1, 2, torch.float32, 3)
    q, k, v = case.fresh
    case.pool.keys.mul_(100.0)
    out = PagedCall.plan(case.batch, case.pool).attend(0, q * 100.0, k * 100.0, v, SCALE)
    assert torch.isfinite(out).all()


def test_exp_is_within_two_units_in_the_last_place() -> None:
    xs = np.concatenate([np.linspace(-80, 0, 4001), [-1e-8, -1e4, -3e38]]).astype(np.float32)
    ours = np.array([exp_below_zero(x) for x in xs])  # numba hands a float32 out as a Python float
    exact = np.exp(np.maximum(xs, -87).astype(np.float64))
    assert (np.abs(ours - exact) / exact).max() < 2 * np.finfo(np.float32).eps
