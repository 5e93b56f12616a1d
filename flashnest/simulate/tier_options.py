"""What a tiering file says of its tiers beside rules and capacities, as far as a simulation asks. Opens nothing."""

from __future__ import annotations

from dataclasses import dataclass

from flashnest.errors import ConfigError
from flashnest.policy import Policy
from flashnest.record import Tier
from flashnest.simulate.room import ENGINES
from flashnest.simulate.state import EVICTIONS


@dataclass(frozen=True, slots=True)
class TierOptions:
    """What a tiering file says beside the rules and capacities.

    `eviction` of the dram tier, None: what a rule on it is `using`, else s3fifo; `engine` and `blocking` reads of the
    nvme tier, its write batches of `flush_records` or after `flush_interval_s` (a policy's `flush` comes first);
    `base_step_s`: what a step takes beside its lookups, None where it is not known.
    """

    eviction: str | None = None
    engine: str = "lmdb"
    blocking: bool = False
    flush_records: int = 4096
    flush_interval_s: float = 5.0
    base_step_s: float | None = None

    def check(self) -> None:
        """Raise ConfigError for an eviction or engine that does not exist."""
        for what, name, known in (("eviction", self.eviction, EVICTIONS), ("engine", self.engine, ENGINES)):
            if name is not None and name not in known:
                raise ConfigError(f"there is no {what} {name!r}", fix=f"name one of {', '.join(known)}")


def named_eviction(policy: Policy) -> str:
    """Return the eviction that a rule on dram is using, else the default."""
    named = (rule.using for rule in policy.moves.rules if rule.source is Tier.DRAM and rule.using in EVICTIONS)
    return next((using for using in named if using is not None), "s3fifo")
