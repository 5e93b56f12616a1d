"""One request: its prompt, its sampling rules, what it has said so far, and how it ended. Decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from flashnest.errors import WorkloadError
from flashnest.record import CHUNK_TOKENS, I32Array


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. temperature 0 is greedy; `top_p` cuts the tail of the sorted distribution.

    `stop` strings end the request; like EOS they are cut from the output. `ignore_eos` keeps going to `max_tokens`.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    @property
    def greedy(self) -> bool:
        """Whether the arg max decides."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a workload hands to the engine.

    tokens int32 (n,), n >= 1. `reference` int32 (m,): what the emulated back end "says"; the torch back end ignores it.
    """

    tokens: I32Array
    namespace: str = "default"
    reference: I32Array | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)


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
    elif not all(sampling.stop):
        what = "a stop string is empty"
    elif sampling.stop and not has_text:
        what = "stop strings need a tokenizer, and this model has none"
    if what:
        raise WorkloadError(what, why="one request's mistake must not end the others", fix="correct the request")


class Finish(Enum):
    """Why a request ended."""

    EOS = "eos"
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


class Phase(Enum):
    """Where a request stands: waiting, its chunk keys asked of a cold tier, prefilling, decoding, done."""

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
    token_times_s: list[float] = field(default_factory=list)
    """When each output token was committed; several tokens of one draft share a time."""

    def __post_init__(self) -> None:
        self.length = len(self.prompt.tokens)
        self.tokens = np.zeros(self.length + self.prompt.sampling.max_tokens, np.int32)
        self.tokens[: self.length] = self.prompt.tokens

    @property
    def prompt_length(self) -> int:
        """Tokens in the prompt."""
        return len(self.prompt.tokens)

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
