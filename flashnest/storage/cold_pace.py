"""How background work leaves room for the decode loop. Owns no thread.

A thread that takes and drops Python's global lock every microsecond, as LMDB's calls do, can keep the loop from getting
it back: the loop's own kernels drop it too, and each time wait up to the 5 ms switch interval. So background work goes
in slices of a few hundred microseconds and sleeps between them.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

SLICE_RECORDS: Final = 64
"""Records that are read or written before giving way: about 0.3 ms of LMDB."""

_PAUSE_S: Final = 20e-6


def give_way() -> None:
    """Let other threads of this process have the interpreter."""
    time.sleep(_PAUSE_S)


class Errand(Protocol):
    """Background work for the writer's thread, in slices; writes go first."""

    def step(self) -> bool:
        """Do a slice; returns whether nothing is left. Whatever it raises ends the errand."""

    def fail(self, error: Exception) -> None:
        """Take note that a step raised."""
