"""Machine code of the sweep's pace: watermarks with hysteresis, passes over a tier, slices. Looks at no record's facts.

As `storage.sweep_pace`.
"""

from __future__ import annotations

import math
from typing import Final, cast

import numpy as np

from flashnest.jit import inline_kernel, kernel
from flashnest.record import I64Array
from flashnest.simulate import program as rule_at
from flashnest.simulate import state as at
from flashnest.simulate.desk import batch_of, brakes_of, limits_of, slots_of, sums_of, tier_of, word_of
from flashnest.storage.sweep_pace import MARGIN, REST_S

_NONE: Final = cast(int, np.int64(0))


@kernel
def need_of(desk: I64Array, rule: int, tier: int, now_s: int) -> int:
    """Return how many records have to leave a tier by a rule with watermarks; 0 while it does not run."""
    records, room = tier_of(desk, tier)[at.COUNT], tier_of(desk, tier)[at.ROOM]
    brakes, when = brakes_of(desk, rule), limits_of(desk, rule)[rule_at.WHEN]
    if not brakes[rule_at.ACTIVE] and (records <= when * room or now_s < brakes[rule_at.RESTS_UNTIL_S]):
        return 0
    need = records - max(0, math.ceil(limits_of(desk, rule)[rule_at.UNTIL] * room) - 1)
    if need <= 0:
        brakes[rule_at.ACTIVE] = 0.0
        return 0
    if not brakes[rule_at.ACTIVE]:
        brakes[rule_at.ACTIVE], brakes[rule_at.LEFT] = 1.0, need
        _begin(desk, rule, need, records)
    return int(need)


@inline_kernel
def _begin(desk: I64Array, rule: int, need: int, records: int) -> None:
    brakes = brakes_of(desk, rule)
    brakes[rule_at.SHARE] = min(1.0, MARGIN * need / max(1, records))
    brakes[rule_at.MOVED_BEFORE], brakes[rule_at.PASS_NEED] = sums_of(desk, rule)[rule_at.MOVED], need
    brakes[rule_at.SEEN] = 0.0


@inline_kernel
def rest(desk: I64Array, rule: int, now_s: int) -> None:
    brakes_of(desk, rule)[rule_at.ACTIVE], brakes_of(desk, rule)[rule_at.RESTS_UNTIL_S] = 0.0, now_s + REST_S


@kernel
def saw(desk: I64Array, rule: int, tier: int, records: int, now_s: int) -> None:
    """Count records that a rule has seen: after as many as the table holds it has had its pass."""
    brakes = brakes_of(desk, rule)
    brakes[rule_at.SEEN] += records
    if brakes[rule_at.SEEN] < tier_of(desk, tier)[at.COUNT]:
        return
    need = need_of(desk, rule, tier, now_s)
    if not need:
        return
    moved = sums_of(desk, rule)[rule_at.MOVED] - brakes[rule_at.MOVED_BEFORE]
    if 100 * moved < brakes[rule_at.PASS_NEED]:
        rest(desk, rule, now_s)
    else:
        _begin(desk, rule, need, tier_of(desk, tier)[at.COUNT])


@inline_kernel
def is_marked(desk: I64Array, rule: int) -> bool:
    """Whether a rule has watermarks and acts."""
    return bool(limits_of(desk, rule)[rule_at.WHEN] >= 0.0 and word_of(desk, rule)[rule_at.TRIAL] < 0)


@inline_kernel
def looks(desk: I64Array, rule: int, tier: int) -> bool:
    """Whether a rule without watermarks, or a trial above its own, looks at every record."""
    when = limits_of(desk, rule)[rule_at.WHEN]
    if when < 0.0:
        return True
    return bool(
        word_of(desk, rule)[rule_at.TRIAL] >= 0 and tier_of(desk, tier)[at.COUNT] > when * tier_of(desk, tier)[at.ROOM]
    )


@kernel
def pass_is_due(desk: I64Array, tier: int, pass_ms: float, now_ms: int) -> bool:
    mine = tier_of(desk, tier)
    if mine[at.COUNT] == 0:
        return False
    mine[at.PASS_MOST] = max(mine[at.PASS_MOST], mine[at.COUNT])
    return bool(mine[at.PASS_SEEN] * pass_ms <= (now_ms - mine[at.PASS_MS]) * mine[at.PASS_MOST])


@kernel
def fill_batch(desk: I64Array, tier: int, most: int) -> int:
    """Gather the next records of a tier from its hand on; returns how many. A hand of 0 afterwards: the end was met."""
    mine, count = tier_of(desk, tier), _NONE
    base, hand = mine[at.BASE], mine[at.SCAN]
    while hand < mine[at.SLOTS] and count < most:
        record = slots_of(desk)[base + hand]
        hand += 1
        if record >= 0:
            batch_of(desk)[count] = record
            count += 1
    mine[at.SCAN] = 0 if hand >= mine[at.SLOTS] else hand
    return count


@kernel
def advance(desk: I64Array, tier: int, records: int, pass_ms: float, now_ms: int) -> None:
    mine = tier_of(desk, tier)
    mine[at.PASS_SEEN] += max(1, records)
    if mine[at.SCAN] == 0:
        mine[at.PASS_MS] = max(mine[at.PASS_MS] + int(pass_ms), now_ms)
        mine[at.PASS_SEEN] = mine[at.PASS_MOST] = 0


@inline_kernel
def of_slice(desk: I64Array, rule: int, records: int, need: int) -> int:
    return int(min(need, math.ceil(brakes_of(desk, rule)[rule_at.SHARE] * records)))
