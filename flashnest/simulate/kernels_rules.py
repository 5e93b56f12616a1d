"""Machine code of the rules: whether a condition takes a record, what a rule's brakes allow, what a move does.

The brakes are those of `storage.rates`, `storage.moves` and `storage.ping_pong`, exact where those forget. Looks for no
records: `kernels_sweep` does.
"""

from __future__ import annotations

import math
from typing import Final, cast

import numpy as np

from flashnest.jit import inline_kernel, kernel
from flashnest.record import F64Array, I32Array, I64Array
from flashnest.simulate import program as rule_at
from flashnest.simulate import state as at
from flashnest.simulate.desk import (
    brakes_of,
    counts_of,
    kinds_of,
    last_seen_of,
    limits_of,
    line_of,
    namespaces_of,
    nbytes_of,
    row_of,
    rules_in,
    seen_of,
    stack_of,
    sums_of,
    tier_of,
    tokens_of,
    windows_of,
    word_of,
)
from flashnest.simulate.kernels_tiers import has_room, put, take_out
from flashnest.storage.ping_pong import FIRST_SUSPENSION_S, JUDGED_MOVES, LONGEST_SUSPENSION_S, SHARE, WINDOW_S

_NVME: Final = cast(int, np.int64(2))
_AFTER_ALL: Final = cast(int, np.int64(1 << 40))
"""More than any time: used records go after all unused ones."""
_DROPPED: Final = 7
"""As a target in WAY: a record that a rule drops comes back from nowhere."""


@inline_kernel
def window_hits(desk: I64Array, window: int, record: int, now_s: int) -> int:
    """Return the hits of a record within a window, as `storage.sketch` counts them."""
    now = at.GENERATIONS + now_s * (at.GENERATIONS - 1) // windows_of(desk)[window]
    last, total = int(last_seen_of(desk, window)[record]), 0
    for generation in range(max(0, now - at.GENERATIONS + 1), last + 1):  # most records were not hit lately: none
        total += seen_of(desk, window, record)[generation & (at.GENERATIONS - 1)]
    return total


@kernel
def fact_of(desk: I64Array, fact: int, record: int, now_s: int) -> int:
    """Return a fact of a record; `program` numbers them."""
    line = line_of(desk, record)
    if fact == rule_at.TOKENS:
        return int(tokens_of(desk)[record])
    if fact == rule_at.KIND:
        return int(kinds_of(desk)[record])
    if fact == rule_at.NAMESPACE:
        return int(namespaces_of(desk)[record])
    if fact == rule_at.NBYTES:
        return int(nbytes_of(desk)[record])
    if fact == rule_at.HITS:
        return int(line[at.HITS])
    if fact == rule_at.IDLE:
        return int(max(now_s - line[at.LAST], 0))
    if fact == rule_at.AGE:
        return int(max(now_s - line[at.INSERTED], 0))
    if fact == rule_at.REFS:
        return int(line[at.REFS])
    if fact == rule_at.ACCEPT:
        return 100
    return int(window_hits(desk, fact - rule_at.FIRST_WINDOW, record, now_s))


@kernel
def matches(desk: I64Array, rule: int, record: int, now_s: int) -> bool:
    """Whether a rule's condition takes a record."""
    stack, top = stack_of(desk), 0
    for row in range(word_of(desk, rule)[rule_at.START], word_of(desk, rule)[rule_at.END]):
        what, parts = row_of(desk, row)[0], row_of(desk, row)[3]
        if what == rule_at.IN_RANGE:
            value = fact_of(desk, row_of(desk, row)[1], record, now_s)
            stack[top] = row_of(desk, row)[2] <= value <= row_of(desk, row)[3]
            top += 1
        elif what == rule_at.NEGATE:
            stack[top - 1] = 1 - stack[top - 1]
        elif what == rule_at.YES or what == rule_at.NO:
            stack[top] = what == rule_at.YES
            top += 1
        else:
            held = 0
            for part in range(top - parts, top):
                held += stack[part]
            top -= parts
            stack[top] = held == parts if what == rule_at.ALL_OF else held > 0
            top += 1
    return bool(stack[0])


