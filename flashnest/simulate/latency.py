"""What a step's lookups take on a platform, predicted from measurements. Measures nothing itself.

One call answers all lookups of a step: a fixed cost and some 80 ns a key, measured on tables of 16 M and 100 M records
(docs/measurements/2026-12-01-table-*.json: 68 and 82 ns a hit, 49 and 63 ns a miss, 0.98 us for one key called from
Python). They are those of the machine measured; a platform's memory may be faster or slower.

async     A cold read costs the step its hand-over: queue, answer, ticket. 128 streams with all their records on NVMe
          had steps 1.75 ms longer than with all in DRAM (docs/measurements/2026-12-01-steps-rtx4090.json: 36.4 against
          34.7 ms, P99 1.01 times), writes included: 3.4 us a key of 4 lengths. The read itself is never waited for.
blocking  One stream's read after another, as the field report's L2 (facts R3): the drive's mean latency each; in the
          slowest steps one read takes the drive's P99.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest.policy.platform_facts import PlatformFacts
from flashnest.record import F64Array, I32Array

CALL_S: Final = 0.9e-6
HIT_S: Final = 82e-9
MISS_S: Final = 63e-9
HANDOVER_S: Final = 1.75e-3 / (128 * 4)


def lookup_seconds(
    keys: I32Array, answers: I32Array, reads: I32Array, platform: PlatformFacts, *, blocking: bool
) -> F64Array:
    """Return the seconds of each step's lookups, (steps,), steps without any left out.

    Of each step: keys looked up, questions answered, cold reads, all int32 (steps,).
    """
    asked = keys > 0
    keys, answers, reads = keys[asked], answers[asked], reads[asked]
    found = np.minimum(answers, keys)
    seconds: F64Array = CALL_S + found * HIT_S + (keys - found) * MISS_S
    if not blocking:
        return seconds + reads * HANDOVER_S
    waits = reads * platform.nvme_read_mean_s
    slow = np.zeros(len(waits), np.bool_)
    slow[np.argsort(waits, kind="stable")[len(waits) - len(waits) // 100 :]] = True
    waits += (slow & (reads > 0)) * (platform.nvme_read_p99_s - platform.nvme_read_mean_s)
    return seconds + waits


def batch_read_seconds(reads: float, platform: PlatformFacts) -> float:
    """Return how long the drive takes for a step's reads, all in flight together: by its latency or its rate."""
    return max(platform.nvme_read_mean_s, reads / platform.nvme_iops) if reads else 0.0
