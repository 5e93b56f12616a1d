"""Simulations as JSON, small enough to check by hand: 1000 questions, two tiers."""

from __future__ import annotations

from typing import Any


def simulated(
    policy: str = "conf/tiering/hotcold.yaml", *, dram: int = 600, nvme: int | None = 100, **changes: Any
) -> Any:
    """Return one simulation of 1000 questions with so many hits; `nvme` None: the tier is not open."""
    tiers = ("dram",) if nvme is None else ("dram", "nvme")
    hits = {"dram": dram} if nvme is None else {"dram": dram, "nvme": nvme}
    bytes_ = {tier: (index + 1) * 2**20 for index, tier in enumerate(tiers)}
    plain = {
        "policy": policy,
        "trace": "repeat_50",
        "platform": "rtx4090",
        "questions": 1000,
        "misses": 1000 - sum(hits.values()),
        "hits": hits,
        "hits_by_rule": {"1": dram, "2": nvme or 0},
        "rules": [
            [1, "place tokens >= 32 in dram"],
            [2, "place otherwise in nvme"],
            [3, "promote hits >= 3 from nvme to dram"],
        ],
        "would_have": {},
        "peak_bytes": bytes_,
        "end_bytes": bytes_,
        "series": {
            "step": [0, 50, 100],
            "hit_share": [0.0, 0.5, 1.0],
            "bytes": {tier: [0, 2**19, 2**20] for tier in tiers},
        },
        "cold_reads_per_step": {"p50": 0.0, "p99": 4.0, "most": 17.0},
        "cold_reads": 150,
        "false_reads": 3,
        "step_ms": {"p50": 22.1, "p99": 22.4, "most": 23.0},
        "lookup_us": {"p50": 26.3, "p99": 110.4, "most": 400.0},
        "nvme_written_bytes": 3 * 2**20,
        "nvme_bytes_per_s": 1024.0,
        "drive_life_years": 12.5,
        "moved_by_rule": {"3": 40},
        "ping_pongs": 2,
        "rejected": 5,
        "not_admitted": 7,
        "pushed_out": 0,
        "one_hit_wonders": 0.9,
        "hits_per_stored_byte": 0.25 / 1024,
        "belady_hit_share": 0.75,
        "requirements": [],
        "warnings": [],
    }
    return plain | changes
