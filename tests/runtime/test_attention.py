"""Paged attention, kernel and gathered, against SDPA over each sequence's own contiguous K and V."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashnest.runtime import attention, gathered
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


def make_case(
    sequences: list[tuple[int, int]],
    heads: int,
    group: int,
    dtype: torch.dtype,
    seed: int,
    *,
    pool_dtype: torch.dtype | None = None,
    width: int = WIDTH,
) -> Case:
    """Build sequences of (history tokens, new tokens); blocks are scattered, and unused slots hold large numbers."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-(history + new) // 32) for history, new in sequences]
    ids = rng.permutation(sum(counts) + 3).astype(np.int32)
    pool = KvBlocks.allocate(1, len(ids), heads, width, pool_dtype or dtype, torch.device("cpu"))
    pool.keys.fill_(50.0)
    pool.values.fill_(50.0)
    tables = np.full((len(sequences), max(counts)), -1, np.int32)
    parts: list[list[torch.Tensor]] = [[], [], []]
    for row, (history, new) in enumerate(sequences):
        tables[row, : counts[row]] = ids[sum(counts[:row]) :][: counts[row]]
        k, v = (torch.randn(history + new, heads, width, generator=generator).to(pool.keys.dtype) for _ in range(2))
        q = torch.randn(new, heads * group, width, generator=generator).to(dtype)
        for part, states in zip(parts, (q, k.to(dtype), v.to(dtype)), strict=True):
            part.append(states)
    queries, keys, values = parts
    expected = torch.cat([reference(q, k, v, group) for q, k, v in zip(queries, keys, values, strict=True)])
    old = [history for history, _ in sequences]
    if any(old):  # stored as a prefill stores it
        states = [torch.cat([whole[:n] for whole, n in zip(part, old, strict=True)]) for part in (keys, values)]
        nothing = torch.zeros(sum(old), heads * group, width, dtype=dtype)
        PagedCall.plan(make_batch([(0, n) for n in old], tables), pool).attend(0, nothing, *states, SCALE)
    fresh = [torch.cat([whole[n:] for whole, n in zip(part, old, strict=True)]) for part in (keys, values)]
    return Case(make_batch(sequences, tables), pool, (torch.cat(queries), *fresh), expected)


def make_batch(sequences: list[tuple[int, int]], tables: np.ndarray) -> ForwardBatch:
    """Leave out sequences without new tokens, as a step does."""
    rows = [row for row, (_, new) in enumerate(sequences) if new]
    pairs = [sequences[row] for row in rows]
    positions = np.concatenate([np.arange(history, history + new) for history, new in pairs])
    q_starts = np.concatenate([[0], np.cumsum([new for _, new in pairs])]).astype(np.int32)
    contexts = np.array([history + new for history, new in pairs], np.int32)
    every, none = np.arange(len(positions)), np.zeros(0, np.int64)
    return ForwardBatch(positions, positions, q_starts, contexts, tables[rows], every, np.arange(len(rows)), none)


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: int) -> torch.Tensor:
    """Return causal attention of the last len(q) positions in float64, as float32: (q, heads * group, width)."""
    k, v = (states.double().repeat_interleave(group, dim=1).transpose(0, 1) for states in (k, v))
    seen = torch.arange(k.shape[1]) <= torch.arange(k.shape[1] - len(q), k.shape[1])[:, None]
    scores = (q.double().transpose(0, 1) @ k.transpose(1, 2) * SCALE).masked_fill(~seen, -torch.inf)
    return (scores.softmax(dim=-1) @ v).transpose(0, 1).float()


def attend(case: Case) -> torch.Tensor:
    return PagedCall.plan(case.batch, case.pool).attend(0, *case.fresh, SCALE)


def without_kernel(patch: pytest.MonkeyPatch) -> None:
    """Let pools be as they are on other devices."""
    patch.setattr(attention, "_WORDS", {})


SEQUENCES = st.lists(
    st.tuples(st.sampled_from([0, 1, 30, 31, 32, 33, 63, 64, 100]), st.sampled_from([1, 2, 5, 31, 32, 33, 40, 70])),
    min_size=1,
    max_size=5,
)


TOLERANCES = {torch.float32: (1e-5, 2e-6), torch.bfloat16: (2e-2, 1e-2), torch.float16: (2e-3, 1e-3)}
"""Of queries and results in this dtype, K and V in it too."""


@settings(deadline=None, max_examples=40)
@given(SEQUENCES, st.sampled_from([1, 3]), st.sampled_from([1, 3, 4]), st.integers(0, 99), st.sampled_from([16, 48]))
def test_attention_agrees_with_float64(
    sequences: list[tuple[int, int]], heads: int, group: int, seed: int, width: int
) -> None:
    """Decoding rows, drafts and long prompt slices in one batch."""
    case = make_case(sequences, heads, group, torch.float32, seed, width=width)
    torch.testing.assert_close(attend(case), case.expected, rtol=1e-5, atol=2e-6)


