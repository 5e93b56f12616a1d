"""The memory of a table of tensors: one allocation of an exact size on one device, and its parts. Looks nothing up.

    part    dtype  shape               what
    keys    int64  (slots + 1,)        bit patterns of uint64 keys, 0 where a slot is empty
    used    int32  (slots + 1,)        tick of the last use, for eviction
    rows    int32  (slots + 1, words)  bit patterns of the uint32 rows, verbatim
    counts  int64  (8,)                counters that operations keep without the host
    now     int32  (1,)                the store's clock; the host sets it
    tick    int32  (1,)                number of the current batch

A bucket is 16 slots side by side: its keys are 128 bytes, one cache line of a GPU. The slot after the last is a dump:
operations of a fixed shape write there what must go nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import psutil
import torch

from flashnest.errors import StoreError, StoreFullError
from flashnest.record import ACCEPTED, DRAFTED, HITS, INSERTED
from flashnest.units import format_bytes

BUCKET_SLOTS: Final = 16
"""Simulated, 2 M slots filled by two choices, 2048 keys at once: buckets of 8 refuse the first record at load 0.71 and
0.02 % at 0.8, buckets of 16 the first at 0.85."""
MAX_LOAD: Final = 0.8
"""Share of slots that may be taken. Tables of 27 k, 883 k and 3.5 M slots took random keys up to it without refusing
one: 95 bytes a record with 16 words."""

RECORDS, LOOKUPS, FOUND, INSERTS, UPDATES, REMOVES, REJECTED, EVICTED = range(8)
"""What `counts` holds."""

_COUNTS: Final = 8
_LINE_BYTES: Final = 128
_KEPT_WORDS: Final = (HITS, INSERTED, DRAFTED, ACCEPTED)


@dataclass(frozen=True, slots=True)
class VramPlanes:
    """The parts; all are views of `allocated`. One thread, or one CUDA stream, uses them at a time."""

    allocated: torch.Tensor
    keys: torch.Tensor
    lines: torch.Tensor
    """The buckets of `keys`, (buckets, 16)."""
    used: torch.Tensor
    recent: torch.Tensor
    """The buckets of `used`, (buckets, 16)."""
    rows: torch.Tensor
    counts: torch.Tensor
    now: torch.Tensor
    tick: torch.Tensor
    lanes: torch.Tensor
    """0..15, int64."""
    kept: torch.Tensor
    """bool (words,): the words that an overwritten record keeps."""

    @property
    def buckets(self) -> int:
        """Buckets of 16 slots."""
        return int(self.lines.shape[0])

    @property
    def slots(self) -> int:
        """Slots, and the index of the dump."""
        return BUCKET_SLOTS * self.buckets

    @property
    def words(self) -> int:
        """Words in a row."""
        return int(self.rows.shape[1])

    @property
    def max_records(self) -> int:
        """How many records may be stored."""
        return int(self.slots * MAX_LOAD)


def _part_bytes(buckets: int, words: int) -> tuple[int, ...]:
    slots = BUCKET_SLOTS * buckets + 1
    return 8 * slots, 4 * slots, 4 * words * slots, 8 * _COUNTS, 4, 4, 8 * BUCKET_SLOTS, words


def _on_lines(count: int) -> int:
    return -(-count // _LINE_BYTES) * _LINE_BYTES


def planes_bytes(buckets: int, words: int) -> int:
    """Return what a table of that many buckets allocates; each part starts on a line of its own."""
    return sum(_on_lines(part) for part in _part_bytes(buckets, words))


def buckets_in(budget_bytes: int, words: int) -> int:
    """Return the most buckets whose table takes at most `budget_bytes`, 0 where not one fits."""
    buckets = max(0, (budget_bytes - planes_bytes(0, words)) // (BUCKET_SLOTS * (12 + 4 * words)) + 1)
    while buckets > 0 and planes_bytes(buckets, words) > budget_bytes:
        buckets -= 1
    return buckets


def open_device(device: str | torch.device, tier_name: str) -> torch.device:
    """Return the device, with its index for CUDA. Raises StoreError where torch has no such device here."""
    wanted = torch.device(device)
    if wanted.type != "cuda":
        return wanted
    if not torch.cuda.is_available() or (wanted.index or 0) >= torch.cuda.device_count():
        raise StoreError(
            f"the {tier_name} tier has no device {device}",
            why=f"torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices",
            fix=f"install a torch with CUDA on a machine with a GPU, or leave `{tier_name}` out of tiers",
        )
    return torch.device("cuda", torch.cuda.current_device() if wanted.index is None else wanted.index)


def free_bytes(device: torch.device) -> int:
    """Return the memory that is free on a device now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def fit_planes(budget_bytes: int, words: int, device: torch.device, tier_name: str) -> VramPlanes:
    """Allocate the largest table that the budget holds; `tier_name` is for messages.

    Raises StoreFullError where that is not one bucket, or where the device has not that much free.
    """
    buckets = buckets_in(budget_bytes, words)
    if buckets < 1:
        raise StoreFullError(
            f"a table of {budget_bytes} bytes holds no record",
            why=f"the smallest table takes {planes_bytes(1, words)} bytes",
            fix=f"give the {tier_name} tier a larger capacity",
        )
    free = free_bytes(device)
    if planes_bytes(buckets, words) <= free:
        try:
            return allocate_planes(buckets, words, device)
        except torch.OutOfMemoryError:
            free = free_bytes(device)  # less than a moment ago, or in pieces
    raise StoreFullError(
        f"the {tier_name} table of {format_bytes(budget_bytes)} does not fit on {device}",
        why=f"{format_bytes(free)} are free there",
        fix=f"give the {tier_name} tier a smaller capacity, or the model and its KV blocks less memory",
    )


def allocate_planes(buckets: int, words: int, device: torch.device) -> VramPlanes:
    """Allocate an empty table of `buckets` buckets (at least one) with rows of `words` uint32 words.

    Raises torch.OutOfMemoryError where a CUDA device has not that much.
    """
    allocated = torch.zeros(planes_bytes(buckets, words), dtype=torch.uint8, device=device)
    parts, at = [], 0
    for size in _part_bytes(buckets, words):
        parts.append(allocated[at : at + size])
        at += _on_lines(size)
    keys, used, rows, counts, now, tick, lanes, kept = parts
    keys, used = keys.view(torch.int64), used.view(torch.int32)
    lanes, kept = lanes.view(torch.int64), kept.view(torch.bool)
    lanes.copy_(torch.arange(BUCKET_SLOTS))
    kept[list(_KEPT_WORDS)] = True
    return VramPlanes(
        allocated=allocated,
        keys=keys,
        lines=keys[:-1].view(buckets, BUCKET_SLOTS),
        used=used,
        recent=used[:-1].view(buckets, BUCKET_SLOTS),
        rows=rows.view(torch.int32).view(-1, words),
        counts=counts.view(torch.int64),
        now=now.view(torch.int32),
        tick=tick.view(torch.int32),
        lanes=lanes,
        kept=kept,
    )
