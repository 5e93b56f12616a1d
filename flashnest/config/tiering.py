"""Tiers and the policy text. The text is checked by `policy`, not here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from flashnest.config.section import Bytes, Name, Seconds, Section, problem

PAGE_BYTES: Final = 4096
"""What one cold read takes from the drive."""


def _param(value: object) -> object:
    if isinstance(value, bool):
        raise problem(f"{value} is not a number or a text", "", 'write it like `48` or "48 tokens"')
    return str(value) if isinstance(value, float) else value  # the policy reads fractions itself, exactly


ParamValue = Annotated[str | int, BeforeValidator(_param)]


class VramTierConfig(Section):
    """The tier in GPU memory. `device` auto = the GPU where there is one, else this machine's memory."""

    capacity_bytes: Bytes = Field(alias="capacity")
    device: Literal["auto", "cuda", "cpu"] = "auto"


class DramTierConfig(Section):
    """The tier in DRAM. `eviction` says which record makes room when the tier is full and no rule does."""

    capacity_bytes: Bytes = Field(alias="capacity")
    eviction: Literal["s3fifo", "sieve", "lru"] = "s3fifo"


class NvmeTierConfig(Section):
    """The cold tier.

    `path` None = a folder of the run; `io` is how engine `slots` reads: auto probes io_uring, threads is the fallback.
    Limits (facts F20): `depth`, most reads at the drive at once; `prefetch`, most bytes asked for and not answered, a
    page a key; `concurrency`, most requests decoded at once over this tier, None = no limit of its own. `deadline`
    bounds a cold read, after it the read is a miss.
    """

    capacity_bytes: Bytes = Field(alias="capacity")
    path: str | None = None
    engine: Literal["lmdb", "slots"] = "lmdb"
    io: Literal["auto", "io_uring", "threads"] = "auto"
    depth: PositiveInt = 64
    prefetch_bytes: Bytes = Field(alias="prefetch", default=16 << 20)
    concurrency: PositiveInt | None = None
    cold_reads: Literal["async", "blocking"] = "async"
    deadline_s: Seconds = Field(alias="deadline", default=0.05)
    flush_records: PositiveInt = 4096
    flush_interval_s: Seconds = Field(alias="flush_interval", default=5.0)

    @property
    def prefetch_keys(self) -> int:
        """Most keys asked for and not answered: each costs a page of the drive."""
        return max(1, self.prefetch_bytes // PAGE_BYTES)


class TiersConfig(Section):
    """The tiers that a run opens; a tier left out or null does not exist."""

    vram: VramTierConfig | None = None
    dram: DramTierConfig | None = None
    nvme: NvmeTierConfig | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The tiers that exist, as the policy names them."""
        return tuple(name for name in type(self).model_fields if getattr(self, name) is not None)

    @model_validator(mode="after")
    def _at_least_one(self) -> Self:
        if self.dram is None and self.nvme is None and self.vram is None:
            raise problem("no tier is given", "records need a place", "add `dram: {capacity: 256MiB}` under tiers")
        return self


class TieringConfig(Section):
    """Where records live: the tiers, and the policy text with its parameters and its own tests (docs/policy.md).

    `source` is the file that the option came from, filled in by `load_run`: diagnostics name it.
    """

    name: Name
    tiers: TiersConfig
    params: Mapping[str, ParamValue] = Field(default_factory=dict)
    rules: Name
    tests: tuple[Mapping[str, object], ...] = ()
    source: str | None = None
