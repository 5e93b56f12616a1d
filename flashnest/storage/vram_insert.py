"""Insertion into a table of tensors: tensor operations of fixed shapes only. Finds and removes nothing by itself.

A batch is sorted by key, so that the rows of one key lie side by side and the last of them decides. What is stored is
overwritten. Each new key then takes a free slot in the emptier of its two buckets: the keys that choose the same bucket
are ranked by a second sort, and the one of rank r takes the r-th slot. Who finds none has filled that bucket with its
peers and asks the other one in a second round, after which both are full. Two more rounds give a new key the place of
the least recently used record of its buckets, where the caller wants that.

The same rules as `vram_ops`: no waiting for the device, no shape that depends on data.
"""

from __future__ import annotations

import torch

from flashnest.record import CHAIN, INSERTED, LAST_ACCESS, META, REFS, Kind
from flashnest.storage.vram_ops import LOW32, ages, find, homes_of, starts
from flashnest.storage.vram_planes import (
    BUCKET_SLOTS,
    EVICTED,
    INSERTS,
    RECORDS,
    REJECTED,
    UPDATES,
    VramPlanes,
)

_KIND = 0xFF


def insert(
    planes: VramPlanes, keys: torch.Tensor, rows: torch.Tensor, *, evict: bool, again: bool = False
) -> torch.Tensor:
    """Insert or overwrite records as `Store.insert_many` says; returns bool (n,): which are stored.

    keys int64 (n,), rows int32 (n, words). Records are never stored past `max_records`: with `evict` a new key then
    takes the place of an older one of its buckets, without it is refused. A row with INSERTED 0 gets the time `now`.
    `again`: these are left from the batch before, whose records are as safe as those of this one.
    """
    planes.tick.add_(0 if again else 1)
    ordered, order = keys.sort(stable=True)
    first = starts(ordered)
    last = torch.ones_like(first)
    last[:-1] = first[1:]
    hit, slot = find(planes, ordered)
    merged = _merge(planes, rows[order], first, hit, slot)
    planes.used.index_put_((slot,), planes.tick)
    new = last & ~hit & (ordered != 0)
    place = _Placing(planes, ordered, torch.where(hit & last, slot, planes.slots))
    room = planes.max_records - planes.counts[RECORDS]
    within = new & (new.cumsum(0) <= room)
    for _ in range(2):
        place.take(within, *place.free())
    placed = place.done.sum()
    if evict:
        for _ in range(2):
            place.take(new, *place.old())
    planes.rows.index_put_((place.slot,), merged)
    stored = torch.empty_like(hit).scatter_(0, order, _of_run(last, place.slot != planes.slots))
    _count(planes, placed, place.done.sum() - placed, stored)
    return stored


def _count(planes: VramPlanes, placed: torch.Tensor, replaced: torch.Tensor, stored: torch.Tensor) -> None:
    count, taken = planes.counts, stored.sum()
    count[RECORDS].add_(placed)
    count[INSERTS].add_(placed + replaced)
    count[EVICTED].add_(replaced)
    count[UPDATES].add_(taken - placed - replaced)
    count[REJECTED].add_(stored.shape[0] - taken)