@kernel
def kept(desk: I64Array, tier: int, record: int, now_s: int) -> bool:
    """Whether a rule keeps a record of `tier` there."""
    if not tier_of(desk, tier)[at.KEEPS]:
        return False
    for rule in range(rules_in(desk)):
        word = word_of(desk, rule)
        if (
            word[rule_at.ACTION] == rule_at.KEEP
            and word[rule_at.SOURCE] == tier
            and word[rule_at.TRIAL] < 0
            and matches(desk, rule, record, now_s)
        ):
            return True
    return False


@kernel
def most_now(desk: I64Array, rule: int, now_s: int, wanted: int) -> int:
    """Return how many of `wanted` records a rule may move now: its rates, its breaker."""
    brakes, limits = brakes_of(desk, rule), limits_of(desk, rule)
    if brakes[rule_at.STOPPED] or now_s < brakes[rule_at.OPEN_UNTIL_S]:
        return 0
    for bucket in range(2):
        per_s = limits[rule_at.RECORDS_PER_S + bucket]
        if per_s < 0.0:
            continue
        room = max(per_s, 1.0)
        last_s = brakes[rule_at.UNITS_AT + bucket]
        if last_s < 0.0:
            brakes[rule_at.UNITS + bucket] = room
        else:
            brakes[rule_at.UNITS + bucket] = min(
                room, brakes[rule_at.UNITS + bucket] + per_s * max(0.0, now_s - last_s)
            )
        brakes[rule_at.UNITS_AT + bucket] = now_s
        wanted = min(wanted, int(brakes[rule_at.UNITS + bucket]))
    return wanted


@inline_kernel
def rested(desk: I64Array, rule: int, record: int, now_s: int) -> bool:
    """Whether a record did not move, or come into its tier, too lately for a rule."""
    cooldown_s, residency_s = limits_of(desk, rule)[rule_at.COOLDOWN_S], limits_of(desk, rule)[rule_at.RESIDENCY_S]
    line = line_of(desk, record)
    if line[at.MOVED] >= 0 and now_s - line[at.MOVED] < max(cooldown_s, residency_s):
        return False
    return bool(now_s - line[at.INSERTED] >= residency_s)


@kernel
def write_batch(desk: I64Array) -> None:
    """Write what has gathered for NVMe, and count the leaves of a B+tree that its random keys touch."""
    counts = counts_of(desk)
    leaves = max(1.0, tier_of(desk, _NVME)[at.COUNT] * at.LEAVES_A_RECORD)
    counts[at.MILLILEAVES] += int(1000 * leaves * (1.0 - math.exp(-counts[at.GATHERED] / leaves)))
    counts[at.BATCHES] += 1
    counts[at.GATHERED], counts[at.GATHERED_MS] = 0, -1


@inline_kernel
def wrote(desk: I64Array) -> None:
    """Count a change that gathers for NVMe."""
    counts_of(desk)[at.GATHERED] += 1
    if counts_of(desk)[at.GATHERED] >= counts_of(desk)[at.FLUSH_RECORDS]:
        write_batch(desk)


@kernel
def move(desk: I64Array, rule: int, record: int, now_s: int) -> tuple[bool, bool]:
    """Do what a rule asks of one record; returns (moved, it had come the other way lately)."""
    line, word = line_of(desk, record), word_of(desk, rule)
    source, target = word[rule_at.SOURCE], word[rule_at.TARGET]
    if target >= 0 and not has_room(desk, target):
        return False, False
    take_out(desk, record)
    if source == _NVME:
        counts_of(desk)[at.NVME_REMOVES] += 1
        wrote(desk)
    if target >= 0:
        put(desk, target, record)
    if target == _NVME:
        line[at.BATCH] = counts_of(desk)[at.BATCHES]
        counts_of(desk)[at.NVME_INSERTS] += 1
        wrote(desk)
    lasts_s = max(float(WINDOW_S), float(int(limits_of(desk, rule)[rule_at.RESIDENCY_S])))
    back = target >= 0 and line[at.WAY] == 8 * target + source and line[at.MOVED] >= 0
    returned = back and now_s - line[at.MOVED] <= lasts_s
    line[at.MOVED] = now_s
    line[at.WAY] = 8 * source + (target if target >= 0 else _DROPPED)
    return True, returned


