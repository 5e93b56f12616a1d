"""What the model says at each score row of a step, by each request's own sampling rules, for all rows at once.

Commits nothing and keeps no state: history comes from the request and the draft, random numbers from (seed, position).
A row's token depends on that row alone, so neither the batch nor the drafts change an output.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from flashnest.record import I64Array
from flashnest.runtime.forward import Scores
from flashnest.runtime.packing import Packed
from flashnest.runtime.penalties import penalise
from flashnest.runtime.request import TokenLogprobs
from flashnest.runtime.sampler import row_uniforms, target_probs
from flashnest.runtime.verify import draw_many

if TYPE_CHECKING:
    import torch


def chosen_tokens(packed: Packed, scores: Scores) -> I64Array:
    """Return the token that follows each score row if the draft up to there is right, int64 (S,).

    The arg max for greedy requests, and for all where the back end has no logits.
    """
    chosen = scores.best.copy()
    if scores.logits is not None and len(packed.logit_sequences):
        chosen[packed.batch.logit_rows] = logit_tokens(packed, scores.logits)
    return chosen


def logit_tokens(packed: Packed, logits: torch.Tensor) -> I64Array:
    """Return what is said at the rows that asked for logits, int64 (L,); logits float32 (L, vocab) stays as it is."""
    owners = packed.logit_sequences
    params = [s.request.prompt.sampling for s in packed.scored]
    if any(rule.penalised for rule in params):
        logits = _penalised(packed, logits)
    tokens: I64Array = logits.argmax(-1).numpy()
    sampled = np.flatnonzero([not params[at].greedy for at in owners])
    if not len(sampled):
        return tokens
    rules = [params[at] for at in owners[sampled]]
    probs = target_probs(
        logits[sampled],
        np.array([rule.temperature for rule in rules]),
        np.array([rule.top_p for rule in rules]),
        np.array([rule.top_k for rule in rules]),
        np.array([rule.min_p for rule in rules]),
    )
    uniforms = row_uniforms([rule.seed for rule in rules], _output_positions(packed)[sampled])
    tokens[sampled] = draw_many(probs, uniforms)
    return tokens


def _output_positions(packed: Packed) -> I64Array:
    """Return the place in its request's output of the token that each logit row yields, int64 (L,), from 0."""
    owners = packed.logit_sequences
    said = np.array([s.request.length - s.request.prompt_length for s in packed.scored], np.int64)
    places: I64Array = said[owners] + packed.batch.logit_rows - packed.score_starts[owners]
    return places


def _penalised(packed: Packed, logits: torch.Tensor) -> torch.Tensor:
    logits = logits.clone()
    inputs = packed.batch.token_ids[packed.batch.score_rows]
    for at, rows in _rows_by_sequence(packed):
        request, start = packed.scored[at].request, packed.score_starts[at]
        if request.prompt.sampling.penalised:
            penalise(logits[rows], request, inputs[start + 1 : start + 1 + packed.draft_lengths[at]])
    return logits


def _rows_by_sequence(packed: Packed) -> Iterator[tuple[int, slice]]:
    """Yield each sequence that asked for logits, as its index into `packed.scored`, with its logit rows."""
    ids, starts = np.unique(packed.logit_sequences, return_index=True)
    ends = [*starts[1:].tolist(), len(packed.logit_sequences)]
    for at, start, end in zip(ids.tolist(), starts.tolist(), ends, strict=True):
        yield at, slice(start, end)


def token_logprobs(packed: Packed, scores: Scores, chosen: I64Array) -> dict[int, list[TokenLogprobs]]:
    """Return, by index into `packed.scored`, the log-probabilities at each of its score rows, where they were asked.

    chosen int64 (S,): `chosen_tokens`. They are the model's own: before temperature, penalties and cuts.
    """
    found: dict[int, list[TokenLogprobs]] = {}
    if scores.logits is None:
        return found
    tokens = chosen[packed.batch.logit_rows]
    for at, rows in _rows_by_sequence(packed):
        count = packed.scored[at].request.prompt.sampling.logprobs
        if count is None:
            continue
        logprobs = scores.logits[rows].log_softmax(-1)
        top, ids = logprobs.topk(min(count, logprobs.shape[-1]), dim=-1)
        said = logprobs.numpy()[np.arange(len(logprobs)), tokens[rows]].tolist()
        top_ids = ids.numpy().astype(np.int32)
        found[at] = [TokenLogprobs(own, top_ids[i], top.numpy()[i]) for i, own in enumerate(said)]
    return found
