"""A compute back end for machines that are not at hand: replays known text, takes the time that a roofline gives.

What is real: stores, policy, router, drafter, scheduler, KV block accounting, the step loop; background threads run
beside the wait, on the CPU that it leaves free. What is emulated: the forward pass. Its "arg max" is the next token of
a reference text, and its duration is `Roofline.step_seconds`:

    memory  = (weights + KV read + KV written) / bandwidth        every forward streams all weights once
    compute = (2 * params * T + 4 * layers * heads * head_dim * pairs) / (ops * efficiency)
    step    = max(memory, compute) + launch overhead

T = packed tokens, pairs = sum over new tokens of the context each attends to. 2 operations a parameter and token is one
multiply and one add (Kaplan et al., 2020, arXiv:2001.08361, 2.1); QK and PV take 2 each per head dimension. The form is
the roofline of Williams et al., CACM 2009. Facts R1: Qwen3-8B W8A8 = 8.2 GB, 8.1 ms at the 4090's 1008 GB/s; 147 KB of
KV a token; 128 streams of 740 tokens add 14 ms: 22 ms a step.

Not modelled: activations' traffic, weights that stay in the GPU's cache, PCIe, sampling on the GPU, clocks and heat. On
unified memory (DGX Spark, Strix Halo) also not: table lookups and weight reads competing for one bandwidth (facts F14).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import xxhash

from flashnest.errors import ModelError
from flashnest.record import CHUNK_TOKENS, I32Array, I64Array
from flashnest.runtime.forward import ForwardBatch, ModelSpec, Scores

LAUNCH_OVERHEAD_S: Final = 50e-6
"""Fixed cost of one forward with captured graphs: tens of launches of 1-2 us. An assumption, not measured."""

_FIRST_SLOTS: Final = 16
_FIRST_WIDTH: Final = 1024


@dataclass(frozen=True, slots=True)
class Roofline:
    """The numbers that set the length of a forward pass. Plain SI units; sources stand in the platform's file.

    `attention_ops_per_pair` = 4 * layers * query heads * head_dim. Efficiencies are shares of the sheet's peak, 0..1.
    """

    weight_bytes: float
    bandwidth_bytes_per_s: float
    kv_bytes_per_token: float
    parameters: float
    ops_per_s: float
    attention_ops_per_pair: float = 0.0
    compute_efficiency: float = 1.0
    bandwidth_efficiency: float = 1.0
    launch_overhead_s: float = LAUNCH_OVERHEAD_S

    def step_seconds(self, tokens: int, context_tokens: int, pairs: int = 0) -> float:
        """Return the seconds of one forward.

        tokens: packed tokens, whose KV is written; context_tokens: KV tokens of all sequences, the new ones included;
        pairs: sum over the packed tokens of the context tokens each attends to.
        """
        moved = self.weight_bytes + self.kv_bytes_per_token * (context_tokens + tokens)
        memory_s = moved / (self.bandwidth_bytes_per_s * self.bandwidth_efficiency)
        operations = 2.0 * self.parameters * tokens + self.attention_ops_per_pair * pairs
        compute_s = operations / (self.ops_per_s * self.compute_efficiency)
        return max(memory_s, compute_s) + self.launch_overhead_s


def sleep_until(deadline_s: float) -> None:
    """Sleep to `deadline_s` on `time.perf_counter`'s scale, leaving the CPU to other threads; never spins.

    Linux wakes a sleeper about 0.1 ms late (median here; 50 us of it the timer slack): 0.5 % of a 20 ms step.
    """
    remaining = deadline_s - time.perf_counter()
    if remaining > 0:
        time.sleep(remaining)


def emulated_spec(
    name: str,
    *,
    dtype: str,
    vocab_size: int,
    eos_ids: tuple[int, ...],
    max_context_tokens: int,
    kv_bytes_per_token: int,
) -> ModelSpec:
    """Return the spec of an emulated model. Its kv_version comes from its name and dtype: no weights exist to hash."""
    kv_version = xxhash.xxh3_64_intdigest(f"emulated {name} {dtype}".encode()) & 0xFFFFFFFF
    return ModelSpec(name, "emulated", dtype, vocab_size, eos_ids, max_context_tokens, kv_version, kv_bytes_per_token)


class EmulatedModel:
    """A `Model` that says what it was told to say. One thread calls it.

    The next token at position p of a request is token p + 1 of its prompt and reference, whatever tokens the batch
    holds: right for verifying drafts, where scores after a wrong token are thrown away. Past the reference it says EOS
    once, then tokens hashed from the position: the same each time, and not to be guessed by a draft. `Scores.logits` is
    always None: sampling is not modelled.
    """

    def __init__(
        self,
        spec: ModelSpec,
        roofline: Roofline,
        *,
        memory_bytes: float | None = None,
        clock_s: Callable[[], float] = time.perf_counter,
        wait_until: Callable[[float], None] = sleep_until,
    ) -> None:
        """`memory_bytes` is what weights and KV share on the platform; None leaves it unchecked.

        `wait_until(deadline_s)` returns no earlier than `clock_s()` reaches the deadline.
        """
        self._spec = spec
        self._roofline = roofline
        self._memory_bytes = memory_bytes
        self._clock_s = clock_s
        self._wait_until = wait_until
        self._slots: dict[int, int] = {}
        self._free: list[int] = list(range(_FIRST_SLOTS))
        self._texts = np.zeros((_FIRST_SLOTS, _FIRST_WIDTH), np.int32)
        self._lengths = np.zeros(_FIRST_SLOTS, np.int64)
        self.emulated_seconds = 0.0
        """Roofline time of all forwards so far."""
        self.late_seconds = 0.0
        """How much longer they took: late wake-ups of a busy host. What the emulation is off by."""

    @property
    def spec(self) -> ModelSpec:
        """What the engine must know of the model."""
        return self._spec

    @property
    def kv_blocks_that_fit(self) -> int | None:
        """KV blocks that the platform's memory holds beside the weights; None where its memory is not known."""
        if self._memory_bytes is None:
            return None
        free = self._memory_bytes - self._roofline.weight_bytes
        return max(0, int(free // (CHUNK_TOKENS * self._spec.kv_bytes_per_token)))

    def allocate_kv(self, blocks: int) -> None:
        """Check that `blocks` KV blocks fit beside the weights; nothing is allocated. Raises ModelError."""
        fit = self.kv_blocks_that_fit
        if fit is not None and blocks > fit:
            raise ModelError(
                f"{blocks} KV blocks of {CHUNK_TOKENS} tokens do not fit on the emulated platform",
                why=f"its memory holds {fit} beside {self._roofline.weight_bytes / 1e9:.1f} GB of weights",
                fix="make the KV pool smaller (decode.kv_pool) or pick a platform with more memory",
            )

    def register(self, request_id: int, prompt: I32Array, reference: I32Array | None) -> None:
        """Tell what request `request_id` will say: int32 (n,) prompt, int32 (m,) reference, None for nothing but EOS.

        Call before the request's first forward. Registering an id again replaces its text.
        """
        if request_id not in self._slots:
            self._slots[request_id] = self._take_slot()
        slot = self._slots[request_id]
        answer = reference if reference is not None else np.zeros(0, np.int32)
        length = len(prompt) + len(answer)
        if length > self._texts.shape[1]:
            extra = max(length, 2 * self._texts.shape[1]) - self._texts.shape[1]
            self._texts = np.pad(self._texts, ((0, 0), (0, extra)))
        self._texts[slot, : len(prompt)] = prompt
        self._texts[slot, len(prompt) : length] = answer
        self._lengths[slot] = length

    def release(self, request_id: int) -> None:
        """Forget a finished request. An unknown id is ignored."""
        slot = self._slots.pop(request_id, None)
        if slot is not None:
            self._free.append(slot)

    def forward(self, batch: ForwardBatch) -> Scores:
        """Return the reference's next tokens once the roofline's time has passed since this call began."""
        start_s = self._clock_s()
        best = self._next_tokens(batch)
        seconds = self._roofline.step_seconds(
            len(batch.token_ids), int(batch.context_lens.sum()), int(batch.positions.sum()) + len(batch.positions)
        )
        self.emulated_seconds += seconds
        self._wait_until(start_s + seconds)
        self.late_seconds += max(0.0, self._clock_s() - start_s - seconds)
        return Scores(best, None)

    def close(self) -> None:
        """Forget every request. A second call does nothing."""
        self._slots.clear()
        self._free = list(range(len(self._lengths)))

    def _take_slot(self) -> int:
        if not self._free:
            count = len(self._lengths)
            self._texts = np.pad(self._texts, ((0, count), (0, 0)))
            self._lengths = np.pad(self._lengths, (0, count))
            self._free = list(range(count, 2 * count))
        return self._free.pop()

    def _next_tokens(self, batch: ForwardBatch) -> I64Array:
        rows = np.searchsorted(batch.q_starts, batch.score_rows, side="right") - 1
        slots = self._slots_of(batch.request_ids)[rows]
        at = batch.positions[batch.score_rows] + 1
        lengths = self._lengths[slots]
        inside = at < lengths
        said = self._texts[slots, np.where(inside, at, 0)].astype(np.int64)
        past = self._past_the_end(at, lengths, batch.request_ids[rows])
        best: I64Array = np.where(inside, said, past)
        return best

    def _slots_of(self, request_ids: I64Array) -> I64Array:
        try:
            return np.array([self._slots[i] for i in request_ids.tolist()], np.int64)
        except KeyError as error:
            raise ModelError(
                f"the emulated model does not know request {error.args[0]}",
                why="it replays a reference by request, and this one was not registered",
            ) from None

    def _past_the_end(self, at: I64Array, lengths: I64Array, request_ids: I64Array) -> I64Array:
        """Return EOS at the first position past each text, then ids spread by a multiplicative hash (Knuth 6.4)."""
        seed = at.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + request_ids.astype(np.uint64)
        hashed = (seed * np.uint64(0xBF58476D1CE4E5B9)) >> np.uint64(33)
        filler: I64Array = (hashed % np.uint64(self._spec.vocab_size)).astype(np.int64)
        if self._spec.eos_ids:
            filler[np.isin(filler, self._spec.eos_ids)] = (max(self._spec.eos_ids) + 1) % self._spec.vocab_size
            filler[at == lengths] = self._spec.eos_ids[0]
        return filler
