"""Cold answers, a step or more after they were asked for: chunks complete a probe, n-grams become late drafts.

A late draft is advanced, not dropped: if the tokens committed meanwhile are its head, its rest is the draft.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flashnest.record import I32Array, I64Array, Tier, U8Array, U32Array
from flashnest.runtime.draft_kernels import late_answers, offer_late
from flashnest.runtime.drafts import DraftParts, Drafts
from flashnest.runtime.sequence import Sequence
from flashnest.runtime.tickets import open_tickets
from flashnest.storage.cold_reads import ColdAnswers


class LateDrafts:
    """The best late n-gram of each row until it is offered. The drafter's thread owns it."""

    def __init__(self, rows: int, words: int, ngram_lengths: I32Array) -> None:
        self._lengths = ngram_lengths
        self._rows, self._keys = np.zeros((rows, words), np.uint32), np.zeros(rows, np.uint64)
        self._matched, self._places = np.zeros(rows, np.int32), np.zeros(rows, np.int32)

    def begin(self, row: int) -> None:
        """Forget a row: another request has it now."""
        self._matched[row] = 0

    def take(self, answers: ColdAnswers, tokens: I32Array, lengths: I32Array, request_ids: I64Array) -> None:
        """Keep what a drain brought for the rows that asked: request_ids int64 (R,), negative where a row is free.

        tokens int32 (R, capacity), lengths int32 (R,): the rows' text now. Answers for chunks are not looked at.
        """
        if len(answers):
            self._take(answers, tokens, lengths, request_ids)

    def _take(self, answers: ColdAnswers, tokens: I32Array, lengths: I32Array, request_ids: I64Array) -> None:
        asked = open_tickets(answers.tickets)
        late_answers(
            answers.hit,
            asked.is_chunk,
            asked.request_id,
            asked.place,
            self._lengths[np.where(asked.is_chunk, 0, asked.length_index)],
            answers.keys,
            answers.rows,
            request_ids,
            tokens,
            lengths,
            self._rows,
            self._keys,
            self._matched,
            self._places,
        )

    def compile(self, no_ids: I64Array) -> None:
        """Load or compile the kernel that a drain reaches only where answers are."""
        none, tokens = np.zeros(0, np.uint64), np.zeros((1, 1), np.int32)
        rows = np.zeros((0, self._rows.shape[1]), np.uint32)
        self._take(ColdAnswers(np.zeros(0, np.int64), none, np.zeros(0, np.bool_), rows), tokens, tokens[0], no_ids)

    def offer(
        self,
        tokens: I32Array,
        rows: I64Array,
        lengths: I32Array,
        drafts: Drafts,
        parts: DraftParts,
        tiers: U8Array,
        matched: I32Array,
    ) -> None:
        """Make what came late the draft of those rows, int64 (n,), where it matches more; see `kernels`."""
        offer_late(
            tokens, rows, lengths, self._rows, self._keys, self._matched, self._places, drafts, parts, tiers, matched
        )


def complete_probes(answers: ColdAnswers, sequences: Mapping[int, Sequence]) -> None:
    """Hand drained answers for chunks to the sequences that asked. Requests that ended meanwhile are skipped."""
    if not len(answers):
        return
    tickets = open_tickets(answers.tickets)
    for i in np.flatnonzero(tickets.is_chunk).tolist():
        sequence = sequences.get(int(tickets.request_id[i]))
        if sequence is not None:
            _complete_probe(sequence, int(tickets.place[i]), answers.rows[i] if answers.hit[i] else None)


def _complete_probe(sequence: Sequence, chunk: int, row: U32Array | None) -> None:
    probe = sequence.probe
    if probe is None:
        return
    probe.pending -= 1
    if row is not None:
        probe.take(chunk, row, Tier.NVME)
