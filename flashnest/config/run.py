"""RunConfig: one run, whole. The parts that have a Hydra group of their own are in their own modules."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from flashnest.config.model import ModelConfig
from flashnest.config.platform import PlatformConfig
from flashnest.config.section import Bytes, Name, Pause, Section, problem
from flashnest.config.tiering import TieringConfig
from flashnest.config.workload import WorkloadConfig
from flashnest.record import (
    CHUNK_TOKENS,
    MAX_CHAIN_WORDS,
    MAX_NGRAM_LENGTHS,
    MAX_NGRAM_TOKENS,
    MIN_CHAIN_WORDS,
    NGRAM_LENGTHS,
)


class TableConfig(Section):
    """The records: how many continuation tokens each keeps, and how many different keys rules with a time tell apart.

    `window_keys`: keys seen within the longest `hits in` or `after` of the policy. At twice as many, one key in seven
    that was never seen counts as seen; at eight times nearly all do. 11 to 21 bytes of DRAM each, for each such time.
    """

    chain_tokens: Annotated[int, Field(ge=MIN_CHAIN_WORDS, le=MAX_CHAIN_WORDS)] = 8
    window_keys: PositiveInt = 1 << 20


def _read_governor(value: object) -> object:
    """Read on, off or a length; YAML has made booleans of the first two where they stand in a file."""
    if value is True or value == "on":
        return "on"
    if value is False or value == "off":
        return "off"
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    if isinstance(value, int) and value > 0:
        return value
    raise problem(
        f"governor is {value!r}",
        "it weighs each draft (on), lets every draft have its full length (off), or has them cut to one length",
        "say on, off, or a number of tokens",
    )


class DraftsConfig(Section):
    """Drafting: `lengths` are the n-gram lengths looked up, ascending.

    `governor`: "on" weighs how many draft tokens are worth verifying; "off" verifies up to `max_tokens`, whatever that
    costs; a number verifies that many, at most `max_tokens`.
    """

    enabled: bool = True
    governor: Annotated[Literal["on", "off"] | PositiveInt, BeforeValidator(_read_governor)] = "on"
    max_tokens: PositiveInt = 16
    lengths: tuple[Annotated[int, Field(ge=1, le=MAX_NGRAM_TOKENS)], ...] = Field(
        default=NGRAM_LENGTHS, min_length=1, max_length=MAX_NGRAM_LENGTHS
    )

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if list(self.lengths) != sorted(set(self.lengths)):
            raise problem(
                f"lengths {list(self.lengths)} are not ascending", "the longest match wins, searched in order"
            )
        return self

    @property
    def fixed_tokens(self) -> int | None:
        """The length of every draft; None where the governor weighs them."""
        if self.governor == "on":
            return None
        return self.max_tokens if self.governor == "off" else self.governor


class DecodeConfig(Section):
    """The decode loop. `max_requests` None = workload.concurrency; `kv_pool` None = a share of the free memory.

    `sweep_budget` is the time that moving records between tiers may take after each step; 0s switches it off.
    """

    max_step_tokens: Annotated[int, Field(ge=CHUNK_TOKENS)] = 512
    max_requests: PositiveInt | None = None
    kv_pool_bytes: Bytes | None = Field(alias="kv_pool", default=None)
    temperature: NonNegativeFloat = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: NonNegativeInt = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    presence_penalty: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    frequency_penalty: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    ignore_eos: bool = True
    stop: tuple[Name, ...] = ()
    drafts: DraftsConfig = DraftsConfig()
    sweep_budget_s: Pause = Field(alias="sweep_budget", default=500e-6)


class ReportConfig(Section):
    """Where report.json goes; None = the run's folder."""

    path: str | None = None


class TraceConfig(Section):
    """The record of what the table is asked and taught, for `flash-nest policy simulate`; `path` None = none is kept.

    `limit`: recording ends when the file would grow beyond it; the run goes on.
    """

    path: str | None = None
    limit_bytes: Bytes = Field(alias="limit", default=4 << 30)


class RunConfig(Section):
    """One run. Built by `load.load_run`, Hydra's only door; the name of a part is its option's name."""

    platform: PlatformConfig
    tiering: TieringConfig
    workload: WorkloadConfig
    model: ModelConfig
    table: TableConfig = TableConfig()
    decode: DecodeConfig = DecodeConfig()
    report: ReportConfig = ReportConfig()
    trace: TraceConfig = TraceConfig()
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    progress: bool = True
    debug: bool = False

    @property
    def max_requests(self) -> int:
        """Requests decoded at once: no more than the nvme tier's own limit allows."""
        wanted = self.decode.max_requests or self.workload.concurrency
        nvme = self.tiering.tiers.nvme
        return wanted if nvme is None or nvme.concurrency is None else min(wanted, nvme.concurrency)

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
