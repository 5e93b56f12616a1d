"""Engines on real parts for tests: tables, router, cold store, pool and model, and clocks that only the test moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from flashnest.record import CHAIN, NGRAM_LENGTHS, I32Array, Kind, Tier, U8Array, U32Array, row_kinds, row_words
from flashnest.runtime.emulated import EmulatedModel, Roofline, emulated_spec
from flashnest.runtime.engine import Engine, EngineLimits
from flashnest.runtime.events import StepEvent
from flashnest.runtime.forward import Model
from flashnest.runtime.kv_pool import BlockPool
from flashnest.runtime.model import TorchModel
from flashnest.runtime.request import Prompt, Request, SamplingParams
from flashnest.runtime.stopping import Detokenise
from flashnest.runtime.weights import tiny_qwen3, weights_fingerprint
from flashnest.storage.cold import ColdOptions, ColdTier
from flashnest.storage.lmdb import LmdbStore
from flashnest.storage.router import Router
from flashnest.storage.table import DramTable

WORDS = row_words()
EVERYTHING = 0
NOTHING = 256
MAX_STEPS = 5000
"""A run that has not ended by then hangs."""


@dataclass
class Clock:
    """Seconds that pass only when somebody waits, and by `tick_s` at each reading."""

    tick_s: float = 0.0
    random: np.random.Generator | None = None
    now_s: float = 100.0

    def __call__(self) -> float:
        self.now_s += self.tick_s * (self.random.uniform(0.1, 10.0) if self.random else 1.0)
        return self.now_s

    def wait_until(self, deadline_s: float) -> None:
        self.now_s = max(self.now_s, deadline_s)


@dataclass(frozen=True)
class FromTokens:
    """A policy: records of at least `dram_from` tokens in DRAM, shorter ones on NVMe."""

    dram_from: int
    chains: tuple[tuple[Tier, ...], ...] = ((Tier.DRAM,), (Tier.NVME,))
    admissions: tuple[None, ...] = (None, None)

    def chain_codes(self, tokens: U8Array, kind: U8Array, namespace: U32Array, nbytes: U32Array) -> U8Array:
        return (tokens < self.dram_from).astype(np.uint8)


@dataclass
class Tiers:
    """A router with what a test wants to reach behind it: `cold` is pumped every `pump_every` steps."""

    router: Router
    dram: DramTable
    cold: ColdTier | None = None
    pump_every: int = 1
    _steps: int = 0

    def after_step(self) -> None:
        self._steps += 1
        if self.cold is not None and self._steps % self.pump_every == 0:
            self.cold.pump()


@contextmanager
def open_tiers(
    path: Path | None = None,
    *,
    dram_from: int = EVERYTHING,
    dram_bytes: int = 8 << 20,
    deadline_s: float = 1e9,
    pump_every: int = 1,
    queue_keys: int = 4096,
    placement: FromTokens | None = None,
    threaded: bool = False,
) -> Iterator[Tiers]:
    """Open a DRAM table and, where there is a path, an LMDB store behind a cold tier.

    It reads only when pumped, unless `threaded`, as in a real run. `placement` overrides `dram_from`.
    """
    dram = DramTable(dram_bytes, words=WORDS, clock_s=lambda: 1, evict=False)
    cold = None
    if path is not None:
        store = LmdbStore(path, 32 << 20, words=WORDS, clock_s=lambda: 1)
        options = ColdOptions(threaded=threaded, deadline_s=deadline_s, queue_keys=queue_keys)
        cold = ColdTier(store, words=WORDS, clock_s=lambda: 1, options=options, clock=Clock())
    router = Router(dram, cold, placement or FromTokens(dram_from))
    try:
        yield Tiers(router, dram, None if threaded else cold, pump_every)
    finally:
        router.close()


class Rig:
    """An engine on `tiers`. Leaving it checks that every KV block came back."""

    def __init__(
        self,
        model: Model,
        tiers: Tiers,
        *,
        blocks: int = 128,
        max_requests: int = 8,
        max_step_tokens: int = 512,
        max_draft_tokens: int = 8,
        fixed_draft_tokens: int | None = None,
        ngram_lengths: tuple[int, ...] = NGRAM_LENGTHS,
        detokenise: Detokenise | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.model, self.tiers = model, tiers
        self.clock = clock or Clock(tick_s=1e-3)
        self.pool = BlockPool(blocks)
        model.allocate_kv(blocks)
        limits = EngineLimits(
            max_requests, max_step_tokens, max_draft_tokens, ngram_lengths, fixed_draft_tokens=fixed_draft_tokens
        )
        self.engine = Engine(model, tiers.router, self.pool, limits, detokenise=detokenise, clock_s=self.clock)
        self.events: list[StepEvent] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        self.engine.close()
        if failed is None:
            assert self.engine.idle
            assert self.pool.stats().allocated == 0

    def submit(self, prompt: Prompt) -> Request:
        request = self.engine.submit(prompt)
        if isinstance(self.model, EmulatedModel):
            for sample in request.samples:
                self.model.register(sample.id, prompt.tokens, prompt.reference)
        return request

    def step(self) -> StepEvent:
        self.events.append(self.engine.step())
        self.tiers.after_step()
        return self.events[-1]

    def finish(self) -> None:
        for _ in range(MAX_STEPS):
            if self.engine.idle:
                return
            self.step()
        raise AssertionError(f"not done after {MAX_STEPS} steps")

    def serve(self, prompts: Sequence[Prompt]) -> list[Request]:
        requests = [self.submit(prompt) for prompt in prompts]
        self.finish()
        return requests

    def say(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Serve `prompts` and return each one's output."""
        return [request.output.tolist() for request in self.serve(prompts)]

    def drafts(self) -> np.ndarray[Any, Any]:
        """Return all steps' draft counts, int64 (4, 3), see `StepEvent`."""
        return np.sum([event.drafts for event in self.events], axis=0)


