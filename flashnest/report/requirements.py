"""Whether a run kept what its policy requires: each `require` against the figure that the run measured. Prints nothing.

What is measured, by metric: `lookup p50`, `lookup p99`: one step's lookups together, over the steps that asked;
`step p99`: an engine step; `nvme writes`: what the drive was sent for the cold tier, over the measured time;
`nvme life`: the platform's endurance at that rate; `dram hits`: questions that DRAM answered, of all answered ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flashnest.policy.goals import Level, Requirement
from flashnest.record import Tier
from flashnest.report.figures import MISSING, share_text
from flashnest.telemetry.metrics import RunMetrics
from flashnest.units import format_duration


@dataclass(frozen=True, slots=True)
class RequirementFigures:
    """One requirement of a run: measured and bound in seconds, bytes a second, or a share 0..1.

    measured None: the run has no such figure, `why` says why, and held is None too. An endless life is infinite.
    """

    text: str
    name: str | None
    level: str
    metric: str
    operator: str
    bound: float
    measured: float | None
    held: bool | None
    why: str

    @property
    def is_broken(self) -> bool:
        """Whether an enforced requirement did not hold: the run ends with exit code 1."""
        return self.held is False and self.level == Level.ENFORCE

    def line(self) -> str:
        """Return what a run says of it, for people; empty where it held."""
        if self.held:
            return ""
        if self.held is None:
            return f"requirement not measured: {self.text} ({self.why})"
        verb = "broken" if self.is_broken else "does not hold"
        return f"requirement {verb}: {self.text}, measured {value_text(self.metric, self.measured)}"


def judge_requirements(
    requirements: tuple[Requirement, ...],
    metrics: RunMetrics,
    *,
    disk_bytes: int | None,
    endurance_bytes: int | None,
) -> tuple[RequirementFigures, ...]:
    """Return what became of each requirement, in file order.

    disk_bytes: sent to the drive for the cold tier, None without one; endurance_bytes: of the platform's drive.
    """
    return tuple(_judge(requirement, metrics, disk_bytes, endurance_bytes) for requirement in requirements)


def _judge(
    requirement: Requirement, metrics: RunMetrics, disk_bytes: int | None, endurance_bytes: int | None
) -> RequirementFigures:
    measured, why = _measured(requirement.metric, metrics, disk_bytes, endurance_bytes)
    return RequirementFigures(
        text=requirement.text,
        name=requirement.name,
        level=requirement.level.value,
        metric=requirement.metric,
        operator=requirement.operator,
        bound=requirement.bound,
        measured=measured,
        held=None if measured is None else requirement.holds(measured),
        why="" if measured is not None else why,
    )


def _measured(
    metric: str, metrics: RunMetrics, disk_bytes: int | None, endurance_bytes: int | None
) -> tuple[float | None, str]:
    """Return a metric's value, or None and why there is none."""
    match metric:
        case "lookup p50" | "lookup p99":
            lookups = metrics.lookup_steps_s()
            return None if lookups is None else getattr(lookups, metric.split()[1]), "nothing was looked up"
        case "step p99":
            steps = metrics.steps_ms()
            return None if steps is None else steps.p99 / 1e3, "no step ran"
        case "nvme writes":
            return _write_rate(metrics, disk_bytes), "no time was measured"
        case "nvme life":
            return _life_s(_write_rate(metrics, disk_bytes), endurance_bytes), "the platform names no endurance"
        case "dram hits":
            hits = sum(metrics.tier_hits)
            return metrics.tier_hits[Tier.DRAM] / hits if hits else None, "nothing was found"
    return None, "a run does not measure it"


def _write_rate(metrics: RunMetrics, disk_bytes: int | None) -> float | None:
    duration_s = metrics.duration_s()
    return (disk_bytes or 0) / duration_s if duration_s > 0 else None


def _life_s(bytes_per_s: float | None, endurance_bytes: int | None) -> float | None:
    if bytes_per_s is None or endurance_bytes is None:
        return None
    return endurance_bytes / bytes_per_s if bytes_per_s > 0 else math.inf


def value_text(metric: str, value: float | None) -> str:
    """Return a metric's value as people read it."""
    if value is None:
        return MISSING
    match metric:
        case "nvme writes":
            return f"{value / 1e6:.3g} MB/s"  # as policies have it: a drive's sheet counts in thousands
        case "dram hits":
            return share_text(value)
        case "nvme life" if math.isinf(value):
            return "for ever"
        case "nvme life" if value >= 365 * 86400:
            return f"{value / (365 * 86400):.1f} y"
        case _:
            return format_duration(value)
