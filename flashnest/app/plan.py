"""The records of a kept NVMe store as a policy sees them, for `policy plan`: read whole, changed in nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from flashnest.policy.plan import Present
from flashnest.record import KEY_BYTES, FactArrays, Tier
from flashnest.storage.moves import read_facts
from flashnest.storage.store_reading import find_store, open_for_reading

_FIELDS: Final = ("tokens", "kind", "namespace", "nbytes", "hits", "idle_s", "age_s", "refs", "accept_percent")


def present_in_store(
    path: Path,
    windows_s: tuple[int, ...],
    *,
    now_s: int | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Present:
    """Read all records of the store in `path`, or of the one in a folder of it, at `now_s` (seconds since 1970).

    A file keeps no hits by time: `hits in TIME` is all hits of a record that was found within the time, else 0, so
    rather too many. progress: called with the share that is read. Raises StoreError where there is no store or a run
    has it open, StoreCorruptError where it is damaged.
    """
    now = int(time.time()) if now_s is None else now_s
    parts: list[FactArrays] = []
    read = 0
    folder = find_store(path)
    with open_for_reading(folder) as kept:
        for keys, rows in kept.scan:
            parts.append(read_facts(keys, rows, now, KEY_BYTES + 4 * kept.words, ()))
            read += len(keys)
            progress(min(1.0, read / max(1, kept.records)))
        source = f"{read:,} records in {folder} ({kept.engine}, {kept.owner or 'no owner'})"
    facts = _joined(parts, windows_s)
    return Present(facts, windows_s, np.full(read, Tier.NVME, np.uint8), source)


def _joined(parts: list[FactArrays], windows_s: tuple[int, ...]) -> FactArrays:
    empty = np.zeros((0, 8), np.uint32)
    whole = parts or [read_facts(np.zeros(0, np.uint64), empty, 0, 0, ())]
    arrays = {name: np.concatenate([getattr(part, name) for part in whole]) for name in _FIELDS}
    hits, idle = arrays["hits"], arrays["idle_s"]
    windows = tuple(np.where(idle > window_s, np.uint32(0), hits) for window_s in windows_s)
    return FactArrays(**arrays, window_hits=windows)
