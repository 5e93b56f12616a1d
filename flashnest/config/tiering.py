"""Tiers and the policy text. The text is checked by `policy`, not here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from flashnest.config.section import Bytes, Name, Seconds, Section, problem


def _param(value: object) -> object:
    if isinstance(value, bool):
        raise problem(f"{value} is not a number or a text", "", 'write it like `48` or "48 tokens"')
    return str(value) if isinstance(value, float) else value  # the policy reads fractions itself, exactly


ParamValue = Annotated[str | int, BeforeValidator(_param)]


class MemoryTierConfig(Section):
    """A tier in DRAM or VRAM."""

    capacity_bytes: Bytes = Field(alias="capacity")


class NvmeTierConfig(Section):
    """The cold tier. `path` None = a folder of the run; `deadline` bounds a cold read, after it the read is a miss."""

    capacity_bytes: Bytes = Field(alias="capacity")
    path: str | None = None
    engine: Literal["lmdb"] = "lmdb"
    depth: PositiveInt = 64
    cold_reads: Literal["async", "blocking"] = "async"
    deadline_s: Seconds = Field(alias="deadline", default=0.05)
    flush_records: PositiveInt = 4096
    flush_interval_s: Seconds = Field(alias="flush_interval", default=5.0)


class TiersConfig(Section):
    """The tiers that a run opens; a tier left out or null does not exist."""

    vram: MemoryTierConfig | None = None
    dram: MemoryTierConfig | None = None
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