def _of_run(last: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return for every member of a run the value of its last one; run ends are where `last`."""
    position = torch.arange(last.shape[0], device=last.device)
    ends = torch.where(last, position, last.shape[0])
    return value[ends.flip(0).cummin(0).values.flip(0)]


def _same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return which of two batches of rows are of one kind and start with the same token or block, bool (n,)."""
    return (((a[:, META] ^ b[:, META]) & _KIND) == 0) & (a[:, CHAIN] == b[:, CHAIN])


def _merge(
    planes: VramPlanes, rows: torch.Tensor, first: torch.Tensor, hit: torch.Tensor, slot: torch.Tensor
) -> torch.Tensor:
    """Return rows as they are stored once those before them in their run, and the stored one, came first.

    `rows`, sorted, is stamped in place. A streak is a stretch of a run whose rows say the same: facts are those of its
    beginning, or of the stored row where that says the same too; an n-gram's REFS add up along it.
    """
    fresh = rows[:, INSERTED] == 0
    for word in (INSERTED, LAST_ACCESS):
        rows[:, word] = torch.where(fresh, planes.now, rows[:, word])
    stored = planes.rows[slot]
    begins = first.clone()
    begins[1:] |= ~_same(rows[1:], rows[:-1])
    begin = torch.where(begins, torch.arange(rows.shape[0], device=rows.device), 0).cummax(0).values
    joined = (first & hit & _same(stored, rows))[begin]
    base = torch.where(joined.unsqueeze(1), stored, rows[begin])
    merged = torch.where(planes.kept, base, rows)
    learnt = (rows[:, REFS].to(torch.int64) & LOW32).clamp(min=1)
    total = learnt.cumsum(0)
    refs = (base[:, REFS].to(torch.int64) & LOW32) + total - total[begin] + torch.where(joined, learnt[begin], 0)
    ngram = (rows[:, META] & _KIND) == int(Kind.NGRAM)
    merged[:, REFS] = torch.where(ngram, refs.clamp(max=LOW32).to(torch.int32), rows[:, REFS])
    return merged


class _Placing:
    """Where each key of a sorted batch goes: `slot` (n,), the dump while nowhere; `done` (n,): new keys placed so far.

    A key and its use are written when it gets its slot, so that the next round sees the table as it is.
    """

    def __init__(self, planes: VramPlanes, keys: torch.Tensor, slot: torch.Tensor) -> None:
        self._planes, self._keys, self.slot = planes, keys, slot
        self._homes = homes_of(planes, keys)
        self.done = torch.zeros_like(keys, dtype=torch.bool)

    def free(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what each slot of each key's buckets is worth, (n, 2, 16), -1 for none, and each bucket, (n, 2)."""
        empty = self._planes.lines[self._homes] == 0
        return torch.where(empty, 0, -1), empty.sum(2)

    def old(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The same for taking the place of records: the longer unused the better; this batch's are safe."""
        taken, age = self._planes.lines[self._homes] != 0, ages(self._planes, self._planes.recent[self._homes])
        worth = torch.where(taken & (age > 0), age, -1)
        return worth, worth.amax(2)

    def take(self, want: torch.Tensor, worth: torch.Tensor, bucket_worth: torch.Tensor) -> None:
        """Give each wanting key that has no slot the best of its better bucket that no peer is given."""
        want = want & ~self.done
        second = bucket_worth[:, 1] > bucket_worth[:, 0]
        bucket = torch.where(second, self._homes[:, 1], self._homes[:, 0])
        mine = torch.where(second.view(-1, 1), worth[:, 1], worth[:, 0])
        best, lane = mine.sort(dim=1, descending=True, stable=True)
        rank = _ranks(torch.where(want, bucket, self._planes.buckets))
        at = rank.clamp(max=BUCKET_SLOTS - 1).unsqueeze(1)
        given = want & (rank < BUCKET_SLOTS) & (best.gather(1, at).squeeze(1) >= 0)
        slot = torch.where(given, bucket * BUCKET_SLOTS + lane.gather(1, at).squeeze(1), self._planes.slots)
        self._planes.keys.index_put_((slot,), self._keys)
        self._planes.used.index_put_((slot,), self._planes.tick)
        self.slot = torch.where(given, slot, self.slot)
        self.done = self.done | given


def _ranks(groups: torch.Tensor) -> torch.Tensor:
    """Return each member's rank among those of its group, int64 (n,), 0 for the first."""
    ordered, order = groups.sort(stable=True)
    position = torch.arange(groups.shape[0], device=groups.device)
    begin = torch.where(starts(ordered), position, 0).cummax(0).values
    return torch.empty_like(position).scatter_(0, order, position - begin)
