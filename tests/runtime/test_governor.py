"""The governor drafts where expected cost and acceptance say it pays, and never stops looking."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashnest.record import F64Array, I32Array
from flashnest.runtime.drafter import Drafts, Source
from flashnest.runtime.forward_cost import ForwardCost, ForwardShape
from flashnest.runtime.governor import LEAST_GAIN, Governor, NoDraft
from flashnest.runtime.probing import PROBE_EVERY

ROWS, WIDTH, CONTEXT = 4, 8, 100


def _drafts(source: Source = Source.DRAM, matched: int = 16, length: int = WIDTH, rows: int = ROWS) -> Drafts:
    drafts = Drafts.allocate(rows, WIDTH)
    drafts.lengths[:] = length
    drafts.sources[:] = source
    drafts.matched[:] = matched
    return drafts


def _shape(tokens: int) -> ForwardShape:
    return ForwardShape(tokens, tokens, ROWS * CONTEXT, tokens * CONTEXT)


def _governor(seconds_by_tokens: dict[int, float]) -> Governor:
    profile = [(_shape(tokens), seconds) for tokens, seconds in seconds_by_tokens.items()] * 5
    return Governor(max_draft_tokens=WIDTH, cost=ForwardCost(profile))


def _flat() -> Governor:
    return _governor(dict.fromkeys((1, 4, 8, 16, 32, 64), 0.02))


def _proportional() -> Governor:
    return _governor({tokens: 0.01 * tokens for tokens in (1, 2, 4, 8, 16, 32, 64, 128)})


def _caps(cap: int = 100) -> I32Array:
    return np.full(ROWS, cap, np.int32)


def _array(value: int, count: int = 1) -> I32Array:
    return np.full(count, value, np.int32)


def _teach(governor: Governor, drafts: int, *, tried: int, agreed: int, source: Source = Source.DRAM) -> None:
    for _ in range(drafts):
        governor.record_drafts(_array(source), _array(16), _array(tried), _array(agreed))


def _choose(governor: Governor, drafts: Drafts | None = None, caps: I32Array | None = None) -> I32Array:
    return governor.choose(drafts or _drafts(), _caps() if caps is None else caps, _shape(ROWS))


def test_flat_cost_drafts_everything() -> None:
    assert (_choose(_flat()) == WIDTH).all()


def test_proportional_cost_and_poor_acceptance_draft_nothing() -> None:
    governor = _proportional()
    _teach(governor, 200, tried=1, agreed=0)
    assert not _choose(governor).any()


def test_middling_cost_drafts_the_head_only() -> None:
    governor = _governor({4: 0.010, 8: 0.012, 16: 0.018, 32: 0.036, 64: 0.072})
    assert 0 < _choose(governor).sum() < ROWS * WIDTH


def test_caps_and_offers_are_never_passed() -> None:
    caps = np.array([0, 1, 3, 100], np.int32)
    assert (_choose(_flat(), _drafts(length=5), caps) == [0, 1, 3, 5]).all()


def test_negative_caps_draft_nothing() -> None:
    assert (_choose(_flat(), caps=_caps(-1)) == 0).all()


def test_a_refused_kind_is_sampled_again_but_seldom() -> None:
    governor = _proportional()
    _teach(governor, 200, tried=1, agreed=0)
    sums = [int(_choose(governor).sum()) for _ in range(PROBE_EVERY * 100)]
    samples = len(sums) - sums.count(0)
    assert max(sums) == 2
    # A sample of 2 tokens costs half a step of 4 here: 0.5 % of the time pays for one in 100 steps.
    assert 5 <= samples <= 9


def test_refused_kinds_take_turns_at_being_sampled() -> None:
    governor = _proportional()
    drafts = _drafts()
    drafts.sources[:2] = Source.OWN
    for source in (Source.DRAM, Source.OWN):
        _teach(governor, 300, tried=1, agreed=0, source=source)
    sampled = set()
    for _ in range(1000):
        for row in np.flatnonzero(lengths := _choose(governor, drafts)):
            sampled.add(int(drafts.sources[row]))
            governor.record_drafts(_array(drafts.sources[row]), _array(16), _array(1), _array(0))
            assert lengths[row] == 2
    assert sampled == {Source.DRAM, Source.OWN}


def test_a_kind_that_became_good_is_drafted_again() -> None:
    governor = _governor({1: 0.010, 4: 0.012, 8: 0.015, 16: 0.02, 32: 0.03, 64: 0.05})
    _teach(governor, 300, tried=1, agreed=0)
    assert not _choose(governor).any()
    for _ in range(2000):
        for _row in np.flatnonzero(lengths := _choose(governor)):
            count = int(lengths[_row])
            _teach(governor, 1, tried=count, agreed=count)
    assert (_choose(governor) > 2).all()


def test_a_records_own_history_outweighs_its_source() -> None:
    governor = _governor({4: 0.010, 5: 0.0125, 6: 0.015, 8: 0.02, 36: 0.09})
    _teach(governor, 100, tried=2, agreed=1)
    drafts = _drafts()
    drafts.tried[:] = 200
    drafts.agreed[:] = [200, 0, 0, 0]
    lengths = _choose(governor, drafts)
    assert (lengths[1:] == 0).all()


def test_a_place_that_fails_is_cut() -> None:
    """Drafts of one kind are right for two tokens and then wrong: no more than two are verified."""
    governor = _governor({4: 0.010, 8: 0.013, 16: 0.019, 64: 0.055})
    _teach(governor, 300, tried=3, agreed=2)
    assert (_choose(governor) == 2).all()


def test_prefill_in_the_same_step_makes_no_draft_look_cheap() -> None:
    """Past the knee a token has its full price, however much the step costs anyway."""
    seconds = {1: 0.020, 4: 0.0201, 16: 0.0204, 64: 0.064, 128: 0.128, 256: 0.256, 512: 0.512}
    governor = _governor(seconds)
    for _ in range(100):
        _teach(governor, 9, tried=1, agreed=0)
        _teach(governor, 1, tried=1, agreed=1)
    alone = governor.choose(_drafts(), _caps(), _shape(ROWS))
    beside = governor.choose(_drafts(), _caps(), ForwardShape(400, ROWS, 800, 400 * CONTEXT), None)
    assert alone.sum() > 0
    assert beside.sum() == 0


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_choice_expects_less_than_no_draft(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 40))
    costs = data.draw(st.lists(st.floats(1e-3, 0.5), min_size=3, max_size=8))
    governor = _governor({4**i: seconds for i, seconds in enumerate(costs)})
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    drafts = _drafts(rows=rows)
    drafts.lengths[:] = rng.integers(0, WIDTH + 1, rows)
    drafts.sources[:] = rng.integers(1, len(Source), rows)
    drafts.matched[:] = rng.integers(1, 40, rows)
    drafts.tried[:] = rng.integers(0, 63, rows)
    drafts.agreed[:] = rng.integers(0, drafts.tried + 1)
    for _ in range(30):
        tried = rng.integers(1, WIDTH, rows).astype(np.int32)
        agreed = rng.integers(0, tried + 1).astype(np.int32)
        governor.record_drafts(drafts.sources.astype(np.int32), drafts.matched, tried, agreed)
    contexts = rng.integers(1, 2000, rows)
    base = ForwardShape(rows, rows, int(contexts.sum()), int(contexts.sum()))
    lengths = governor.choose(drafts, np.full(rows, 100, np.int32), base, contexts)
    assert (lengths <= drafts.lengths).all()
    drafted = int(lengths.sum())
    shape = ForwardShape(
        rows + drafted, rows + drafted, base.context_tokens, base.attended_tokens + int((lengths * contexts).sum())
    )
    committed = rows + _expected_tokens(governor, drafts, lengths)
    assert committed / governor.cost_s(shape) >= min(1.0, LEAST_GAIN) * rows / governor.cost_s(base) * (1 - 1e-9)


def _expected_tokens(governor: Governor, drafts: Drafts, lengths: I32Array) -> float:
    chances: F64Array = governor.chances(drafts, len(lengths))
    return float(sum(chances[row, :count].cumprod().sum() for row, count in enumerate(lengths)))


def test_a_fixed_length_ignores_the_cost() -> None:
    governor = Governor(max_draft_tokens=WIDTH, fixed_tokens=3)
    for tokens in (1, 4, 16, 64):
        governor.record_forward(_shape(tokens), 0.01 * tokens)
    caps = np.array([0, 1, 3, 100], np.int32)
    assert (_choose(governor, caps=caps) == [0, 1, 3, 3]).all()


def test_rows_without_a_draft_are_counted_by_reason() -> None:
    governor = _flat()
    drafts = _drafts()
    drafts.lengths[:2] = 0
    caps = np.array([8, 8, 0, 8], np.int32)
    waiting = np.array([True, False, False, False])
    governor.choose(drafts, caps, _shape(ROWS), waiting=waiting)
    counts = governor.take_no_draft_counts()
    assert (counts[NoDraft.NO_MATCH], counts[NoDraft.CAP], counts[NoDraft.COLD], counts.sum()) == (1, 1, 1, 3)


def test_drafts_that_do_not_pay_are_counted_so() -> None:
    governor = _proportional()
    _teach(governor, 200, tried=1, agreed=0)
    _choose(governor)
    assert governor.take_no_draft_counts()[NoDraft.NOT_WORTH] == ROWS


def test_every_row_counts_as_off_where_drafting_is() -> None:
    governor = Governor(max_draft_tokens=0)
    _choose(governor)
    assert governor.take_no_draft_counts()[NoDraft.OFF] == ROWS


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows_are_no_special_case(rows: int) -> None:
    governor = _flat()
    base = ForwardShape(rows + 5, rows, 100, 500)
    assert len(governor.choose(_drafts(rows=max(1, rows)), np.full(rows, 8, np.int32), base)) == rows
