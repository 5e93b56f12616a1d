"""Machines: memory, bandwidth, compute, drive, power, and what a run gets there by default. Detects nothing."""

from __future__ import annotations

from typing import Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from flashnest.config.section import Bytes, BytesPerS, Name, Seconds, Section, problem


class MemoryConfig(Section):
    """Memory of a platform. `vram` is None where GPU and CPU share `dram`, or where torch is to be asked."""

    vram_bytes: Bytes | None = Field(alias="vram")
    dram_bytes: Bytes = Field(alias="dram")
    vram_bytes_per_s: BytesPerS | None = Field(alias="vram_bandwidth")
    dram_bytes_per_s: BytesPerS | None = Field(alias="dram_bandwidth")
    host_link_bytes_per_s: BytesPerS | None = Field(alias="host_link")


class ComputeConfig(Section):
    """Dense tensor throughput."""

    tflops_fp16: PositiveFloat
    tops_int8: PositiveFloat


class NvmeConfig(Section):
    """A drive's 4 KiB random reads, its sequential rate, and the bytes that may be written to it in all (TBW)."""

    random_read_mean_s: Seconds = Field(alias="random_read_mean")
    random_read_p99_s: Seconds = Field(alias="random_read_p99")
    iops: PositiveInt
    sequential_read_bytes_per_s: BytesPerS = Field(alias="sequential_read")
    endurance_bytes: Bytes | None = Field(alias="endurance", default=None)


class PowerConfig(Section):
    """Watts of the whole machine under load, with the table in DRAM and on NVMe (facts F13)."""

    dram_w: PositiveFloat
    nvme_w: PositiveFloat


class TableBudgetConfig(Section):
    """The record table's byte budgets on a platform; tiering files point at them."""

    vram_bytes: Bytes | None = Field(alias="vram", default=None)
    dram_bytes: Bytes = Field(alias="dram")
    nvme_bytes: Bytes = Field(alias="nvme")


class LoadConfig(Section):
    """How much load a platform is given by default; workload files point at it."""

    concurrency: PositiveInt
    requests: PositiveInt


class PlatformConfig(Section):
    """One machine. `emulated` means: replay its compute; tables and disk stay this machine's own."""

    name: Name
    emulated: bool
    unified_memory: bool
    memory: MemoryConfig
    compute: ComputeConfig | None
    nvme: NvmeConfig | None
    power: PowerConfig | None
    table: TableBudgetConfig
    load: LoadConfig

    @property
    def gpu_memory_bytes(self) -> int | None:
        """Memory that holds weights and KV: VRAM, or the shared memory; None where torch must be asked."""
        return self.memory.dram_bytes if self.unified_memory else self.memory.vram_bytes

    @property
    def gpu_bytes_per_s(self) -> float | None:
        """Bandwidth of `gpu_memory_bytes`; None where unknown."""
        return self.memory.dram_bytes_per_s if self.unified_memory else self.memory.vram_bytes_per_s

    @model_validator(mode="after")
    def _numbers_to_emulate(self) -> Self:
        needed = {
            "compute": self.compute,
            "nvme": self.nvme,
            "memory.dram_bandwidth" if self.unified_memory else "memory.vram_bandwidth": self.gpu_bytes_per_s,
            "memory.dram" if self.unified_memory else "memory.vram": self.gpu_memory_bytes,
        }
        missing = [key for key, value in needed.items() if value is None]
        if self.emulated and missing:
            raise problem(
                f"platform {self.name!r} cannot be emulated: {', '.join(missing)} not given",
                "emulation replays bandwidth and compute, and a platform file states its whole machine",
                "give the numbers, or say `emulated: false` if this machine is the platform",
            )
        return self
