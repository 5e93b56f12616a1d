"""A router that writes down what it is asked and taught, for `simulate`. A run without `trace.path` has a plain one.

Answers nothing itself: each call goes to `Router` and is then copied into the writer's buffer, a few microseconds.
"""

from __future__ import annotations

from flashnest.record import BoolArray, I32Array, I64Array, U32Array, U64Array
from flashnest.storage.cold_reads import ColdAnswers
from flashnest.storage.router import Router
from flashnest.storage.store import Found
from flashnest.telemetry.trace_writer import TraceWriter


class TracedRouter(Router):
    """Records chunk lookups, n-gram lookups and inserts of the decode loop; a step begins with `drain`."""

    _trace: TraceWriter

    def record_to(self, trace: TraceWriter) -> None:
        """Record from now on. To be called before the first lookup; `close` closes the writer."""
        self._trace = trace

    def lookup_many(self, keys: U64Array, tickets: I64Array, found: Found) -> None:
        """See `Router`. The decode loop asks for chunks this way."""
        super().lookup_many(keys, tickets, found)
        self._trace.ask_chunks(keys)

    def longest_tails_many(
        self,
        tokens: I32Array,
        ends: I32Array,
        salts: U64Array,
        lengths: I32Array,
        tickets: I64Array,
        keys: U64Array,
        found: Found,
        index: I64Array,
    ) -> None:
        """See `Router`."""
        super().longest_tails_many(tokens, ends, salts, lengths, tickets, keys, found, index)
        self._trace.ask_ngrams(keys, salts)

    def insert_many(self, keys: U64Array, rows: U32Array) -> BoolArray:
        """See `Router`."""
        self._trace.teach(keys, rows)
        return super().insert_many(keys, rows)

    def drain(self) -> ColdAnswers:
        """See `Router`."""
        self._trace.begin_step()
        return super().drain()

    def close(self) -> None:
        """Close the tiers and the trace. A second call does nothing."""
        super().close()
        self._trace.close()
