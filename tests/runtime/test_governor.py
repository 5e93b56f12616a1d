"""The governor drafts where measured cost and acceptance say it pays, and never stops looking."""

import numpy as np
import pytest

from flashnest.runtime.drafter import Drafts, Source
from flashnest.runtime.governor import PROBE_EVERY, Governor, NoDraft

ROWS, WIDTH = 4, 8


def _drafts(source: Source = Source.DRAM, matched: int = 16, length: int = WIDTH) -> Drafts:
    drafts = Drafts.allocate(ROWS, WIDTH)
    drafts.lengths[:] = length
    drafts.sources[:] = source
    drafts.matched[:] = matched
    return drafts


def _governor(seconds_by_tokens: dict[int, float]) -> Governor:
    governor = Governor(max_draft_tokens=WIDTH)
    for tokens, seconds in seconds_by_tokens.items():
        governor.record_forward(tokens, seconds)
    return governor


def _caps(cap: int = 100) -> np.ndarray:
    return np.full(ROWS, cap, np.int32)


def test_flat_cost_drafts_everything() -> None:
    governor = _governor({4: 0.02, 64: 0.02})
    assert (governor.choose(_drafts(), _caps(), ROWS) == WIDTH).all()


def test_proportional_cost_and_poor_acceptance_draft_nothing() -> None:
    governor = _governor({2**i: 0.01 * 2**i for i in range(8)})
    for _ in range(200):
        governor.record_draft(Source.DRAM, 16, tried=1, agreed=0)
    assert not governor.choose(_drafts(), _caps(), ROWS).any()


def test_middling_cost_drafts_the_head_only() -> None:
    governor = _governor({4: 0.010, 8: 0.011, 16: 0.016, 32: 0.03, 64: 0.06})
    lengths = governor.choose(_drafts(), _caps(), ROWS)
    assert 0 < lengths.sum() < ROWS * WIDTH


def test_caps_and_offers_are_never_passed() -> None:
    governor = _governor({4: 0.02, 64: 0.02})
    caps = np.array([0, 1, 3, 100], np.int32)
    assert (governor.choose(_drafts(length=5), caps, ROWS) == [0, 1, 3, 5]).all()


def test_negative_caps_draft_nothing() -> None:
    governor = _governor({4: 0.02, 64: 0.02})
    assert (governor.choose(_drafts(), _caps(-1), ROWS) == 0).all()


def test_a_refused_source_is_probed_again() -> None:
    governor = _governor({2**i: 0.01 * 2**i for i in range(8)})
    for _ in range(200):
        governor.record_draft(Source.DRAM, 16, tried=1, agreed=0)
    sums = [int(governor.choose(_drafts(), _caps(), ROWS).sum()) for _ in range(PROBE_EVERY * 2)]
    assert sums.count(0) == PROBE_EVERY * 2 - 2
    assert max(sums) == 2


def test_a_records_own_history_outweighs_its_source() -> None:
    governor = _governor({4: 0.010, 5: 0.0135, 8: 0.02, 36: 0.2})
    for _ in range(50):
        governor.record_draft(Source.DRAM, 16, tried=2, agreed=1)
    drafts = _drafts()
    drafts.tried[:] = 200
    drafts.agreed[:] = [200, 0, 0, 0]
    lengths = governor.choose(drafts, _caps(), ROWS)
    assert lengths[0] > 0
    assert (lengths[1:] == 0).all()


def test_cost_is_interpolated_and_never_falls() -> None:
    governor = _governor({1: 0.01, 16: 0.03, 64: 0.02})
    cost = governor.cost_s(np.array([1.0, 8.0, 16.0, 64.0, 500.0]))
    assert cost[0] == pytest.approx(0.01)
    assert (np.diff(cost) >= 0).all()


def test_acceptance_follows_what_was_recorded() -> None:
    governor = Governor(max_draft_tokens=WIDTH)
    for _ in range(500):
        governor.record_draft(Source.NVME, 8, tried=4, agreed=3)
    share = governor.acceptance(np.array([Source.NVME, Source.NVME], np.int32), np.array([8, 32], np.int32))
    assert share[0] == pytest.approx(0.75, abs=0.01)
    assert share[1] == pytest.approx(0.8)


def test_a_fixed_length_ignores_the_cost() -> None:
    governor = Governor(max_draft_tokens=WIDTH, fixed_tokens=3)
    for tokens in (1, 4, 16, 64):
        governor.record_forward(tokens, 0.01 * tokens)
    caps = np.array([0, 1, 3, 100], np.int32)
    assert (governor.choose(_drafts(), caps, ROWS) == [0, 1, 3, 3]).all()


def test_rows_without_a_draft_are_counted_by_reason() -> None:
    governor = _governor({4: 0.02, 64: 0.02})
    drafts = _drafts()
    drafts.lengths[:2] = 0
    governor.choose(drafts, np.array([8, 8, 0, 8], np.int32), ROWS)
    counts = governor.no_draft_counts
    assert (counts[NoDraft.NO_MATCH], counts[NoDraft.CAP], counts.sum()) == (2, 1, 3)


def test_drafts_that_do_not_pay_are_counted_so() -> None:
    governor = _governor({2**i: 0.01 * 2**i for i in range(8)})
    for _ in range(200):
        governor.record_draft(Source.DRAM, 16, tried=1, agreed=0)
    governor.choose(_drafts(), _caps(), ROWS)
    assert governor.no_draft_counts[NoDraft.NOT_WORTH] == ROWS


def test_every_row_counts_as_off_where_drafting_is() -> None:
    governor = Governor(max_draft_tokens=0)
    governor.choose(_drafts(), _caps(), ROWS)
    assert governor.no_draft_counts[NoDraft.OFF] == ROWS
