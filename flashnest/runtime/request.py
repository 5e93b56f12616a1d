"""One request: its prompt, its sampling rules, what it has said so far, and how it ended. Decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from math import inf, isfinite

from flashnest.errors import WorkloadError
from flashnest.record import CHUNK_TOKENS, F32Array, I32Array, namespace_id, namespace_salt
from flashnest.runtime.rows import Rows


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. temperature 0 is greedy; `top_p` cuts the tail of the sorted distribution.

    `top_k` 0 keeps all tokens; `min_p` drops those less likely than that share of the likeliest one. The penalties are
    vLLM's: repetition (> 1 makes it rarer) of what prompt or output hold, presence and frequency of the output alone.
    `logprobs`: how many likeliest tokens' log-probabilities are kept beside each output token's own; None keeps none.
    `stop` strings end the request; like EOS they are cut from the output. `ignore_eos` keeps going to `max_tokens`.
    `n` answers are sampled from one prompt, the i-th with `seed` + i as in vLLM; its full KV blocks are computed once.
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
    n: int = 1

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

MAX_SAMPLES = 128
"""Most answers to one prompt, as in OpenAI's API."""

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
    """Higher is served first; waiting makes up for it (`sequence.PRIORITY_S`). At most `MAX_PRIORITY` either way."""

    def samples(self) -> tuple[Prompt, ...]:
        """Return a prompt for each of the `n` answers asked for, itself first."""
        sampling = self.sampling
        others = (replace(sampling, n=1, seed=sampling.seed + i) for i in range(1, sampling.n))
        return (self, *(replace(self, sampling=other) for other in others))


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
    if not 1 <= sampling.n <= MAX_SAMPLES:
        return f"n is {sampling.n}, it must be between 1 and {MAX_SAMPLES}"
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= MAX_LOGPROBS:
        return f"logprobs is {sampling.logprobs}, it must be between 0 and {MAX_LOGPROBS}"
    return ""


class Finish(Enum):
    """Why a request ended."""

    EOS = "eos"
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


class Phase(IntEnum):
    """Where a request stands: waiting, its chunk keys asked of a cold tier, prefilling, decoding, done.

    One that was preempted waits again, with what it has said so far. The codes of `Rows.phases`.
    """

    WAITING = 0
    PROBING = 1
    PREFILL = 2
    DECODE = 3
    DONE = 4


@dataclass(slots=True, eq=False)
class Request:
    """A request in flight. `tokens[:length]` is prompt and output so far; the engine alone changes it.

    Its text and numbers are in a row of the engine's `Rows` while it runs, in one of its own before and after.
    """

    id: int
    prompt: Prompt
    arrived_s: float
    finish: Finish | None = None
    stop_text: str | None = None
    """The exact text up to the stop string, where one ended the request."""
    reused_tokens: int = 0
    """Prompt tokens whose KV was there when it first started."""
    preemptions: int = 0
    """How often it lost its KV to others and computed it again."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """One for each output token where `SamplingParams.logprobs` asked for them, else empty."""
    samples: tuple[Request, ...] = field(default=(), repr=False)
    """All answers to its prompt, itself first; only the one that `submit` returned has them."""
    row: int = 0
    """Its row in the engine's `Rows`, while it runs."""
    _rows: Rows = field(init=False, repr=False)

    def __post_init__(self) -> None:
        sampling, count = self.prompt.sampling, len(self.prompt.tokens)
        self._rows = rows = Rows.allocate(1, count + sampling.max_tokens)
        rows.tokens[0, :count] = self.prompt.tokens
        rows.lengths[0] = rows.prompt_lengths[0] = count
        rows.limits[0] = count + sampling.max_tokens
        rows.salts[0] = namespace_salt(self.prompt.namespace)
        rows.namespaces[0] = namespace_id(self.prompt.namespace)
        rows.request_ids[0] = self.id
        rows.wants_logits[0] = sampling.needs_logits
        rows.ignores_eos[0] = sampling.ignore_eos
        rows.scans_text[0] = bool(sampling.stop)

    def move(self, rows: Rows, row: int) -> None:
        """Go on in another row; the one it had is free."""
        self._rows.copy_row(self.row, rows, row)
        self._rows, self.row = rows, row

    def leave(self) -> None:
        """Go on in a row of its own."""
        self.move(Rows.allocate(1, self.limit), 0)

    @property
    def tokens(self) -> I32Array:
        """Prompt and output, with room for the longest answer, int32 (limit,); a view."""
        return self._rows.tokens[self.row, : self.limit]

    @property
    def length(self) -> int:
        """Tokens of the prompt and the output so far."""
        return int(self._rows.lengths[self.row])

    @length.setter
    def length(self, tokens: int) -> None:
        self._rows.lengths[self.row] = tokens

    @property
    def computed(self) -> int:
        """Tokens whose KV is in the pool."""
        return int(self._rows.computed[self.row])

    @computed.setter
    def computed(self, tokens: int) -> None:
        self._rows.computed[self.row] = tokens

    @property
    def phase(self) -> Phase:
        """Where it stands."""
        return Phase(int(self._rows.phases[self.row]))

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._rows.phases[self.row] = phase

    @property
    def blocks(self) -> list[int]:
        """Its KV blocks in order; a copy."""
        blocks: list[int] = self._rows.blocks[self.row, : self._rows.block_counts[self.row]].tolist()
        return blocks

    def add_blocks(self, blocks: list[int]) -> None:
        """Hold more KV blocks."""
        self._rows.add_blocks(self.row, blocks)

    def take_blocks(self) -> list[int]:
        """Return its KV blocks, which it no longer holds."""
        return self._rows.take_blocks(self.row)

    @property
    def block_count(self) -> int:
        """KV blocks that it holds."""
        return int(self._rows.block_counts[self.row])

    @property
    def prompt_length(self) -> int:
        """Tokens in the prompt."""
        return len(self.prompt.tokens)

    @property
    def limit(self) -> int:
        """Tokens of the prompt and the longest answer."""
        return self.prompt_length + self.prompt.sampling.max_tokens

    @property
    def priority(self) -> int:
        """Higher is served first."""
        return self.prompt.priority

    @property
    def output(self) -> I32Array:
        """The tokens said so far."""
        return self.tokens[self.prompt_length : self.length]

    @property
    def token_times_s(self) -> list[float]:
        """When each output token was committed; several tokens of one draft share a time."""
        times_s: list[float] = self._rows.times_s[self.row, : self.length - self.prompt_length].tolist()
        return times_s

    @property
    def total_blocks(self) -> int:
        """KV blocks that the prompt and the longest answer take."""
        return self.blocks_needed(self.limit)

    def blocks_needed(self, tokens: int) -> int:
        """Return how many KV blocks `tokens` tokens take."""
        return -(-tokens // CHUNK_TOKENS)
