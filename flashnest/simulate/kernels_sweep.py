"""Machine code of the sweep: slices of a table, found cold records, the walk over NVMe, after every step of a trace.

As `storage.sweep*`, with its slices and its pace, but without a clock: slices and moves take the time measured there.
"""

from __future__ import annotations

from typing import Final, cast

import numpy as np

from flashnest.jit import inline_kernel, kernel
from flashnest.record import I64Array
from flashnest.simulate import program as rule_at
from flashnest.simulate import state as at
from flashnest.simulate.desk import (
    batch_of,
    brakes_of,
    counts_of,
    found_of,
    line_of,
    rules_in,
    sums_of,
    tier_of,
    word_of,
)
from flashnest.simulate.kernels_marks import (
    advance,
    fill_batch,
    is_marked,
    looks,
    need_of,
    of_slice,
    pass_is_due,
    rest,
    saw,
)
from flashnest.simulate.kernels_rules import choose, kept, matches, most_now, move, note, rested
from flashnest.simulate.kernels_tiers import spare, victim
from flashnest.storage.sweep_cold import PASS_S as WALK_PASS_S
from flashnest.storage.sweep_cold import WALK_RECORDS
from flashnest.storage.sweep_tables import PASS_S, SLICE_RECORDS, VICTIMS

SWEEP_US: Final = 500
"""Time of one sweep (`decode.sweep_budget`); a trace whose steps hold more accesses than a decode step's few hundred
gets as much more for each of them."""
ACCESS_US: Final = 1
SLICE_US: Final = 60
CHANGE_US: Final = 5
"""What a slice takes, and each record that moves to or from NVMe (`storage.sweep_tables`)."""
_NVME: Final = cast(int, np.int64(2))
_NONE: Final = cast(int, np.int64(0))
_ONE: Final = cast(int, np.int64(1))


@inline_kernel
def _is_from(desk: I64Array, rule: int, tier: int) -> bool:
    word = word_of(desk, rule)
    if word[rule_at.ACTION] == rule_at.KEEP or word[rule_at.SOURCE] != tier:
        return False
    return tier != _NVME or word[rule_at.ACTION] != rule_at.PROMOTE  # found records are promoted, the walk does not


@inline_kernel
def _count_trial(desk: I64Array, rule: int, record: int) -> None:
    """Count a record that a trial rule would have moved, once."""
    bit = np.int32(1) << np.int32(word_of(desk, rule)[rule_at.TRIAL])
    if not line_of(desk, record)[at.TRIED] & bit:
        line_of(desk, record)[at.TRIED] |= bit
        sums_of(desk, rule)[rule_at.WOULD_HAVE] += 1


@kernel
def _apply(desk: I64Array, rule: int, tier: int, count: int, most: int, now_s: int) -> int:
    """Let a rule take up to `most` records of the first `count` in `batch`; returns how many left the tier."""
    trial = word_of(desk, rule)[rule_at.TRIAL] >= 0
    most = most if trial else most_now(desk, rule, now_s, most)
    if most <= 0:
        return 0
    batch = batch_of(desk)
    chosen, found = batch[at.BATCH_RECORDS :], _NONE
    for i in range(count):
        record = int(batch[i])
        if (
            line_of(desk, record)[at.TIER] == tier
            and matches(desk, rule, record, now_s)
            and rested(desk, rule, record, now_s)
            and not kept(desk, tier, record, now_s)
        ):
            chosen[found] = record
            found += 1
    found = choose(desk, rule, chosen, found, most, now_s)
    moved, returned = _NONE, _NONE
    for i in range(found):
        if trial:
            _count_trial(desk, rule, int(chosen[i]))
            continue
        done, back = move(desk, rule, int(chosen[i]), now_s)
        moved += done
        returned += back
    if not trial and found:
        note(desk, rule, moved, found - moved, returned, now_s)
    return moved