@kernel
def note(desk: I64Array, rule: int, moved: int, refused: int, returned: int, now_s: int) -> None:
    """Count what became of the records that a rule chose, and suspend it where it undoes other moves."""
    counts, brakes = sums_of(desk, rule), brakes_of(desk, rule)
    counts[rule_at.MOVED] += moved
    counts[rule_at.REFUSED] += refused
    counts[rule_at.PING_PONGS] += returned
    if refused:
        brakes[rule_at.STOPPED] = 1.0
    for bucket in range(2):
        if limits_of(desk, rule)[rule_at.RECORDS_PER_S + bucket] >= 0.0:
            brakes[rule_at.UNITS + bucket] -= moved
    if not moved:
        return
    if brakes[rule_at.JUDGED] >= 2 * JUDGED_MOVES:
        brakes[rule_at.JUDGED] /= 2
        brakes[rule_at.RETURNED] /= 2
    brakes[rule_at.JUDGED] += moved
    brakes[rule_at.RETURNED] += returned
    if brakes[rule_at.JUDGED] >= JUDGED_MOVES and brakes[rule_at.RETURNED] > SHARE * brakes[rule_at.JUDGED]:
        _suspend(counts, brakes, now_s)


@inline_kernel
def _suspend(counts: I64Array, brakes: F64Array, now_s: int) -> None:
    if brakes[rule_at.NEXT_S] == 0.0 or now_s - brakes[rule_at.OPEN_UNTIL_S] > LONGEST_SUSPENSION_S:
        brakes[rule_at.NEXT_S] = FIRST_SUSPENSION_S
    brakes[rule_at.OPEN_UNTIL_S] = now_s + brakes[rule_at.NEXT_S]
    counts[rule_at.SUSPENSIONS] += 1
    counts[rule_at.SUSPENDED_S] += int(brakes[rule_at.NEXT_S])
    brakes[rule_at.NEXT_S] = min(2 * brakes[rule_at.NEXT_S], float(LONGEST_SUSPENSION_S))
    brakes[rule_at.JUDGED] = brakes[rule_at.RETURNED] = 0.0


@kernel
def _place_in_order(desk: I64Array, rule: int, record: int, now_s: int) -> int:
    """Return a number that is smaller the sooner a rule takes a record."""
    by, using, line = word_of(desk, rule)[rule_at.BY], word_of(desk, rule)[rule_at.USES], line_of(desk, record)
    if by >= 0:
        value = fact_of(desk, by, record, now_s)
        return -value if word_of(desk, rule)[rule_at.DESCENDING] else value
    if using == rule_at.OLD_FIRST:
        return int(line[at.INSERTED])
    unused_first = using == rule_at.UNUSED_FIRST and line[at.HITS] > 0
    return int(line[at.LAST]) + (_AFTER_ALL if unused_first else 0)


@kernel
def choose(desk: I64Array, rule: int, chosen: I32Array, count: int, most: int, now_s: int) -> int:
    """Put the `most` records that a rule takes first to the front of `chosen`, in their order; returns how many.

    Ties stay in the order given. The best so far are kept sorted: most records lose against the last of them at once.
    """
    word = word_of(desk, rule)
    ordered = word[rule_at.BY] >= 0 or word[rule_at.USES] != rule_at.NO_USING
    if count <= most or not ordered:
        return min(count, most)
    places, held = np.empty(most, np.int64), 0
    for i in range(count):
        record = int(chosen[i])
        place = _place_in_order(desk, rule, record, now_s)
        if held == most and place >= places[most - 1]:
            continue
        j = held if held < most else most - 1
        while j > 0 and places[j - 1] > place:
            places[j], chosen[j] = places[j - 1], chosen[j - 1]
            j -= 1
        places[j], chosen[j] = place, record
        held = min(held + 1, most)
    return most
