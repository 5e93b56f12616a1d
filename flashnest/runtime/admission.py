"""How waiting requests start: chunks asked of the table, verified blocks shared, room found. Schedules nothing else."""

from __future__ import annotations

from flashnest.runtime.lookup_counts import LookupCounter
from flashnest.runtime.prefix_cache import PrefixCache, Probe
from flashnest.runtime.request import Phase
from flashnest.runtime.rows import Rows
from flashnest.runtime.scheduler import Scheduler
from flashnest.runtime.sequence import Sequence


class Admission:
    """Starts requests in order of rank. Not thread-safe: the engine's thread owns it."""

    def __init__(self, scheduler: Scheduler, cache: PrefixCache, rows: Rows, lookups: LookupCounter) -> None:
        self._scheduler, self._cache, self._rows, self._lookups = scheduler, cache, rows, lookups

    def seat(self) -> list[Sequence]:
        """Give free rows to the best ranked that wait, and ask for their chunks; returns who was seated."""
        seated = []
        while (sequence := self._scheduler.next_waiting()) is not None:
            request = sequence.request
            sequence.lineage = self._cache.lineage(int(self._rows.salts[request.row]))
            sequence.probe = self._cache.probe(request, sequence.lineage)
            request.phase = Phase.PROBING
            seated.append(sequence)
        return seated

    def start(self) -> None:
        """Start those whose chunks are all answered and that the pool has room for, by rank."""
        for sequence in [s for s in self._scheduler.running if s.probe is not None]:
            probe = sequence.probe  # None by now if it was displaced by one before it
            if probe is None or probe.pending or self._cache.pending.waits(probe):
                continue
            if not self._start(sequence, probe):
                break  # those after it wait for the same blocks

    def forget_preempted(self) -> None:
        """Let those who wait for chunks of a preempted request compute them."""
        for sequence in self._scheduler.take_preempted():
            self._cache.pending.drop(sequence.request.id)

    def _start(self, sequence: Sequence, probe: Probe) -> bool:
        """Give the sequence shared blocks and room for the rest, or False.

        While it waits for room it holds nothing: two that wait with half their blocks each would wait for ever.
        """
        request = sequence.request
        if not self._scheduler.has_room(sequence, self._cache.held_by_others(probe)):
            return False
        self._cache.reuse(request, probe, sequence.lineage)
        if not self._scheduler.reserve(sequence):
            self._cache.give_back(request, probe, sequence.lineage)
            return False
        self._cache.pending.claim(request.id, probe.keys.keys[sequence.lineage.chunks :])
        sequence.probe = None
        if not request.preemptions:
            self._rows.learned[request.row] = request.reused_tokens
        self._lookups.add_chunks(probe)
        return True
