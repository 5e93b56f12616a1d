"""`policy check --platform`: room, latency and endurance of a policy on a platform, from counts of several sources."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from flashnest.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flashnest.policy.compile import Policy
    from flashnest.policy.diagnostics import Diagnostic
    from flashnest.policy.platform_facts import PlatformFacts
    from flashnest.policy.tiering_file import TieringFile
    from flashnest.simulate.expected import Demand

DEFAULT_LENGTHS: Final = "4,8,16,32"
"""As `decode.drafts.lengths`."""
CHUNK_SHARE: Final = 1 / 32
"""A text of n tokens has n n-grams of each length and n / 32 chunks."""
_MOST_REQUESTS: Final = 512
"""More requests of a workload are reckoned from so many: about ten seconds to make."""
_COUNT: Final = re.compile(r"(\d[\d_]*(?:\.\d+)?)([kMG]?)")
_SHARE: Final = re.compile(r"(\d{1,3}|chunk)\s*[=:]\s*(\d+(?:\.\d+)?)\s*%")
_SIZES: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


@dataclass(frozen=True, slots=True)
class BudgetOptions:
    """What a check on a platform was asked, as given on the command line; at most one of the sources is given."""

    platform: str | None = None
    records: str | None = None
    shares: str | None = None
    within: str | None = None
    workload: str | None = None
    requests: int | None = None
    trace: str | None = None
    lengths: str = DEFAULT_LENGTHS

    def check(self) -> None:
        """Raise ConfigError where the options do not go together."""
        sources = {"--records": self.records, "--workload": self.workload, "--trace": self.trace}
        given = [name for name, value in sources.items() if value is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} both say which records come", fix="give one of them")
        if given and self.platform is None:
            raise ConfigError(f"{given[0]} needs --platform", fix="add --platform rtx4090, or a platform file")
        for name, value, source in (
            ("--shares", self.shares, self.records),
            ("--within", self.within, self.records),
            ("--requests", self.requests, self.workload),
        ):
            if value is not None and source is None:
                needs = "--workload" if name == "--requests" else "--records"
                raise ConfigError(f"{name} goes with {needs}", fix=f"add {needs}, or leave {name} out")


class Budget:
    """A platform and what is expected there; read once for all files of a command."""

    def __init__(self, options: BudgetOptions) -> None:
        """Read the platform, and count or make the records. Raises ConfigError and WorkloadError."""
        from flashnest.cli.policy.platforms import platform_facts

        options.check()
        assert options.platform is not None, "there is nothing to check against"
        self.platform: PlatformFacts = platform_facts(options.platform)
        self._demand = _demand(options, self.platform)

    def findings(self, file: TieringFile, policy: Policy) -> tuple[Diagnostic, ...]:
        """Return T201, T202 and T203 of a policy that compiles. Raises ConfigError and StoreFullError."""
        from flashnest.cli.policy.traced import tier_options
        from flashnest.policy.budget_goals import check_latency, check_writes
        from flashnest.policy.budgets import check_capacity
        from flashnest.policy.platform_facts import tier_capacities
        from flashnest.record import record_bytes
        from flashnest.simulate.expected import expected_writes, tier_rooms
        from flashnest.simulate.expected_lookups import expected_lookups

        demand, options = self._demand, tier_options(file)
        nbytes = int(max(demand.records.nbytes, default=0)) or record_bytes()
        rooms = tier_rooms(tier_capacities(file, self.platform), policy, options, nbytes)
        found = check_capacity(policy, demand.records, rooms, self.platform)
        lookups = expected_lookups(policy, demand, self.platform, options)
        source = demand.records.source
        if lookups is not None:
            found += check_latency(policy, lookups, self.platform, source)
        writes = expected_writes(policy, demand, rooms, options)
        if writes is not None:
            found += check_writes(policy, writes, self.platform, source)
        return tuple(found)


def _demand(options: BudgetOptions, platform: PlatformFacts) -> Demand:
    from flashnest.simulate.expected import Demand, records_of_trace

    lengths = _lengths(options.lengths)
    if options.workload is None and options.trace is None:
        return _of_total(options, lengths, platform)
    from flashnest.cli.policy.traced import DEFAULT_REQUESTS, TraceOptions, open_stage

    wanted = options.requests or DEFAULT_REQUESTS
    made = min(wanted, _MOST_REQUESTS)
    name = options.workload or options.trace or ""
    stage = open_stage(name, TraceOptions(options.lengths, made, None, None, None), options.platform, {})
    growth = wanted / made if options.workload else 1.0
    records = records_of_trace(stage.trace, growth)
    return Demand(records, lengths, stage.trace.duration_s * growth, stage.trace)


def _of_total(options: BudgetOptions, lengths: tuple[int, ...], platform: PlatformFacts) -> Demand:
    from flashnest.policy.facts import DEFAULT_NAMESPACE
    from flashnest.record import namespace_id
    from flashnest.simulate.expected import Demand, records_in_shares
    from flashnest.units import parse_duration_s

    shares = _shares(options.shares) if options.shares else {**dict.fromkeys(lengths, 1.0), 0: CHUNK_SHARE}
    total = 1.0 if options.records is None else _count(options.records)
    words = (
        f"shares {options.shares}"
        if options.shares
        else f"as many of {', '.join(map(str, lengths))} tokens each, and 1/32 of that of chunks"
    )
    streams = f"{platform.concurrency} streams ask one question of {len(lengths)} lengths a step, all answered"
    source = f"{streams}; {words}" if options.records is None else f"counts from --records {options.records}: {words}"
    records = records_in_shares(total, shares, namespace_id(DEFAULT_NAMESPACE), source)
    return Demand(records, lengths, None if options.within is None else parse_duration_s(options.within))


def _count(text: str) -> float:
    match = _COUNT.fullmatch(text.strip())
    if match is None or not float(match[1].replace("_", "")):
        raise ConfigError(f"--records {text} is not a number of records", fix="write it like --records 100M")
    return float(match[1].replace("_", "")) * _SIZES[match[2]]


def _shares(text: str) -> Mapping[int, float]:
    found: dict[int, float] = {}
    for part in text.split(","):
        match = _SHARE.fullmatch(part.strip())
        length = -1 if match is None else 0 if match[1] == "chunk" else int(match[1])
        if match is None or length in found or not 0 <= length <= 255 or (length == 0) != (match[1] == "chunk"):
            raise ConfigError(
                f"--shares: {part.strip()!r} is not a share of a length",
                fix="write it like --shares 8=20%,32=70%,chunk=10%",
            )
        found[length] = float(match[2])
    if not sum(found.values()):
        raise ConfigError(f"--shares {text} is nothing in all", fix="write it like --shares 8=20%,32=80%")
    return found


def _lengths(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdigit() and 1 <= int(part) <= 32 for part in parts):
        raise ConfigError(f"--lengths {text} is not a list of 1 to 32", fix="write it like --lengths 8,16,32")
    return tuple(sorted({int(part) for part in parts}))
