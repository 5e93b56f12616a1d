"""A clock that stands still between ticks: read once a step, it costs a lookup nothing, and a step has one time.

Reading a clock from Python and handing the time to a kernel took a tenth of a single-key lookup. Knows no store.
"""

from __future__ import annotations

import numpy as np

from flashnest.record import U64Array
from flashnest.storage.store import ClockS


class StepClock:
    """A `ClockS` over another one. One thread ticks it; any thread may read it."""

    def __init__(self, read: ClockS) -> None:
        """Read the first time now."""
        self._read = read
        self.seconds: U64Array = np.array([read()], np.uint64)
        """uint64 (1,): where kernels find the time."""

    def __call__(self) -> int:
        """Return the time of the last tick."""
        return int(self.seconds[0])

    def tick(self) -> None:
        """Read the clock below."""
        self.seconds[0] = self._read()