@kernel
def _take_victims(desk: I64Array, rule: int, tier: int, need: int, now_s: int) -> None:
    """Let a rule take what the table's own eviction would take next; what stays counts as just used."""
    wanted = min(need, VICTIMS)
    for _ in range(wanted):
        record = victim(desk, tier)
        if record < 0:
            saw(desk, rule, tier, tier_of(desk, tier)[at.COUNT] // 2 + 1, now_s)
            return
        batch_of(desk)[0] = record
        if not _apply(desk, rule, tier, _ONE, _ONE, now_s):
            spare(desk, tier, record)
        saw(desk, rule, tier, _ONE, now_s)


@kernel
def _table_slice(desk: I64Array, tier: int, now_s: int, now_ms: int) -> bool:
    """Do one slice of a table's work; returns False where there was none."""
    running = always = False
    for rule in range(rules_in(desk)):
        if not _is_from(desk, rule, tier):
            continue
        if is_marked(desk, rule):
            need = need_of(desk, rule, tier, now_s)
            if need and most_now(desk, rule, now_s, _ONE):
                if word_of(desk, rule)[rule_at.USES] != rule_at.NO_USING:
                    _take_victims(desk, rule, tier, need, now_s)
                    return True
                running = True
        else:
            always |= looks(desk, rule, tier)
    if not running and not (always and pass_is_due(desk, tier, PASS_S * 1000, now_ms)):
        return False
    count = fill_batch(desk, tier, int(SLICE_RECORDS))
    for rule in range(rules_in(desk)):
        if not _is_from(desk, rule, tier):
            continue
        if not is_marked(desk, rule):
            if looks(desk, rule, tier):
                _apply(desk, rule, tier, count, count, now_s)
        elif brakes_of(desk, rule)[rule_at.ACTIVE] and most_now(desk, rule, now_s, _ONE):
            need = need_of(desk, rule, tier, now_s)
            _apply(desk, rule, tier, count, of_slice(desk, rule, count, need), now_s)
            saw(desk, rule, tier, count, now_s)
    advance(desk, tier, count, PASS_S * 1000, now_ms)
    return True


@kernel
def _walk_slice(desk: I64Array, now_s: int, now_ms: int) -> None:
    """Let rules have one slice of the cold records; the writer reads one for a step."""
    running = always = False
    for rule in range(rules_in(desk)):
        if not _is_from(desk, rule, _NVME):
            continue
        if is_marked(desk, rule):
            running |= need_of(desk, rule, _NVME, now_s) > 0 and most_now(desk, rule, now_s, _ONE) > 0
        else:
            always |= looks(desk, rule, _NVME)
    if not running and not (always and pass_is_due(desk, _NVME, WALK_PASS_S * 1000, now_ms)):
        return
    count = fill_batch(desk, _NVME, int(WALK_RECORDS))
    records = tier_of(desk, _NVME)[at.COUNT]
    for rule in range(rules_in(desk)):
        if not _is_from(desk, rule, _NVME):
            continue
        brakes = brakes_of(desk, rule)
        if not is_marked(desk, rule):
            if looks(desk, rule, _NVME):
                _apply(desk, rule, _NVME, count, count, now_s)
        elif brakes[rule_at.ACTIVE] and most_now(desk, rule, now_s, _ONE):
            left = int(brakes[rule_at.LEFT])
            moved = _apply(desk, rule, _NVME, count, of_slice(desk, rule, count, left), now_s)
            brakes[rule_at.LEFT] -= moved
            brakes[rule_at.SEEN] += count
            if brakes[rule_at.LEFT] <= 0 or brakes[rule_at.SEEN] > 2 * records:
                rest(desk, rule, now_s)
    advance(desk, _NVME, count, WALK_PASS_S * 1000, now_ms)


@kernel
def find(desk: I64Array, record: int) -> None:
    """Have the sweep look at a cold record that a lookup found, unless too many wait."""
    counts, line = counts_of(desk), line_of(desk, record)
    if not counts[at.PROMOTES] or line[at.MARKS] & at.WAITING or counts[at.FOUND_COUNT] == at.FOUND_RECORDS:
        return
    line[at.MARKS] |= at.WAITING
    found_of(desk)[(counts[at.FOUND_START] + counts[at.FOUND_COUNT]) % at.FOUND_RECORDS] = record
    counts[at.FOUND_COUNT] += 1


@kernel
def _found_slice(desk: I64Array, now_s: int) -> bool:
    """Let rules promote some of the cold records found; returns False where none waits."""
    counts, count = counts_of(desk), _NONE
    if counts[at.FOUND_COUNT] == 0:
        return False
    for _ in range(min(SLICE_RECORDS, counts[at.FOUND_COUNT])):
        record = int(found_of(desk)[counts[at.FOUND_START]])
        counts[at.FOUND_START] = (counts[at.FOUND_START] + 1) % at.FOUND_RECORDS
        counts[at.FOUND_COUNT] -= 1
        line_of(desk, record)[at.MARKS] &= ~at.WAITING
        if line_of(desk, record)[at.TIER] == _NVME:
            batch_of(desk)[count] = record
            count += 1
    for rule in range(rules_in(desk)):
        word = word_of(desk, rule)
        if word[rule_at.ACTION] == rule_at.PROMOTE and word[rule_at.SOURCE] == _NVME:
            _apply(desk, rule, _NVME, count, count, now_s)
    return True


@kernel
def sweep(desk: I64Array, accesses: int, now_s: int, now_ms: int) -> None:
    """Move records as the rules say, after a step of so many accesses."""
    for rule in range(rules_in(desk)):
        brakes_of(desk, rule)[rule_at.STOPPED] = 0.0
    counts, first, left_us = counts_of(desk), True, max(SWEEP_US, accesses * ACCESS_US)
    while left_us > 0:
        changes = counts[at.NVME_INSERTS] + counts[at.NVME_REMOVES]
        worked = _found_slice(desk, now_s)
        for tier in range(_NVME):
            if tier_of(desk, tier)[at.RULED]:
                worked |= _table_slice(desk, tier, now_s, now_ms)
        if first and tier_of(desk, _NVME)[at.RULED]:
            _walk_slice(desk, now_s, now_ms)
        first = False
        if not worked:
            break
        left_us -= SLICE_US + CHANGE_US * (counts[at.NVME_INSERTS] + counts[at.NVME_REMOVES] - changes)
