"""Machine code of a trace's steps: cold answers, lookups, inserts, then the sweep. As `storage.router*` does them."""

from __future__ import annotations

from typing import Final, cast

import numpy as np

from flashnest.hashing import mix64
from flashnest.jit import inline_kernel, kernel
from flashnest.record import I32Array, I64Array, U8Array
from flashnest.simulate import state as at
from flashnest.simulate.desk import (
    admission_of,
    chain_of,
    counts_of,
    kinds_of,
    last_learnt_of,
    last_seen_of,
    learnt_of,
    line_of,
    pending_of,
    seen_of,
    tier_of,
    tokens_of,
    windows_of,
)
from flashnest.simulate.kernels_rules import kept, write_batch, wrote
from flashnest.simulate.kernels_sweep import find, sweep
from flashnest.simulate.kernels_tiers import has_room, put, spare, take_out, victim

FALSE_POSITIVE_BITS: Final = 8
"""One absent key in 256 passes the membership filter: a binary fuse filter of 8 bits, 0.4 % (`storage.filter`)."""
_MOST_HITS: Final = 4095
_MOST_REFS: Final = 1023
_MOST_SEEN: Final = 255
_MOST_USES: Final = 3
_VRAM, _DRAM, _NVME = cast(int, np.int64(0)), cast(int, np.int64(1)), cast(int, np.int64(2))
_NGRAM: Final = 0
_LOOKUP: Final = 0
_FALSE = np.uint64((1 << FALSE_POSITIVE_BITS) - 1)


@inline_kernel
def _generation(now_s: int, window_s: int) -> int:
    return at.GENERATIONS + now_s * (at.GENERATIONS - 1) // window_s


@inline_kernel
def _see(seen: U8Array, last: int, now: int) -> int:
    """Count one in generation `now` of a record's four; returns `now`. Those that ended too long ago are forgotten."""
    for generation in range(max(last + 1, now - at.GENERATIONS + 1), now + 1):
        seen[generation & (at.GENERATIONS - 1)] = 0
    if seen[now & (at.GENERATIONS - 1)] < _MOST_SEEN:
        seen[now & (at.GENERATIONS - 1)] += 1
    return now


@inline_kernel
def _hit(desk: I64Array, record: int, now_s: int) -> None:
    """Note a hit in a record's line and for `hits in TIME`."""
    line = line_of(desk, record)
    line[at.HITS] = min(line[at.HITS] + 1, _MOST_HITS)
    line[at.USES] = min(line[at.USES] + 1, _MOST_USES)
    line[at.LAST] = now_s
    line[at.MARKS] |= at.ASKED
    for window in range(windows_of(desk).shape[0]):
        now = _generation(now_s, windows_of(desk)[window])
        last_seen_of(desk, window)[record] = _see(
            seen_of(desk, window, record), int(last_seen_of(desk, window)[record]), now
        )


@kernel
def _drain(desk: I64Array, now_s: int) -> None:
    """Take the cold answers of the step before."""
    for i in range(counts_of(desk)[at.PENDING]):
        record = int(pending_of(desk)[i])
        if line_of(desk, record)[at.TIER] == _NVME:
            _hit(desk, record, now_s)
            find(desk, record)
    counts_of(desk)[at.PENDING] = 0


@inline_kernel
def _passes_filter(record: int) -> bool:
    """Whether the filter lets an absent record through: the same ones every time."""
    return bool(mix64(np.uint64(record) + np.uint64(1)) & _FALSE == np.uint64(0))


@kernel
def _ask(
    desk: I64Array, record: I32Array, first: int, end: int, by_rule: I64Array, by_tokens: I64Array, now_s: int
) -> int:
    """Answer one question, candidates `first` to `end` - 1; returns the cold reads that it took."""
    counts, cold, reads = counts_of(desk), tier_of(desk, _NVME)[at.ROOM] > 0, 0
    counts[at.QUESTIONS] += 1
    found = -1
    for i in range(first, end):
        line = line_of(desk, int(record[i]))
        tier = line[at.TIER]
        if 0 <= tier < _NVME:
            found = i if found < 0 else found
            break
        if tier == _NVME:
            if found < 0 or not counts[at.BLOCKING]:
                reads += line[at.BATCH] != counts[at.BATCHES]
            found = i if found < 0 else found
        elif cold and (found < 0 or not counts[at.BLOCKING]) and _passes_filter(int(record[i])):
            reads += 1
            counts[at.FALSE_READS] += 1
    if found < 0:
        counts[at.MISSES] += 1
        return reads
    line = line_of(desk, int(record[found]))
    tier_of(desk, int(line[at.TIER]))[at.TIER_HITS] += 1
    by_rule[line[at.RULE]] += 1
    by_tokens[line[at.TIER], tokens_of(desk)[record[found]]] += 1
    _answer(desk, int(record[found]), now_s)
    return reads


@inline_kernel
def _answer(desk: I64Array, record: int, now_s: int) -> None:
    """Note a hit at once, or with the next step where the record has to be read."""
    counts, line = counts_of(desk), line_of(desk, record)
    line[at.MARKS] |= at.ASKED
    if line[at.TIER] != _NVME:
        _hit(desk, record, now_s)
    elif counts[at.BLOCKING] or line[at.BATCH] == counts[at.BATCHES]:
        _hit(desk, record, now_s)
        find(desk, record)
    else:
        pending_of(desk)[counts[at.PENDING]] = record
        counts[at.PENDING] += 1