@cache
def tiny_module(seed: int, vocab: int = 512, layers: int = 2, hidden: int = 64) -> tuple[Any, int]:
    """Return a random Qwen3 and its fingerprint; made once a session, so close each `TorchModel` on it."""
    module = tiny_qwen3(seed, vocab=vocab, layers=layers, hidden=hidden)
    return module, weights_fingerprint(module)


def tiny_model(seed: int = 5, **shape: int) -> TorchModel:
    module, fingerprint = tiny_module(seed, **shape)
    return TorchModel(module, fingerprint, f"tiny_qwen3-{seed}")


@cache
def reference_module(seed: int) -> Any:
    """Return a copy of `tiny_model(seed)`'s module that nobody takes over."""
    return tiny_qwen3(seed)


def generate(tokens: I32Array, count: int, *, seed: int = 5, eos: int | None = None) -> list[int]:
    """Return what Hugging Face's own greedy `generate` says after `tokens` on `tiny_model(seed)`."""
    out = reference_module(seed).generate(
        torch.from_numpy(tokens.astype(np.int64))[None],
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=eos,
        pad_token_id=0,
    )
    said: list[int] = out[0, len(tokens) :].tolist()
    return said


def emulated_model(clock: Clock, made_of: type[EmulatedModel] = EmulatedModel) -> EmulatedModel:
    """Return a back end that replays references and takes 10 ms a forward, on `clock`."""
    spec = emulated_spec(
        "emulated", dtype="w8a8", vocab_size=1000, eos_ids=(2,), max_context_tokens=8192, kv_bytes_per_token=1
    )
    roofline = Roofline(1e10, 1e12, 1.0, parameters=1.0, ops_per_s=1e12)
    return made_of(spec, roofline, clock_s=clock, wait_until=clock.wait_until)


def emulated_rig(tiers: Tiers, **options: Any) -> Rig:
    """Return a rig whose model replays references, all on one clock that forwards alone move."""
    clock = Clock()
    return Rig(emulated_model(clock), tiers, clock=clock, **options)


def text(count: int, seed: int, vocab: int = 512) -> I32Array:
    """Return random tokens, none of which is an EOS or padding id."""
    return np.random.default_rng(seed).integers(3, vocab, count).astype(np.int32)


def repetitive_prompts(
    count: int, *, seed: int = 0, vocab: int = 512, sampling: SamplingParams | None = None, namespace: str = "default"
) -> list[Prompt]:
    """Return prompts of 60 to 130 tokens cut from 6 fragments; half of them start with the same 70 tokens."""
    rng = np.random.default_rng(seed)
    fragments = [text(int(rng.integers(6, 20)), 1000 + seed * 10 + i, vocab) for i in range(6)]
    shared = text(70, 900 + seed, vocab)
    prompts = []
    for i in range(count):
        parts = [fragments[j] for j in rng.integers(0, len(fragments), 5)]
        tokens = np.concatenate(([shared] if i % 2 else []) + parts)
        prompts.append(Prompt(tokens, namespace, sampling=sampling or SamplingParams(max_tokens=24, ignore_eos=True)))
    return prompts


def spoil(tiers: Tiers, mend: Callable[[U32Array], U32Array]) -> int:
    """Replace the chains of every n-gram in DRAM by `mend(chains (n, width))`; returns how many there were."""
    batches = [(keys, rows[row_kinds(rows) == Kind.NGRAM]) for keys, rows in _ngrams(tiers)]
    for keys, rows in batches:
        rows[:, CHAIN:] = mend(rows[:, CHAIN:].copy())
        tiers.router.insert_many(keys, rows)
    return sum(len(keys) for keys, _ in batches)


def _ngrams(tiers: Tiers) -> list[tuple[np.ndarray[Any, Any], U32Array]]:
    return [(k[row_kinds(r) == Kind.NGRAM], r) for k, r in tiers.dram.scan()]
