"""Verifies the step's drafts, commits tokens one by one, and tells table and governor what became of each draft."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flashnest.record import I32Array, I64Array, U32Array
from flashnest.runtime.choosing import chosen_tokens, token_logprobs
from flashnest.runtime.drafter import Source
from flashnest.runtime.forward import Scores
from flashnest.runtime.governor import Governor
from flashnest.runtime.list_drafter import ListDrafter
from flashnest.runtime.packing import Packed
from flashnest.runtime.request import Phase, TokenLogprobs
from flashnest.runtime.scheduler import Sequence
from flashnest.runtime.verify import accepted_counts


class Committer:
    """Turns scores into committed tokens. Not thread-safe: the engine's thread owns it."""

    def __init__(self, drafter: ListDrafter, governor: Governor) -> None:
        self._drafter = drafter
        self._governor = governor
        self._counts = np.zeros((len(Source), 3), np.int64)

    def take_draft_counts(self) -> I64Array:
        """Return and reset int64 (6, 3): by `Source`, drafts verified, tokens drafted, tokens accepted."""
        counts = self._counts
        self._counts = np.zeros_like(counts)
        return counts

    def commit(self, packed: Packed, scores: Scores, now_s: float) -> int:
        """Commit every scored sequence's tokens; returns how many output tokens were kept."""
        rows = len(packed.scored)
        tried = np.zeros(rows, np.uint32)
        agreed = np.zeros(rows, np.uint32)
        kept = 0
        drafted_tokens = packed.draft_lengths.tolist()
        chosen = chosen_tokens(packed, scores)
        logprobs = token_logprobs(packed, scores, chosen)
        for row, tokens in enumerate(_verified(packed, chosen)):
            said = _append(packed.scored[row], tokens, now_s, logprobs.get(row))
            kept += said
            if drafted := drafted_tokens[row]:
                tried[row], agreed[row] = _judged(drafted, len(tokens) - 1, said)
        if packed.draft_lengths.any():
            self._drafter.feedback(self._drafter.drafts.keys[:rows], tried, agreed)
            self._record(packed.draft_lengths, tried, agreed)
        return kept

    def _record(self, drafted: I32Array, tried: U32Array, agreed: U32Array) -> None:
        drafts = self._drafter.drafts
        at = np.flatnonzero(drafted)
        sources = drafts.sources[at].astype(np.int32)
        accepted = agreed[at].astype(np.int32)
        np.add.at(self._counts, sources, np.stack((np.ones_like(accepted), drafted[at], accepted), axis=1))
        self._governor.record_drafts(sources, drafts.matched[at], tried[at].astype(np.int32), accepted)


def _verified(packed: Packed, chosen: I64Array) -> Iterator[list[int]]:
    """Yield each scored sequence's tokens: the agreed head of its draft and the model's own next one."""
    starts = packed.score_starts.tolist()
    ends = np.append(packed.score_starts, len(chosen)).astype(np.int32)
    counts = accepted_counts(packed.batch.token_ids[packed.batch.score_rows], chosen, ends).tolist()
    said = chosen.tolist()
    for start, count in zip(starts, counts, strict=True):
        yield said[start : start + count + 1]


def _judged(drafted: int, accepted: int, said: int) -> tuple[int, int]:
    """Return (tokens tried, tokens agreed) of a draft whose request kept `said` of the `accepted` tokens and one more.

    Tried are the accepted ones and the first refused. What follows the request's end inside the draft counts for
    nobody: it was never said.
    """
    if said < accepted:
        return max(said, 0), max(said, 0)
    return min(drafted, accepted + 1), accepted


def _append(sequence: Sequence, tokens: list[int], now_s: float, logprobs: list[TokenLogprobs] | None) -> int:
    """Add verified tokens to the request, up to where it ends; returns how many it kept.

    KV is in place for the accepted draft tokens, not for the model's own last one.
    """
    request = sequence.request
    before, said = request.length, request.length - request.prompt_length
    kept = len(tokens)
    if (ending := sequence.scanner.push(tokens)) is not None:
        request.finish, request.stop_text = ending.finish, ending.text
        # A stop string may begin in tokens of earlier steps: then the output shrinks.
        kept = ending.output_tokens - said
    request.tokens[before : before + max(kept, 0)] = tokens[: max(kept, 0)]
    request.length = before + kept
    request.computed = min(before + len(tokens) - 1, request.length)
    request.token_times_s.extend([now_s] * max(kept, 0))
    del request.token_times_s[said + kept :]
    if logprobs is not None:
        request.logprobs.extend(logprobs[: max(kept, 0)])
        del request.logprobs[said + kept :]
    request.phase = Phase.DECODE
    return kept
