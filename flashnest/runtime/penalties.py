"""Repetition, presence and frequency penalties, each verified position with the draft before it. Keeps no state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flashnest.record import I64Array
from flashnest.runtime.request import Request

if TYPE_CHECKING:
    import torch


def penalise(logits: torch.Tensor, request: Request, draft: I64Array) -> None:
    """Change the logits of one request's score rows, in place: float32 (d + 1, vocab); draft int64 (d,).

    Row i counts the draft tokens before i as said, which they are whenever the row is used. As vLLM does: repetition
    first (Keskar et al. 2019: a positive logit is divided, a negative multiplied), of prompt and output; then frequency
    times the count and presence once, of the output alone. O(length) a row: counted anew, so nothing can go stale.
    """
    params = request.prompt.sampling
    for at, row in enumerate(logits.numpy()):
        output = np.concatenate([request.output, draft[:at]]).astype(np.int64)
        if params.repetition_penalty != 1.0:
            seen = np.unique(np.concatenate([request.prompt.tokens, output]))
            values, penalty = row[seen], np.float32(params.repetition_penalty)
            row[seen] = np.where(values > 0, values / penalty, values * penalty)
        ids, counts = np.unique(output, return_counts=True)
        row[ids] -= (params.frequency_penalty * counts + params.presence_penalty).astype(np.float32)
