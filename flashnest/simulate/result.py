"""What a simulation found. Numbers and words only; draws and decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from flashnest.record import F64Array, I64Array, Tier


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of one number a step."""

    p50: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: npt.NDArray[np.floating] | npt.NDArray[np.integer]) -> Self:
        """Return the quantiles of (n,) values; zeros where there are none."""
        if not len(values):
            return cls(0.0, 0.0, 0.0)
        p50, p99, most = np.quantile(values, (0.5, 0.99, 1.0), method="higher").tolist()
        return cls(float(p50), float(p99), float(most))


@dataclass(frozen=True, slots=True)
class Series:
    """Up to 200 moments of a trace. step int64 (k,): a step's number; hit_share float64 (k,): of the questions since
    the moment before; bytes: int64 (k,) for each tier, what its records take after that step."""

    step: I64Array
    hit_share: F64Array
    bytes: Mapping[Tier, I64Array]


@dataclass(frozen=True, slots=True)
class Simulation:
    """One policy on one trace.

    A question's hit belongs to the tier of its longest stored candidate, and to the place rule that stored it; one from
    NVMe comes a step later. `dram` and `vram` bytes are what the records take of the budget, which a real table
    allocates whole. Predictions (`lookup_us`, `step_ms`) are those of `simulate.latency`, None without a platform.
    """

    policy: str
    trace: str
    platform: str | None
    questions: int
    misses: int
    hits: Mapping[Tier, int]
    hits_by_rule: Mapping[int, int]
    rules: tuple[tuple[int, str], ...]
    """Number and text of every place rule and move."""
    would_have: Mapping[int, int]
    """For each trial rule by number: records that it would have placed or moved, each counted once."""
    capacities: Mapping[Tier, int]
    peak_bytes: Mapping[Tier, int]
    end_bytes: Mapping[Tier, int]
    end_records: Mapping[Tier, int]
    series: Series
    cold_reads_per_step: Quantiles
    cold_reads: int
    false_reads: int
    """Of them, reads of what was not there: the filter let it through."""
    step_ms: Quantiles | None
    """Lookups and the base step time that was given (0 without)."""
    lookup_us: Quantiles | None
    """All lookups of one step together."""
    nvme_written_bytes: int
    """By the drive, the engine's own amplification included."""
    nvme_changes: int
    """Records written to or removed from NVMe."""
    nvme_bytes_per_s: float
    """Over the time of the trace; 0 where that has none."""
    drive_life_years: float | None
    """At that rate; None where the platform names no endurance, infinite where nothing is written."""
    moved_by_rule: Mapping[int, int]
    refused_by_rule: Mapping[int, int]
    suspensions: Mapping[int, int]
    """Times the ping-pong breaker stopped a rule, by its number, where it did."""
    ping_pongs: int
    """Moves of records that had just come the other way."""
    rejected: int
    not_admitted: int
    pushed_out: int
    """Records that a full table dropped to make room where no rule had."""
    stored_records: int
    """Different records that were stored at some time."""
    one_hit_wonders: float
    """Share of them that were never found."""
    hits_per_stored_byte: float
    """Hits by the bytes that all tiers' records take at their fullest, together."""
    belady_hit_share: float | None
    """Most questions that DRAM and VRAM of these bytes could answer, as a share of all: see `simulate.belady`."""
    accesses: int
    accesses_per_s: float
    """How fast the simulation itself went; not part of `to_json`."""
    requirements: tuple[tuple[str, bool], ...]
    """Text of every `require`, and whether it holds; one that cannot be told without a platform is a warning."""
    broken: tuple[str, ...]
    """Text of those enforced that do not hold."""
    warnings: tuple[str, ...]

    @property
    def hit_share(self) -> float:
        """Questions that some tier answered, as a share of all."""
        return sum(self.hits.values()) / max(1, self.questions)

    @property
    def table_hit_share(self) -> float:
        """Questions that VRAM or DRAM answered, as a share of all: what `belady_hit_share` bounds."""
        return sum(count for tier, count in self.hits.items() if tier is not Tier.NVME) / max(1, self.questions)

    @property
    def passed(self) -> bool:
        """Whether every enforced requirement that could be told holds."""
        return not self.broken

    def to_json(self) -> dict[str, object]:
        """Return everything as plain dicts, lists, numbers and strings; tiers by their name in lower case. Two runs on
        the same input give the same: the simulation's own speed is left out."""
        plain = asdict(self)
        del plain["accesses_per_s"]
        return {name: _plain(value) for name, value in plain.items()}


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key.name.lower() if isinstance(key, Tier) else str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
