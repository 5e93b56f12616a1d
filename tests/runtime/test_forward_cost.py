"""The cost of a forward is learnt by its shape, and unlearnt when the machine changes."""

from __future__ import annotations

import numpy as np
import pytest

from flashnest.runtime.forward import ForwardBatch
from flashnest.runtime.forward_cost import KNOTS, ForwardCost, ForwardShape, Prices


def _true_s(shape: ForwardShape) -> float:
    """A machine: 20 ms for up to 16 tokens, then 0.8 ms each; 0.1 ms a scored row; 1 us an attended token."""
    return 0.02 + 8e-4 * max(0, shape.tokens - 16) + 1e-4 * shape.scored + 1e-6 * shape.attended_tokens


def _decode(rows: int, drafted: int = 0, context: int = 600) -> ForwardShape:
    tokens = rows * (1 + drafted)
    return ForwardShape(tokens, tokens, rows * context, tokens * context)


SHAPES = [
    *(_decode(rows, context=context) for rows in (1, 2, 4, 8, 16, 32, 64, 128) for context in (64, 600)),
    *(_decode(rows, drafted) for rows in (1, 8, 32) for drafted in (2, 8)),
    *(ForwardShape(tokens, 1, tokens, tokens**2 // 2) for tokens in (32, 128, 512)),
]


def _profiled() -> ForwardCost:
    return ForwardCost([(shape, _true_s(shape)) for shape in SHAPES])


def test_a_profile_is_believed_where_it_measured_and_between() -> None:
    cost = _profiled()
    for shape in (*SHAPES, _decode(24, 4), _decode(5), _decode(100, context=300)):
        assert cost.prices.seconds(shape) == pytest.approx(_true_s(shape), rel=0.15)


def test_a_slower_machine_scales_everything_within_a_few_forwards() -> None:
    cost = _profiled()
    for _ in range(30):
        cost.record(_decode(8), 2 * _true_s(_decode(8)))
    for shape in (_decode(8), _decode(8, 8), _decode(64)):
        assert cost.prices.seconds(shape) == pytest.approx(2 * _true_s(shape), rel=0.2)


def test_one_pause_moves_little() -> None:
    cost = _profiled()
    before = cost.prices.seconds(_decode(8))
    cost.record(_decode(8), 5.0)
    assert cost.prices.seconds(_decode(8)) < 3 * before
    for _ in range(20):
        cost.record(_decode(8), _true_s(_decode(8)))
    assert cost.prices.seconds(_decode(8)) == pytest.approx(before, rel=0.1)


def test_without_a_profile_it_is_learnt_from_forwards() -> None:
    cost = ForwardCost()
    rng = np.random.default_rng(3)
    for _ in range(400):
        shape = _decode(int(rng.choice([1, 4, 8, 16, 32])), int(rng.integers(0, 9)), int(rng.integers(100, 900)))
        cost.record(shape, _true_s(shape) * float(rng.normal(1.0, 0.05)))
    for rows, drafted in ((1, 0), (1, 8), (8, 4), (32, 0), (32, 8)):
        shape = _decode(rows, drafted)
        assert cost.prices.seconds(shape) == pytest.approx(_true_s(shape), rel=0.12)


def test_a_mistake_fades() -> None:
    """Large shapes were once measured on a busy machine and never again: the profile's word returns."""
    cost = _profiled()
    for _ in range(10):
        cost.record(_decode(64, 8), 3 * _true_s(_decode(64, 8)))
    for _ in range(4000):
        cost.record(_decode(1), _true_s(_decode(1)))
    assert cost.prices.seconds(_decode(64, 8)) == pytest.approx(_true_s(_decode(64, 8)), rel=0.15)


def test_prices_never_fall_with_more_tokens() -> None:
    cost = ForwardCost([(_decode(1), 0.03), (_decode(8), 0.02), (_decode(64), 0.01)])
    assert (np.diff(cost.prices.curve) >= 0).all()
    assert min(cost.prices.scored_s, cost.prices.context_s, cost.prices.attended_s) >= 0


def test_a_clock_that_stands_still_teaches_nothing() -> None:
    cost = ForwardCost()
    cost.record(_decode(1), 0.0)
    cost.record(_decode(1), 0.02)
    assert cost.prices.seconds(_decode(1)) == pytest.approx(0.02, rel=0.01)


def test_the_curve_is_straight_between_knots_and_past_the_last() -> None:
    prices = Prices(2.0 * KNOTS + 1, 0.0, 0.0, 0.0)
    for tokens in (1, 5, 100, 2048, 4000):
        assert prices.seconds(ForwardShape(tokens, 0, 0, 0)) == pytest.approx(2.0 * tokens + 1)


def test_a_batch_has_the_shape_of_its_pieces() -> None:
    """One sequence decodes its 11th token, one prefills tokens 4 to 8 of which the last is scored."""
    batch = ForwardBatch(
        token_ids=np.zeros(6, np.int64),
        positions=np.array([10, 4, 5, 6, 7, 8], np.int64),
        q_starts=np.array([0, 1, 6], np.int32),
        context_lens=np.array([11, 9], np.int32),
        block_tables=np.zeros((2, 1), np.int32),
        score_rows=np.array([0, 5], np.int64),
        request_ids=np.array([1, 2], np.int64),
        logit_rows=np.zeros(0, np.int64),
    )
    pieces = ForwardShape.of_pieces(np.array([1, 5]), np.array([11, 9]), 2)
    assert ForwardShape.of(batch) == pieces == ForwardShape(6, 2, 20, 11 + 5 + 6 + 7 + 8 + 9)
