"""What the engine keeps beside a request while it is in flight. Decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

from flashnest.runtime.prefix_cache import Lineage, Probe
from flashnest.runtime.request import Request
from flashnest.runtime.stopping import StopScanner

PRIORITY_S = 30.0
"""How much earlier a request counts as arrived for each level of its priority."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A request with how far its chunks are published, what it waits for, and its stop strings where it has any."""

    request: Request
    lineage: Lineage
    scanner: StopScanner | None = None
    probe: Probe | None = None

    @property
    def rank(self) -> tuple[float, int]:
        """Who comes first: the lower. Never changes."""
        return self.request.arrived_s - PRIORITY_S * self.request.priority, self.request.id
