"""Cold answers, a step or more after they were asked for: chunks complete a probe, n-grams become late drafts.

A late draft is advanced, not dropped: if the tokens committed meanwhile are its head, its rest is the draft.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flashnest.record import CHAIN, I32Array, Kind, U32Array, row_chain_lengths, row_kinds
from flashnest.runtime.scheduler import LateDraft, Sequence
from flashnest.runtime.tickets import Ticket, open_ticket
from flashnest.storage.cold_reads import ColdAnswers


class LateAnswers:
    """Hands drained answers to the sequences that asked. Requests that ended meanwhile are skipped."""

    def __init__(self, ngram_lengths: I32Array) -> None:
        self._lengths = ngram_lengths

    def take(self, answers: ColdAnswers, sequences: Mapping[int, Sequence]) -> None:
        """Deliver one drain's answers."""
        for i, number in enumerate(answers.tickets.tolist()):
            ticket = open_ticket(number)
            sequence = sequences.get(ticket.request_id)
            if sequence is None:
                continue
            row = answers.rows[i] if answers.hit[i] else None
            if ticket.is_chunk:
                _complete_probe(sequence, ticket, row)
            elif row is not None:
                self._keep_draft(sequence, ticket, row, int(answers.keys[i]))

    def _keep_draft(self, sequence: Sequence, ticket: Ticket, row: U32Array, key: int) -> None:
        request = sequence.request
        skip = request.length - ticket.place
        count = int(row_chain_lengths(row[None])[0])
        if row_kinds(row[None])[0] != Kind.NGRAM or skip >= count:
            return
        committed = request.tokens[ticket.place : request.length]
        if not np.array_equal(row[CHAIN : CHAIN + skip].astype(np.int32), committed):
            return
        late = LateDraft(row.copy(), key, int(self._lengths[ticket.length_index]), skip)
        if sequence.late is None or late.matched + late.skip > sequence.late.matched + sequence.late.skip:
            sequence.late = late


def _complete_probe(sequence: Sequence, ticket: Ticket, row: U32Array | None) -> None:
    probe = sequence.probe
    if probe is None:
        return
    probe.pending -= 1
    if row is not None:
        probe.take(ticket.place, row)