@settings(deadline=None, max_examples=25)
@given(SEQUENCES, st.sampled_from([1, 3]), st.sampled_from([1, 4]), st.integers(0, 99), st.sampled_from([0, 1000]))
def test_gathered_attention_agrees_with_float64(
    sequences: list[tuple[int, int]], heads: int, group: int, seed: int, together: int
) -> None:
    """As on other devices; ragged decode rows are padded together, or go one by one."""
    with pytest.MonkeyPatch.context() as patch:
        without_kernel(patch)
        patch.setattr(gathered, "TOGETHER_TOKENS", together)
        case = make_case(sequences, heads, group, torch.float16, seed)
        assert case.pool.flat is None
        torch.testing.assert_close(attend(case).float(), case.expected, rtol=1e-2, atol=5e-3)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_blocks_of_every_dtype_are_read_as_they_are(dtype: torch.dtype) -> None:
    """Contexts from one token to 2048, and ragged new tokens, one to a few pieces."""
    case = make_case([(0, 3), (33, 5), (255, 1), (256, 1), (100, 16), (700, 9), (2047, 1), (9, 40)], 2, 3, dtype, 0)
    assert case.pool.flat is not None
    rtol, atol = TOLERANCES[dtype]
    torch.testing.assert_close(attend(case).float(), case.expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_pool_may_be_narrower_than_the_model(dtype: torch.dtype) -> None:
    case = make_case([(33, 5), (100, 1), (0, 40)], 2, 2, torch.float32, 1, pool_dtype=dtype)
    out = attend(case)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, case.expected, rtol=1e-5, atol=2e-6)


def test_bfloat16_is_computed_in_float32_where_the_cpu_has_no_dot_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "HAS_BFLOAT16_DOT", False)
    case = make_case([(33, 5), (100, 1), (0, 40)], 2, 2, torch.bfloat16, 1)
    rtol, atol = TOLERANCES[torch.bfloat16]
    torch.testing.assert_close(attend(case).float(), case.expected, rtol=rtol, atol=atol)


def test_float16_blocks_hold_every_float16() -> None:
    """One slot is seen, so its V comes out as it went in: subnormals and both signs; what is too large is cut."""
    values = torch.tensor([0.0, -1.0, 65504.0, 6e-8, -6e-8, 6.1e-5, 1e6, -1e6, *range(8)])
    case = make_case([(0, 1)], 1, 1, torch.float32, 0, pool_dtype=torch.float16)
    q, k, _ = case.fresh
    out = PagedCall.plan(case.batch, case.pool).attend(0, q, k, values.view(1, 1, WIDTH), SCALE)
    torch.testing.assert_close(out.flatten(), values.clamp(-65504, 65504).half().float(), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strided_views_of_one_buffer_are_taken(dtype: torch.dtype) -> None:
    """A fused QKV layer hands out slices of one buffer."""
    case = make_case([(33, 5), (100, 1), (0, 40)], 2, 3, dtype, 1)
    views = torch.cat(case.fresh, dim=1).split([6, 2, 2], dim=1)
    assert torch.equal(PagedCall.plan(case.batch, case.pool).attend(0, *views, SCALE), attend(case))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_does_not_depend_on_its_batch(dtype: torch.dtype) -> None:
    """Bit for bit: alone, among others, and one token at a time."""
    case = make_case([(700, 7), (900, 1), (5, 22)], 2, 3, dtype, 4)
    together = attend(case)
    one_by_one = []
    for row, (history, new) in enumerate([(700, 7), (900, 1), (5, 22)]):
        for step in range(new):
            batch = make_batch([(history + step, 1)], case.batch.block_tables[row : row + 1])
            token = case.batch.q_starts[row] + step
            fresh = [states[token : token + 1] for states in case.fresh]
            one_by_one.append(PagedCall.plan(batch, case.pool).attend(0, *fresh, SCALE))
    assert torch.equal(together, torch.cat(one_by_one))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_tasks_are_dealt_out_once_each(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention.numba, "get_num_threads", lambda: threads)
    case = make_case([(64, 1), (700, 2), (0, 90)], 3, 1, torch.float32, 1)
    plan = PagedCall.plan(case.batch, case.pool)
    assert len(plan.shares) == threads + 1
    assert plan.shares[0] == 0
    assert plan.shares[-1] == 3 * len(plan.pieces)
    assert (np.diff(plan.shares) >= 0).all()
    assert plan.pieces[:, 2].sum() == len(case.batch.token_ids)
    work = np.repeat(plan.pieces[:, 2] * -(-(plan.pieces[:, 3] + plan.pieces[:, 2] - 1) // 32), 3)
    parts = [work[lo:hi].sum() for lo, hi in zip(plan.shares, plan.shares[1:], strict=False)]
    assert max(parts) - min(parts) <= 2 * work.max()


def test_one_thread_and_several_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case([(64, 1), (31, 2), (0, 90), (95, 32)], 3, 3, torch.float32, 1)
    results = []
    for limit in (0, 10**9):
        monkeypatch.setattr(attention, "ALONE_WORK", limit)
        results.append(attend(case))
    assert torch.equal(*results)


def test_kernel_and_gather_agree_on_the_same_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = [(64, 1), (31, 2), (0, 9), (95, 32)]
    by_kernel = attend(make_case(sequences, 3, 3, torch.float32, 1))
    without_kernel(monkeypatch)
    torch.testing.assert_close(attend(make_case(sequences, 3, 3, torch.float32, 1)), by_kernel, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("width", [16, 20])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_new_tokens_are_written_to_their_slots_only(dtype: torch.dtype, width: int) -> None:
    """20 is no head dim for the kernel."""
    case = make_case([(30, 4)], 2, 1, dtype, 2, width=width)
    assert (case.pool.flat is None) == (width == 20)
    before = {
        (block, offset): case.pool.token(0, block, offset)
        for block in range(case.pool.keys.shape[1])
        for offset in range(32)
    }
    attend(case)
    first, second = (int(block) for block in case.batch.block_tables[0, :2])
    for token, place in enumerate([(first, 30), (first, 31), (second, 0), (second, 1)]):
        before[place] = (case.fresh[1][token], case.fresh[2][token])
    for (block, offset), expected in before.items():
        for now, then in zip(case.pool.token(0, block, offset), expected, strict=True):
            assert torch.equal(now, then)


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
