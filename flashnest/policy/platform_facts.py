"""What the policy tools know of a platform: byte budgets, the drive, concurrency; and what a tiering file gets there.

Plain numbers, read elsewhere (`flashnest.cli.policy.platforms`). Reads no file and detects nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from flashnest.errors import ConfigError
from flashnest.policy.facts import TIERS
from flashnest.policy.tiering_file import TieringFile
from flashnest.record import Tier
from flashnest.units import UnitError, parse_bytes

_TABLE_REFERENCE: Final = re.compile(r"\$\{platform\.table\.(\w+)\}")


@dataclass(frozen=True, slots=True)
class PlatformFacts:
    """One machine. `vram_bytes`, `dram_bytes`, `nvme_bytes` are the table's budgets there, not its whole memory.

    The drive's figures are for 4 KiB random reads; `nvme_endurance_bytes` is what its sheet warrants to be written in
    all (TBW), None where the platform file does not say. `concurrency` is how many requests are decoded at once.
    """

    name: str
    vram_bytes: int | None
    dram_bytes: int
    nvme_bytes: int
    nvme_read_mean_s: float
    nvme_read_p99_s: float
    nvme_iops: int
    nvme_endurance_bytes: int | None
    concurrency: int
    memory_dram_bytes: int | None = None
    """The machine's whole DRAM; None where the platform file leaves it to the operating system."""
    memory_vram_bytes: int | None = None
    """The GPU's whole memory; None where GPU and CPU share DRAM, or where the file does not say."""
    unified_memory: bool = False
    nvme_sequential_bytes_per_s: float = 7450e6
    drive_assumed: bool = False
    """The platform file has no drive: the figures are those of facts F15, and whatever is predicted has to say so."""

    def table_bytes(self, tier: Tier) -> int | None:
        """Return the table's budget in a tier, None where the platform has none."""
        return {Tier.VRAM: self.vram_bytes, Tier.DRAM: self.dram_bytes, Tier.NVME: self.nvme_bytes}[tier]


def tier_capacities(file: TieringFile, platform: PlatformFacts) -> dict[Tier, int]:
    """Return the bytes of each tier that a tiering file opens on a platform, fastest first.

    A plain policy text opens all tiers with the platform's budgets. Raises ConfigError where a capacity is missing,
    is no size, or points elsewhere than `${platform.table.TIER}`.
    """
    if file.tiers is None:
        budgets = {tier: platform.table_bytes(tier) for tier in Tier}
        return {tier: room for tier, room in budgets.items() if room is not None}
    opened = sorted((tier for name, tier in TIERS.items() if name in file.tiers), key=int)
    return {tier: _capacity(file, tier, platform) for tier in opened}


def _capacity(file: TieringFile, tier: Tier, platform: PlatformFacts) -> int:
    name = tier.name.lower()
    given = (file.settings or {}).get(name, {}).get("capacity")
    where = f"{file.path}: tiers.{name}.capacity"
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise ConfigError(f"{where} is not given", fix=f"write it like `{name}: {{capacity: 14GiB}}`")
    reference = _TABLE_REFERENCE.fullmatch(str(given).strip())
    if reference is not None:
        return _table_capacity(where, reference[1], platform)
    try:
        return parse_bytes(str(given))
    except UnitError as error:
        fix = "write a size, or ${platform.table.dram}" if "${" in str(given) else error.fix
        raise ConfigError(f"{where}: {error.what}", why=error.why, fix=fix) from error


def _table_capacity(where: str, word: str, platform: PlatformFacts) -> int:
    room = platform.table_bytes(TIERS[word]) if word in TIERS else None
    if room is None:
        raise ConfigError(
            f"{where}: platform {platform.name} has no table.{word}",
            fix=f"give it in the platform file, or write a size such as `capacity: 1GiB` ({', '.join(TIERS)} exist)",
        )
    return room
