"""Prompts that arrive together and begin alike are computed once; an owner that goes away leaves nobody waiting."""

from __future__ import annotations

import numpy as np
from engine_setup import emulated_rig, open_tiers, text

from flashnest.record import I32Array
from flashnest.runtime.request import Prompt, SamplingParams

SHARED = text(320, 1)


def prompts(count: int) -> list[Prompt]:
    sampling = SamplingParams(max_tokens=8, ignore_eos=True)
    tails: list[I32Array] = [text(20, 10 + i) for i in range(count)]
    return [Prompt(np.concatenate([SHARED, t]), reference=text(8, 50), sampling=sampling) for t in tails]


def test_a_shared_start_is_computed_once_by_prompts_that_arrive_together() -> None:
    with open_tiers() as tiers, emulated_rig(tiers, max_step_tokens=64) as rig:
        requests = rig.serve(prompts(4))
        assert [r.reused_tokens for r in requests] == [0, 320, 320, 320]
        assert sum(e.prefill_tokens for e in rig.events) == 320 + 4 * 20
        assert all(r.output.tolist() == text(8, 50).tolist() for r in requests)


def test_who_waits_goes_on_alone_when_the_owner_is_cancelled() -> None:
    with open_tiers() as tiers, emulated_rig(tiers, max_step_tokens=64) as rig:
        first, second = (rig.submit(p) for p in prompts(2))
        rig.step()
        rig.step()
        rig.engine.cancel(first)
        rig.finish()
        assert second.output.tolist() == text(8, 50).tolist()
        assert 0 < second.reused_tokens < 320
