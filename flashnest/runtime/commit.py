"""Verifies the step's drafts, commits tokens one by one, and tells table and governor what became of each draft."""

from __future__ import annotations

import numpy as np

from flashnest.record import I32Array, I64Array
from flashnest.runtime.drafter import Drafter, Source
from flashnest.runtime.forward import Scores
from flashnest.runtime.governor import Governor
from flashnest.runtime.packing import Packed
from flashnest.runtime.request import Phase
from flashnest.runtime.sampler import position_uniforms, target_probs
from flashnest.runtime.scheduler import Sequence
from flashnest.runtime.verify import accept_greedy, accept_sampled


class Committer:
    """Turns scores into committed tokens. Not thread-safe: the engine's thread owns it."""

    def __init__(self, drafter: Drafter, governor: Governor) -> None:
        self._drafter = drafter
        self._governor = governor
        self._counts = np.zeros((len(Source), 3), np.int64)

    def take_draft_counts(self) -> I64Array:
        """Return and reset int64 (4, 3): by `Source`, drafts verified, tokens drafted, tokens accepted."""
        counts = self._counts
        self._counts = np.zeros_like(counts)
        return counts

    def commit(self, packed: Packed, scores: Scores, now_s: float) -> int:
        """Commit every scored sequence's tokens; returns how many output tokens were kept."""
        rows = len(packed.scored)
        tried = np.zeros(rows, np.uint32)
        agreed = np.zeros(rows, np.uint32)
        kept = 0
        for row, sequence in enumerate(packed.scored):
            start, drafted = int(packed.score_starts[row]), int(packed.draft_lengths[row])
            tokens = self._verified(row, sequence, start, drafted, scores)
            said = _append(sequence, tokens, now_s)
            kept += said
            if drafted:
                tried[row], agreed[row] = _judged(drafted, len(tokens) - 1, said)
                self._count(row, drafted, int(tried[row]), int(agreed[row]))
        if rows:
            self._drafter.feedback(self._drafter.drafts.keys[:rows], tried, agreed)
        return kept

    def _verified(self, row: int, sequence: Sequence, start: int, drafted: int, scores: Scores) -> I32Array:
        draft = self._drafter.drafts.tokens[row, :drafted]
        params = sequence.request.prompt.sampling
        span = slice(start, start + drafted + 1)
        if params.greedy or scores.logits is None:
            return accept_greedy(draft, scores.best[span])
        probs = target_probs(scores.logits[span], params.temperature, params.top_p)
        said = sequence.request.length - sequence.request.prompt_length
        return accept_sampled(draft, probs, position_uniforms(params.seed, said, drafted + 1))

    def _count(self, row: int, drafted: int, tried: int, accepted: int) -> None:
        drafts = self._drafter.drafts
        source = int(drafts.sources[row])
        self._counts[source] += (1, drafted, accepted)
        self._governor.record_draft(source, int(drafts.matched[row]), tried, accepted)


def _judged(drafted: int, accepted: int, said: int) -> tuple[int, int]:
    """Return (tokens tried, tokens agreed) of a draft whose request kept `said` of the `accepted` tokens and one more.

    Tried are the accepted ones and the first refused. What follows the request's end inside the draft counts for
    nobody: it was never said.
    """
    if said < accepted:
        return max(said, 0), max(said, 0)
    return min(drafted, accepted + 1), accepted


def _append(sequence: Sequence, tokens: I32Array, now_s: float) -> int:
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
    request.phase = Phase.DECODE
    return kept
