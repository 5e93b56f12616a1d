"""The simulation on the Mooncake traces against miss ratios that another simulator found (research/tiering.md 2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashnest.policy import compile_policy
from flashnest.record import Tier
from flashnest.simulate import TierOptions, Trace, load_trace, simulate
from flashnest.storage.table import records_within

DATA = Path(__file__).parents[3] / "shared" / "data"
"""Beside the checkout, where the work is done."""
SHARE = 0.1
"""Room for a tenth of the unique blocks."""
KNOWN = {
    "conversation": ({"s3fifo": 0.754, "sieve": 0.805, "lru": 0.722}, 0.634),
    "synthetic": ({"s3fifo": 0.739, "sieve": 0.824, "lru": 0.740}, 0.494),
}


def read(name: str) -> Trace:
    path = DATA / f"mooncake_{name}_trace.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there (Mooncake FAST'25 release, Apache-2.0)")
    return load_trace(path)


@pytest.mark.parametrize("name", KNOWN)
def test_miss_ratios_are_those_of_other_simulators(name: str) -> None:
    """Within a point: this LRU is sampled, and this S3-FIFO's main part goes round in slot order, as the table's do."""
    trace = read(name)
    known, optimum = KNOWN[name]
    records = int(SHARE * trace.records)
    for eviction, ratio in known.items():
        capacity = 48 * records
        while records_within(capacity, words=16, eviction=eviction)[0] < records:
            capacity += 600
        found = simulate(
            compile_policy("place otherwise in dram"),
            trace,
            capacities={Tier.DRAM: capacity},
            options=TierOptions(eviction=eviction),
        )
        assert found.misses / found.questions == pytest.approx(ratio, abs=0.01), eviction
        assert found.belady_hit_share == pytest.approx(1 - optimum, abs=0.002)
