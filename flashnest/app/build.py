"""Builds a run's parts in the order of the card: policy, tiers, router, model, KV pool, engine, prompts."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import psutil

from flashnest.app.compute import Compute, kv_block_bytes, open_compute
from flashnest.app.tiers import open_tiers
from flashnest.app.tracing import open_trace
from flashnest.config import RunConfig
from flashnest.errors import ModelError
from flashnest.policy import Policy, compile_policy, load_tiering_file
from flashnest.record import CHUNK_TOKENS, record_bytes
from flashnest.report.figures import bytes_text
from flashnest.report.model import Section
from flashnest.runtime.engine import Engine, EngineLimits
from flashnest.runtime.forward import ModelSpec
from flashnest.runtime.forward_cost import ForwardCost
from flashnest.runtime.forward_profile import trials
from flashnest.runtime.kv_pool import BlockPool
from flashnest.runtime.request import Prompt, SamplingParams
from flashnest.storage.router import Router
from flashnest.telemetry.trace_writer import TraceWriter
from flashnest.workload.prompts import TextPrompt, Workload, repeat_prompts, words_needed
from flashnest.workload.text import load_corpus

KV_POOL_SHARE: Final = 0.25
"""Most of the free memory that the KV pool takes unless decode.kv_pool says otherwise."""


@dataclass(frozen=True, slots=True)
class App:
    """A run's parts, wired. `emulated` and `notices` are what the first lines must say.

    `nvme_reader`: the cold tier's engine and how it reads, empty where there is none.
    """

    engine: Engine
    router: Router
    pool: BlockPool
    compute: Compute
    policy: Policy
    prompts: tuple[Prompt, ...]
    workload_facts: Section
    concurrency: int
    open_tiers: tuple[str, ...]
    nvme_path: Path | None
    nvme_reader: tuple[str, str]
    title: str
    emulated: tuple[str, ...]
    notices: tuple[str, ...]
    show_progress: bool
    trace: TraceWriter | None

    def close(self) -> None:
        """Hand everything back, what was learnt to the tiers first. A second call does nothing."""
        self.engine.close()
        self.router.close()


def build(run: RunConfig, output_dir: Path) -> App:
    """Wire a run. Raises FlashnestError; what was opened before an error is closed."""
    policy = compile_run_policy(run)
    with ExitStack() as undo:
        compute = open_compute(run)
        undo.callback(compute.model.close)
        trace = open_trace(run, policy, compute.model.spec, workload_namespaces(run))
        if trace is not None:
            undo.callback(trace.close)
        tiers = open_tiers(run, policy, output_dir, compute.model.spec, trace)
        router = tiers.router
        undo.callback(router.close)
        workload = make_workload(run)
        prompts = tuple(_prompt(run, compute, text, i) for i, text in enumerate(workload.prompts))
        pool = BlockPool(_kv_blocks(run, compute, prompts))
        compute.model.allocate_kv(pool.blocks)
        engine = Engine(
            compute.model,
            router,
            pool,
            engine_limits(run),
            detokenise=compute.detokenise,
            cost=forward_cost(run, compute, pool.blocks),
        )
        undo.pop_all()
    return App(
        engine=engine,
        router=router,
        pool=pool,
        compute=compute,
        policy=policy,
        prompts=prompts,
        workload_facts=_facts(run, workload, prompts),
        concurrency=run.workload.concurrency,
        open_tiers=run.tiering.tiers.names,
        nvme_path=tiers.nvme_path,
        nvme_reader=tiers.nvme_reader,
        title=_title(run, compute.model.spec),
        emulated=compute.emulated,
        notices=tiers.notices,
        show_progress=run.progress,
        trace=trace,
    )


def compile_run_policy(run: RunConfig) -> Policy:
    """Compile the run's policy; diagnostics point at the tiering file's own lines where the text came from it."""
    tiering = run.tiering
    line, column = 1, 0
    if tiering.source is not None:
        file = load_tiering_file(Path(tiering.source))
        if file.rules == tiering.rules:
            line, column = file.first_line, file.column_offset
    return compile_policy(
        tiering.rules,
        source=tiering.source or tiering.name,
        params=tiering.params,
        tiers=tiering.tiers.names,
        first_line=line,
        column_offset=column,
    )


def engine_limits(run: RunConfig) -> EngineLimits:
    """Return what the decode section asks of the engine."""
    drafts = run.decode.drafts
    return EngineLimits(
        max_requests=run.max_requests,
        max_step_tokens=run.decode.max_step_tokens,
        max_draft_tokens=drafts.max_tokens if drafts.enabled else 0,
        ngram_lengths=drafts.lengths,
        chain_words=run.table.chain_tokens,
        sweep_budget_s=run.decode.sweep_budget_s,
        fixed_draft_tokens=drafts.fixed_tokens,
    )


def forward_cost(run: RunConfig, compute: Compute, blocks: int) -> ForwardCost | None:
    """Return what the model's forwards cost, by its profile; None where nobody asks or nothing is known yet."""
    drafts = run.decode.drafts
    if compute.profile is None or not drafts.enabled or drafts.fixed_tokens is not None:
        return None
    return ForwardCost(compute.profile(trials(compute.model.spec.max_context_tokens), blocks))


