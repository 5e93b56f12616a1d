"""Measures what forwards of a model cost on this machine, once, and keeps the figures in the user's cache.

A profile is a list of (shape, seconds), from which `ForwardCost` starts. It is kept per weights, dtype, device,
threads, processor and torch version; a file that is damaged or of another make is measured again. Nothing depends on
it: an engine without a profile learns the same from its first hundred steps. Decides no draft.
"""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash

from flashnest.record import CHUNK_TOKENS
from flashnest.runtime.forward import ForwardBatch, Model
from flashnest.runtime.forward_cost import ForwardShape
from flashnest.telemetry.machine import machine

Profile = list[tuple[ForwardShape, float]]

FORMAT: Final = 1
"""Raised when trials or forwards change so that old figures mislead."""
BUDGET_S: Final = 2.0
"""Time for measuring after each trial ran once, which may take three times as long. A slow model gets fewer trials: the
first ones tell most."""
PASSES: Final = 5
_UNTIMED: Final = 2
"""The first forwards may compile kernels for 10 s, which some forward must: they say nothing of the others' time."""
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trial:
    """A forward to measure: `rows` sequences that bring `new` tokens each and hold `context` tokens after it.

    `scored`: tokens of each sequence that go through the head, its last ones.
    """

    rows: int
    new: int
    context: int
    scored: int

    @property
    def shape(self) -> ForwardShape:
        """The forward's shape."""
        counts = np.full(self.rows, self.new, np.int64)
        return ForwardShape.of_pieces(counts, np.full(self.rows, self.context), self.rows * self.scored)


def trials(max_context_tokens: int) -> list[Trial]:
    """Return the forwards to measure, the most telling first: loads, drafts, contexts, prompts.

    The same for every run, whatever its load: so one profile serves them all.
    """
    decode = [Trial(rows, 1, 256, 1) for rows in (1, 8, 32, 128, 4, 16, 64, 2)]
    drafts = [
        Trial(rows, new, 256, new)
        for rows, new in ((1, 5), (8, 5), (1, 9), (1, 17), (8, 9), (32, 5), (1, 3), (8, 17), (32, 2))
    ]
    contexts = [Trial(8, 1, 1024, 1), Trial(8, 9, 1024, 9), Trial(32, 1, 600, 1)]
    prompts = [Trial(1, new, new, 1) for new in (128, 32, 512, 256)]
    wanted = [*decode[:2], *drafts[:2], *contexts[:1], *prompts[:1], *decode[2:], *drafts[2:], *contexts[1:]]
    return [trial for trial in (*wanted, *prompts[1:]) if trial.context <= max_context_tokens]


def measure(
    model: Model,
    blocks: int,
    wanted: Sequence[Trial],
    *,
    budget_s: float = BUDGET_S,
    clock_s: Callable[[], float] = time.perf_counter,
) -> Profile:
    """Run the trials on `model`, whose KV pool has `blocks` blocks that nobody uses yet; returns the fastest of each.

    The fastest, because what disturbs only ever adds. Trials that need more blocks than there are share them: wrong
    answers in the same time. To be called before the first request.
    """
    batches = [(trial, _batch(trial, blocks, model.spec.vocab_size)) for trial in wanted]
    ready: list[tuple[Trial, ForwardBatch]] = []
    started_s = clock_s()
    for trial, batch in batches:
        model.forward(batch)  # not counted: kernels are loaded and memory is laid out at the first of a shape
        ready.append((trial, batch))
        if len(ready) == _UNTIMED:
            started_s = clock_s()
        elif len(ready) > _UNTIMED and clock_s() - started_s > 3 * budget_s:
            break
    best: dict[Trial, float] = {}
    started_s = clock_s()
    for _ in range(PASSES):
        for trial, batch in ready:
            if clock_s() - started_s > budget_s:
                break
            before_s = clock_s()
            model.forward(batch)
            seconds = clock_s() - before_s
            best[trial] = min(best.get(trial, math.inf), seconds)
    return [(trial.shape, seconds) for trial, seconds in best.items() if seconds > 0]


def profile_of(model: Model, blocks: int, wanted: Sequence[Trial], *, device: str, threads: int) -> Profile:
    """Return the model's profile from the cache, else measure it and keep it there.

    device, threads: what torch computes on and with. A cache that cannot be written is only noted in the log.
    """
    facts = _facts(model, device, threads)
    path = profile_path(facts)
    profile = read_profile(path, facts)
    if profile is None:
        profile = measure(model, blocks, wanted)
        write_profile(path, facts, profile)
    return profile


def profile_path(facts: Mapping[str, Any]) -> Path:
    """Return the file of the profile with these facts."""
    from flashnest.runtime.model_source import models_cache  # brings torch, which an emulated run does without

    digest = xxhash.xxh3_128_hexdigest(json.dumps(facts, sort_keys=True).encode())
    return models_cache().parent / "profiles" / f"{digest}.json"


def read_profile(path: Path, facts: Mapping[str, Any]) -> Profile | None:
    """Return the profile in `path`; None where there is none, or none of these facts, or nothing that can be one."""
    try:
        found = json.loads(path.read_text())
        if found["facts"] != facts:
            return None
        profile = [(ForwardShape(*map(int, point[:4])), float(point[4])) for point in found["points"]]
    except (OSError, ValueError, TypeError, LookupError):
        return None
    good = all(0 < seconds < math.inf and min(astuple(shape)) > 0 for shape, seconds in profile)
    return profile if profile and good else None


def write_profile(path: Path, facts: Mapping[str, Any], profile: Profile) -> None:
    """Keep `profile` in `path`, whole or not at all."""
    points = [[*astuple(shape), seconds] for shape, seconds in profile]
    text = json.dumps({"facts": facts, "points": points}, indent=1)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError as error:
        _LOG.warning("the forward profile is not kept: %s", error)


def _facts(model: Model, device: str, threads: int) -> dict[str, Any]:
    spec = model.spec
    return {
        "format": FORMAT,
        "kv_version": spec.kv_version,
        "dtype": spec.dtype,
        "device": device,
        "threads": threads,
        "cpu": machine().cpu,
        "torch": version("torch"),
    }


def _batch(trial: Trial, blocks: int, vocab_size: int) -> ForwardBatch:
    rows, new, width = trial.rows, trial.new, -(-trial.context // CHUNK_TOKENS)
    tokens = rows * new
    rng = np.random.default_rng(0)
    places = np.arange(tokens, dtype=np.int64).reshape(rows, new)
    return ForwardBatch(
        token_ids=rng.integers(0, vocab_size, tokens),
        positions=np.tile(np.arange(trial.context - new, trial.context, dtype=np.int64), rows),
        q_starts=np.arange(0, tokens + 1, new, dtype=np.int32),
        context_lens=np.full(rows, trial.context, np.int32),
        block_tables=(np.arange(rows * width, dtype=np.int32) % blocks).reshape(rows, width),
        score_rows=places[:, new - trial.scored :].ravel(),
        request_ids=np.arange(rows, dtype=np.int64),
        logit_rows=np.zeros(0, np.int64),
    )
