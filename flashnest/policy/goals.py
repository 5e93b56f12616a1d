"""What a policy asks of the whole table: levels of its rules, the interval of `flush`, and the bounds of `require`.

Data only, for reports, simulation and the run; nothing here measures, writes or decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from flashnest.record import Tier
from flashnest.units import Dimension


class Level(StrEnum):
    """What a rule may do. A requirement that does not hold is an error (enforce) or a warning (warn); any other rule
    acts (enforce) or is a trial (warn): checked, tested, explained and counted, without effect."""

    WARN = "warn"
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True)
class Metric:
    """What a requirement may be about: measured in `dimension`, better the `lower` or the higher it is.

    `per_unit` base units of the dimension make one unit of `Requirement.bound`: a second, a byte a second, the whole.
    """

    name: str
    dimension: Dimension
    per_unit: int
    lower: bool
    example: str
    tier: Tier | None = None
    """The tier that it is about, None: the whole table."""


METRICS: Final = {
    metric.name: metric
    for metric in (
        Metric("lookup p50", Dimension.DURATION, 10**9, True, "100us"),
        Metric("lookup p99", Dimension.DURATION, 10**9, True, "150us"),
        Metric("step p99", Dimension.DURATION, 10**9, True, "30ms"),
        Metric("nvme writes", Dimension.BYTE_RATE, 1, True, "20 MB/s", Tier.NVME),
        Metric("nvme life", Dimension.DURATION, 10**9, False, "5y", Tier.NVME),
        Metric("dram hits", Dimension.PERCENT, 100, False, "90%", Tier.DRAM),
    )
}
"""The metrics of `require`. A lookup is one step's lookups together, as the decode loop waits for them; `dram hits` is
the share of all hits that DRAM answers; `nvme life` the time until the drive's endurance is written."""


@dataclass(frozen=True, slots=True)
class Flush:
    """`flush every TIME`: how often what has gathered in DRAM for NVMe is written, and how fast at most."""

    every_s: float
    most_bytes_per_s: float | None
    line: int
    text: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    """`require METRIC OP BOUND`. `bound` is in seconds, in bytes a second, or a share 0..1, as the metric is."""

    metric: str
    operator: str
    bound: float
    level: Level
    line: int
    text: str
    name: str | None = None

    def holds(self, measured: float) -> bool:
        """Return whether a measured value, in the unit of `bound`, keeps the requirement."""
        match self.operator:
            case "<=":
                return measured <= self.bound
            case "<":
                return measured < self.bound
            case ">=":
                return measured >= self.bound
            case _:
                return measured > self.bound