def make_workload(run: RunConfig) -> Workload:
    """Make the run's prompts as text."""
    load = run.workload
    words = words_needed(
        load.requests, fragments=load.fragments, fragment_words=load.fragment_words, hot_fragments=load.hot_fragments
    )
    corpus = load_corpus(load.text, min_words=words)
    return repeat_prompts(
        corpus,
        count=load.requests,
        repeat_share=load.repeat_share,
        output_tokens=load.output_tokens,
        echo_share=load.echo_share,
        namespaces=workload_namespaces(run),
        fragments=load.fragments,
        fragment_words=load.fragment_words,
        hot_fragments=load.hot_fragments,
    )


def workload_namespaces(run: RunConfig) -> tuple[str, ...]:
    """Return the tenants that the run's prompts are dealt to."""
    count = run.workload.namespaces
    return tuple(f"tenant-{i}" for i in range(count)) if count > 1 else ("default",)


def _prompt(run: RunConfig, compute: Compute, text: TextPrompt, index: int) -> Prompt:
    load, decode = run.workload, run.decode
    reference = compute.encode(text.reference_text)[: load.output_tokens] if compute.emulated else None
    return Prompt(
        tokens=compute.encode(text.text),
        namespace=text.namespace,
        reference=reference,
        sampling=SamplingParams(
            max_tokens=load.output_tokens,
            temperature=decode.temperature,
            top_p=decode.top_p,
            top_k=decode.top_k,
            min_p=decode.min_p,
            repetition_penalty=decode.repetition_penalty,
            presence_penalty=decode.presence_penalty,
            frequency_penalty=decode.frequency_penalty,
            seed=run.seed + index,
            stop=decode.stop,
            ignore_eos=decode.ignore_eos,
        ),
    )


def _kv_blocks(run: RunConfig, compute: Compute, prompts: tuple[Prompt, ...]) -> int:
    """Return the KV pool's size: what was asked for, else what all prompts would take, within a share of memory."""
    block = kv_block_bytes(compute.model)
    if run.decode.kv_pool_bytes is not None:
        return max(1, run.decode.kv_pool_bytes // block)
    sizes = sorted((-(-(len(p.tokens) + p.sampling.max_tokens) // CHUNK_TOKENS) for p in prompts), reverse=True)
    wanted, needed = sum(sizes), sizes[0]
    limit = compute.kv_blocks_limit
    if limit is None:
        limit = int(psutil.virtual_memory().available * KV_POOL_SHARE) // block
    if limit < needed:
        raise ModelError(
            f"one request needs {needed} KV blocks of {bytes_text(block)}, there is room for {limit}",
            why="weights and KV share the memory",
            fix="shorten prompts or outputs, or give the pool more: decode.kv_pool=SIZE",
        )
    return min(wanted, limit)


def _facts(run: RunConfig, workload: Workload, prompts: tuple[Prompt, ...]) -> Section:
    return {
        "name": run.workload.name,
        "source": workload.source,
        "requests": len(prompts),
        "concurrency": run.workload.concurrency,
        "repeat_share": workload.repeat_share,
        "measured_repeat_share": workload.measured_repeat_share,
        "measured_prefix_share": workload.measured_prefix_share,
        "mean_prompt_tokens": float(np.mean([len(p.tokens) for p in prompts])),
        "output_tokens": run.workload.output_tokens,
        "record_bytes": record_bytes(run.table.chain_tokens),
    }


def _title(run: RunConfig, spec: ModelSpec) -> str:
    load = run.workload
    return (
        f"{run.model.name} ({spec.dtype}, {spec.back_end}) on {run.platform.name}, tiering {run.tiering.name}, "
        f"{load.name}: {load.requests} requests, {load.concurrency} at once, storage latency real"
    )
