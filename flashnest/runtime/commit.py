"""Verifies the step's drafts, commits what is said, and tells table and governor what became of each draft."""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest.record import I32Array, I64Array, U8Array
from flashnest.runtime.choosing import chosen_tokens, token_logprobs
from flashnest.runtime.drafter import Drafter
from flashnest.runtime.drafts import Source
from flashnest.runtime.forward import Scores
from flashnest.runtime.governor import Governor
from flashnest.runtime.packing import Packed
from flashnest.runtime.request import Finish, Phase, TokenLogprobs
from flashnest.runtime.row_kernels import ENDED_BY_EOS, ENDED_BY_LENGTH, ONGOING, append_rows, count_kept
from flashnest.runtime.rows import Rows
from flashnest.runtime.sequence import Sequence
from flashnest.runtime.verify import accepted_counts

_FINISHES: Final = {ENDED_BY_EOS: Finish.EOS, ENDED_BY_LENGTH: Finish.LENGTH}


class Committer:
    """Turns scores into committed tokens. Not thread-safe: the engine's thread owns it."""

    def __init__(self, rows: Rows, drafter: Drafter, governor: Governor, eos_ids: tuple[int, ...]) -> None:
        self._rows = rows
        self._drafter = drafter
        self._governor = governor
        self._eos_ids = np.array(eos_ids, np.int64)
        self._counts = np.zeros((len(Source), 3), np.int64)

    def take_draft_counts(self) -> I64Array:
        """Return and reset int64 (5, 3): by `Source`, drafts verified, tokens drafted, tokens accepted."""
        counts = self._counts
        self._counts = np.zeros_like(counts)
        return counts

    def commit(self, packed: Packed, scores: Scores, now_s: float) -> int:
        """Commit every scored sequence's tokens; returns how many output tokens were kept."""
        if not len(packed.rows):
            return 0
        chosen = chosen_tokens(packed, scores)
        logprobs = token_logprobs(packed, scores, chosen)
        ends = np.append(packed.score_starts, len(chosen)).astype(np.int32)
        accepted = accepted_counts(packed.batch.token_ids[packed.batch.score_rows], chosen, ends)
        kept, endings = self._count_kept(packed, chosen, accepted)
        for at, sequence in enumerate(packed.scored):
            if sequence.scanner is not None:
                kept[at], endings[at] = _scan(packed, at, chosen, accepted), ONGOING
        self._append(packed, chosen, accepted, kept, now_s)
        for at in np.flatnonzero(endings).tolist():
            packed.scored[at].request.finish = _FINISHES[int(endings[at])]
        for at, found in logprobs.items():
            _keep_logprobs(packed.scored[at], found, int(kept[at]))
        self._judge(packed.draft_lengths, accepted, kept)
        return int(kept.sum())

    def _count_kept(self, packed: Packed, chosen: I64Array, accepted: I32Array) -> tuple[I32Array, U8Array]:
        rows = self._rows
        kept, endings = np.empty(len(packed.rows), np.int32), np.empty(len(packed.rows), np.uint8)
        count_kept(
            chosen,
            packed.score_starts,
            accepted,
            packed.rows,
            rows.lengths,
            rows.limits,
            rows.ignores_eos,
            self._eos_ids,
            kept,
            endings,
        )
        return kept, endings

    def _append(self, packed: Packed, chosen: I64Array, accepted: I32Array, kept: I32Array, now_s: float) -> None:
        rows = self._rows
        append_rows(
            chosen,
            packed.score_starts,
            accepted,
            kept,
            packed.rows,
            now_s,
            rows.tokens,
            rows.times_s,
            rows.lengths,
            rows.prompt_lengths,
            rows.computed,
        )
        rows.phases[packed.rows] = Phase.DECODE

    def _judge(self, drafted: I32Array, accepted: I32Array, kept: I32Array) -> None:
        """Tell table and governor of each draft: tokens tried are the accepted ones and the first refused.

        What follows the request's end inside the draft counts for nobody: it was never said.
        """
        ended = kept < accepted
        agreed = np.where(ended, np.maximum(kept, 0), accepted)
        tried = np.where(ended, agreed, np.minimum(drafted, accepted + 1))
        drafts = self._drafter.drafts
        if len(at := np.flatnonzero(drafted)):
            sources = drafts.sources[at].astype(np.int32)
            np.add.at(self._counts, sources, np.stack((np.ones_like(at), drafted[at], agreed[at]), axis=1))
            self._governor.record_drafts(sources, drafts.matched[at], tried[at], agreed[at])
        self._drafter.feedback(drafts.keys[: len(drafted)], tried.astype(np.uint32), agreed.astype(np.uint32))


def _scan(packed: Packed, at: int, chosen: I64Array, accepted: I32Array) -> int:
    """Look for stop strings in what a sequence said and end its request there; returns how many tokens it keeps.

    A stop string may begin in tokens of earlier steps: then the output shrinks, and the count is below 0.
    """
    sequence, start = packed.scored[at], int(packed.score_starts[at])
    request, count = sequence.request, int(accepted[at]) + 1
    if sequence.scanner is None or (ending := sequence.scanner.push(chosen[start : start + count].tolist())) is None:
        return count
    request.finish, request.stop_text = ending.finish, ending.text
    return ending.output_tokens - (request.length - request.prompt_length)


def _keep_logprobs(sequence: Sequence, found: list[TokenLogprobs], kept: int) -> None:
    logprobs = sequence.request.logprobs
    if kept < 0:
        del logprobs[kept:]
    else:
        logprobs.extend(found[:kept])