@kernel
def _admitted(desk: I64Array, record: int, now_s: int) -> bool:
    """Count a new record that was learnt; returns whether that was often enough."""
    asks = admission_of(desk, int(line_of(desk, record)[at.CHAIN]))
    if asks[0] == 0:
        return True
    now = _generation(now_s, asks[1])
    last_learnt_of(desk)[record] = _see(learnt_of(desk, record), int(last_learnt_of(desk)[record]), now)
    total = 0
    for generation in range(at.GENERATIONS):
        total += learnt_of(desk, record)[generation]
    return bool(total >= asks[0])


@inline_kernel
def _begin(desk: I64Array, tier: int, record: int, now_s: int) -> None:
    """Store a new record."""
    line = line_of(desk, record)
    put(desk, tier, record)
    line[at.HITS], line[at.REFS], line[at.LAST], line[at.INSERTED] = 0, 0, now_s, now_s
    line[at.MARKS] |= at.STORED
    counts_of(desk)[at.STORINGS] += 1


@kernel
def _store(desk: I64Array, tier: int, record: int, now_s: int) -> None:
    """Put a record into a tier with room: a new one, or one that a cold tier gives up to a table."""
    counts, line = counts_of(desk), line_of(desk, record)
    if line[at.TIER] == _NVME:
        take_out(desk, record)
        put(desk, tier, record)
        line[at.LAST] = now_s
        counts[at.NVME_REMOVES] += 1
        wrote(desk)
        return
    _begin(desk, tier, record, now_s)
    if tier == _NVME:
        line[at.BATCH] = counts[at.BATCHES]
        counts[at.NVME_INSERTS] += 1
        wrote(desk)


@kernel
def _make_room(desk: I64Array, tier: int, now_s: int) -> bool:
    """Have a full tier give up one record that no rule keeps, looking at each once at most; returns whether it did."""
    for _ in range(tier_of(desk, tier)[at.COUNT] + 1):
        record = victim(desk, tier)
        if record < 0:
            return False
        if not kept(desk, tier, record, now_s):
            take_out(desk, record)
            counts_of(desk)[at.PUSHED_OUT] += 1
            return True
        spare(desk, tier, record)
    return False


@inline_kernel
def _last_table(chain: I64Array) -> int:
    """Return the table that makes room where a whole chain is full: DRAM, or VRAM where there is no other; -1: none."""
    for i in range(chain.shape[0]):
        if chain[i] == _DRAM:
            return _DRAM
    return _VRAM if chain[0] == _VRAM and chain[1] < 0 else -1


@kernel
def _learn(desk: I64Array, record: int, now_s: int) -> None:
    """Insert one record."""
    line, counts = line_of(desk, record), counts_of(desk)
    tier = line[at.TIER]
    if 0 <= tier < _NVME:
        line[at.LAST] = now_s
        if kinds_of(desk)[record] == _NGRAM:
            line[at.REFS] = min(line[at.REFS] + 1, _MOST_REFS)
        return
    chain = chain_of(desk, int(line[at.CHAIN]))
    if chain[0] < 0:
        counts[at.REJECTED] += 1
        return
    if tier == _NVME and counts[at.STAYS]:
        return  # it is known: learning it again writes nothing
    if tier != _NVME and not _admitted(desk, record, now_s):
        counts[at.NOT_ADMITTED] += 1
        return
    for i in range(chain.shape[0]):
        if chain[i] == tier and tier == _NVME:
            return
        if chain[i] >= 0 and has_room(desk, chain[i]):
            _store(desk, chain[i], record, now_s)
            return
    last = _last_table(chain)
    if last < 0 and chain[0] == _NVME and tier != _NVME and tier_of(desk, _NVME)[at.EVICTION] != at.REFUSE:
        last = _NVME
    if last >= 0 and _make_room(desk, last, now_s):
        _store(desk, last, record, now_s)
    elif tier != _NVME:
        counts[at.REJECTED] += 1


@inline_kernel
def _flush(desk: I64Array, now_ms: int) -> None:
    """Write a batch that is old enough."""
    counts = counts_of(desk)
    if counts[at.GATHERED] == 0:
        return
    if counts[at.GATHERED_MS] < 0:
        counts[at.GATHERED_MS] = now_ms
    if now_ms - counts[at.GATHERED_MS] >= counts[at.FLUSH_MS]:
        write_batch(desk)


@kernel
def run_steps(
    desk: I64Array,
    record: I32Array,
    op: U8Array,
    group: I64Array,
    starts: I64Array,
    time_ms: I64Array,
    first: int,
    end: int,
    by_rule: I64Array,
    by_tokens: I64Array,
    reads: I32Array,
    keys: I32Array,
    answers: I32Array,
) -> None:
    """Play the steps `first` to `end` - 1.

    Step s has the accesses starts[s] to starts[s + 1] - 1 and begins at time_ms[s]. Adds hits by place rule, (rules,),
    and by tier and length, (3, 256); writes for each step the cold reads, the keys looked up, the questions answered.
    """
    for step in range(first, end):
        now_ms = time_ms[step]
        now_s = now_ms // 1000
        _drain(desk, now_s)
        i, stop = starts[step], starts[step + 1]
        while i < stop and op[i] == _LOOKUP:
            j = i + 1
            while j < stop and op[j] == _LOOKUP and group[j] == group[i]:
                j += 1
            missed = counts_of(desk)[at.MISSES]
            reads[step] += _ask(desk, record, i, j, by_rule, by_tokens, now_s)
            answers[step] += missed == counts_of(desk)[at.MISSES]
            keys[step] += j - i
            i = j
        for k in range(i, stop):
            _learn(desk, int(record[k]), now_s)
        _flush(desk, now_ms)
        sweep(desk, stop - starts[step], now_s, now_ms)
