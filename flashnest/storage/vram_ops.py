"""Lookup, removal and eviction order of a table of tensors: tensor operations of fixed shapes only. Stores no record.

No operation here waits for the device or asks it anything: no `.item()`, no `nonzero`, no boolean index. Shapes depend
on the shapes of the arguments alone, so each function can be captured in a CUDA graph and replayed.

A key has two buckets, chosen by the halves of a multiplicative hash, and lies in either; a lookup reads both. Bucketed
two-choice tables are what GPU hash tables have settled on: Awad et al., "Analyzing and Implementing GPU Hash Tables",
APOCS 2023. Keys are int64 bit patterns of uint64: torch multiplies int64 modulo 2^64, and its `>>` copies the sign bit,
hence the masks.
"""

from __future__ import annotations

from typing import Final

import torch

from flashnest.record import ACCEPTED, DRAFTED, HITS, LAST_ACCESS
from flashnest.storage.vram_planes import BUCKET_SLOTS, FOUND, LOOKUPS, RECORDS, REMOVES, VramPlanes

_ODD: Final = 0x9E3779B97F4A7C15 - (1 << 64)
"""2^64 over the golden ratio, odd: Knuth's multiplicative hashing, as the int64 it is."""
LOW32: Final = 0xFFFF_FFFF
_FULL_HITS: Final = -(1 << 16)
"""HITS, DRAFTED and ACCEPTED stand still from 2^32 - 2^16 on: one batch never carries them past 2^32."""


def homes_of(planes: VramPlanes, keys: torch.Tensor) -> torch.Tensor:
    """Return the two buckets of each key, int64 (n, 2); they may be the same one."""
    mixed = keys * _ODD
    mixed = mixed ^ ((mixed >> 32) & LOW32)
    halves = torch.stack((mixed >> 32, mixed), dim=1) & LOW32
    return (halves * planes.buckets) >> 32


def find(planes: VramPlanes, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which keys (n,) are stored, bool (n,), and their slots, int64 (n,): the dump where they are not."""
    homes = homes_of(planes, keys)
    there = planes.lines[homes] == keys.view(-1, 1, 1)
    slots = (homes * BUCKET_SLOTS).unsqueeze(2) + planes.lanes
    slot = torch.where(there, slots, -1).flatten(1).amax(1)
    hit = (slot >= 0) & (keys != 0)
    return hit, torch.where(hit, slot, planes.slots)


def lookup(planes: VramPlanes, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Find keys, int64 (n,), and touch what is found.

    Returns hit bool (n,), slot int64 (n,), rows int32 (n, words): the rows as they are after the whole batch, undefined
    where there is no hit.
    """
    hit, slot = find(planes, keys)
    _touch(planes, hit, slot)
    return hit, slot, planes.rows[slot]


def longest(planes: VramPlanes, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Find the longest n-gram of each sequence and touch that one only. Counts n lookups.

    keys int64 (n, k), k at least 1: shortest length first, 0 where there is none. Returns index int64 (n,): which of
    the k, -1 for none; then hit, slot and rows as `lookup`.
    """
    there, slots = find(planes, keys.flatten())
    lengths = torch.arange(keys.shape[1], device=keys.device)
    index = torch.where(there.view(keys.shape), lengths, -1).amax(1)
    slot = slots.view(keys.shape).gather(1, index.clamp(min=0).unsqueeze(1)).squeeze(1)
    hit = index >= 0
    _touch(planes, hit, slot)
    return index, hit, slot, planes.rows[slot]


def _touch(planes: VramPlanes, hit: torch.Tensor, slot: torch.Tensor) -> None:
    planes.tick.add_(1)
    _add_up(planes.rows[:, HITS], slot, hit.to(torch.int32))
    planes.rows[:, LAST_ACCESS].index_put_((slot,), planes.now)
    planes.used.index_put_((slot,), planes.tick)
    planes.counts[LOOKUPS].add_(hit.shape[0])
    planes.counts[FOUND].add_(hit.sum())


def _add_up(words: torch.Tensor, slot: torch.Tensor, amount: torch.Tensor) -> None:
    """Add to uint32 words held as int32 unless they are full already."""
    held = words[slot]
    full = (held < 0) & (held >= _FULL_HITS)
    words.index_add_(0, slot, torch.where(full, 0, amount))


def feedback(planes: VramPlanes, keys: torch.Tensor, drafted: torch.Tensor, accepted: torch.Tensor) -> None:
    """Add draft counts, int32 (n,), to the records that are there."""
    hit, slot = find(planes, keys)
    _add_up(planes.rows[:, DRAFTED], slot, torch.where(hit, drafted, 0))
    _add_up(planes.rows[:, ACCEPTED], slot, torch.where(hit, accepted, 0))


def mark_used(planes: VramPlanes, keys: torch.Tensor) -> None:
    """Make records the most recently used ones, leaving their rows alone."""
    _, slot = find(planes, keys)
    planes.tick.add_(1)
    planes.used.index_put_((slot,), planes.tick)


def remove(planes: VramPlanes, keys: torch.Tensor) -> torch.Tensor:
    """Remove records, int64 (n,); returns bool (n,): whether each was there, once for a key given twice."""
    ordered, order = keys.sort(stable=True)
    hit, slot = find(planes, ordered)
    gone = hit & starts(ordered)
    planes.keys.index_fill_(0, torch.where(gone, slot, planes.slots), 0)
    count = gone.sum()
    planes.counts[RECORDS].sub_(count)
    planes.counts[REMOVES].add_(count)
    return torch.empty_like(gone).scatter_(0, order, gone)


def starts(ordered: torch.Tensor) -> torch.Tensor:
    """Return where runs of equal values begin in a sorted tensor, bool (n,)."""
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return new


def ages(planes: VramPlanes, used: torch.Tensor) -> torch.Tensor:
    """Return how many batches ago each of `used` was, int64 of the same shape. Ticks come round after 2^32 batches."""
    return (planes.tick - used).to(torch.int64) & LOW32


def oldest(planes: VramPlanes, start: int, stop: int, records: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys (records,) and rows (records, words) of the least recently used of slots start..stop-1.

    Oldest first; keys are 0 where there are fewer. `records` is at most stop - start.
    """
    keys = planes.keys[start:stop]
    age = torch.where(keys != 0, ages(planes, planes.used[start:stop]), -1)
    at = age.topk(records).indices
    return keys[at], planes.rows[start:stop][at]
