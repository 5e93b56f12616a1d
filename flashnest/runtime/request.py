"""One request: its prompt, its sampling rules, what it has said so far, and how it ended. Decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import inf, isfinite

import numpy as np

from flashnest.errors import WorkloadError
from flashnest.record import CHUNK_TOKENS, F32Array, I32Array


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. temperature 0 is greedy; `top_p` cuts the tail of the sorted distribution.

    `top_k` 0 keeps all tokens; `min_p` drops those less likely than that share of the likeliest one. The penalties are
    vLLM's: repetition (> 1 makes it rarer) of what prompt or output hold, presence and frequency of the output alone.
    `logprobs`: how many likeliest tokens' log-probabilities are kept beside each output token's own; None keeps none.
    `stop` strings end the request; like EOS they are cut from the output. `ignore_eos` keeps going to `max_tokens`.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        """Whether the arg max decides."""
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """Whether what was said changes what is said next."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def needs_logits(self) -> bool:
        """Whether the model's arg max alone does not do."""
        return not self.greedy or self.penalised or self.logprobs is not None


MAX_PRIORITY = 10
"""Largest priority: without a bound a stream of urgent requests could keep the others waiting for ever."""

MAX_LOGPROBS = 20
"""Most likeliest tokens reported a position, as in vLLM and OpenAI's API."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one output token, natural log, of the model's own distribution: before penalties and cuts.

    `chosen`: of the token said; top_ids int32 (k,) and top float32 (k,): the likeliest, best first.
    """

    chosen: float
    top_ids: I32Array
    top: F32Array


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a workload hands to the engine.

    tokens int32 (n,), n >= 1. `reference` int32 (m,): what the emulated back end "says"; the torch back end ignores it.
    """

    tokens: I32Array
    namespace: str = "default"
    reference: I32Array | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    """Higher is served first; waiting makes up for it (`scheduler.PRIORITY_S`). At most `MAX_PRIORITY` either way."""


def check_prompt(prompt: Prompt, vocab_size: int, *, has_text: bool) -> None:
    """Raise WorkloadError for a prompt that would fail in the middle of a step, with all requests beside it.

    `has_text`: whether tokens can be turned into text, which stop strings need.
    """
    what, sampling = "", prompt.sampling
    if len(prompt.tokens) and not 0 <= int(prompt.tokens.min()) <= int(prompt.tokens.max()) < vocab_size:
        what = f"a prompt holds token ids outside 0..{vocab_size - 1}"
    elif sampling.max_tokens < 1:
        what = f"max_tokens is {sampling.max_tokens}, an answer has at least 1 token"
    elif not 0.0 <= sampling.temperature < float("inf"):
        what = f"temperature is {sampling.temperature}, it must be 0 or above"
    elif not 0.0 < sampling.top_p <= 1.0:
        what = f"top_p is {sampling.top_p}, it must be above 0 and at most 1"
    elif wrong := _wrong_number(sampling):
        what = wrong
    elif not all(sampling.stop):
        what = "a stop string is empty"
    elif abs(prompt.priority) > MAX_PRIORITY:
        what = f"priority is {prompt.priority}, it must be between -{MAX_PRIORITY} and {MAX_PRIORITY}"
    elif sampling.stop and not has_text:
        what = "stop strings need a tokenizer, and this model has none"
    if what:
        raise WorkloadError(what, why="one request's mistake must not end the others", fix="correct the request")


def _wrong_number(sampling: SamplingParams) -> str:
    if sampling.top_k < 0:
        return f"top_k is {sampling.top_k}, it must be 0 (all tokens) or above"
    if not 0.0 <= sampling.min_p <= 1.0:
        return f"min_p is {sampling.min_p}, it must be between 0 and 1"
    if not 0.0 < sampling.repetition_penalty < inf:
        return f"repetition_penalty is {sampling.repetition_penalty}, it must be above 0"
    if not (isfinite(sampling.presence_penalty) and isfinite(sampling.frequency_penalty)):
        return (
            f"presence_penalty is {sampling.presence_penalty} and frequency_penalty {sampling.frequency_penalty}, "
            "they must be finite"
        )
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= MAX_LOGPROBS:
        return f"logprobs is {sampling.logprobs}, it must be between 0 and {MAX_LOGPROBS}"
    return ""


class Finish(Enum):
    """Why a request ended."""

    EOS = "eos"
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


class Phase(Enum):
    """Where a request stands: waiting, its chunk keys asked of a cold tier, prefilling, decoding, done.

    One that was preempted waits again, with what it has said so far.
    """

    WAITING = "waiting"
    PROBING = "probing"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


@dataclass(slots=True)
class Request:
    """A request in flight. `tokens[:length]` is prompt and output so far; the engine alone changes it."""

    id: int
    prompt: Prompt
    arrived_s: float
    tokens: I32Array = field(init=False)
    length: int = field(init=False)
    computed: int = 0
    """Tokens whose KV is in the pool."""
    blocks: list[int] = field(default_factory=list)
    phase: Phase = Phase.WAITING
    finish: Finish | None = None
    stop_text: str | None = None
    """The exact text up to the stop string, where one ended the request."""
    reused_tokens: int = 0
    """Prompt tokens whose KV was there when it first started."""
    preemptions: int = 0
    """How often it lost its KV to others and computed it again."""
    token_times_s: list[float] = field(default_factory=list)
    """When each output token was committed; several tokens of one draft share a time."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """One for each output token where `SamplingParams.logprobs` asked for them, else empty."""

    def __post_init__(self) -> None:
        self.length = len(self.prompt.tokens)
        self.tokens = np.zeros(self.length + self.prompt.sampling.max_tokens, np.int32)
        self.tokens[: self.length] = self.prompt.tokens

    @property
    def prompt_length(self) -> int:
        """Tokens in the prompt."""
        return len(self.prompt.tokens)

    @property
    def priority(self) -> int:
        """Higher is served first."""
        return self.prompt.priority

    @property
    def output(self) -> I32Array:
        """The tokens said so far."""
        return self.tokens[self.prompt_length : self.length]

    @property
    def total_blocks(self) -> int:
        """KV blocks that the prompt and the longest answer take."""
        return self.blocks_needed(len(self.tokens))

    def blocks_needed(self, tokens: int) -> int:
        """Return how many KV blocks `tokens` tokens take."""
        return -(-tokens // CHUNK_TOKENS)
