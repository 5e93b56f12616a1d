"""What the engine says about a step: all that metrics and reports ever see of it."""

from __future__ import annotations

from dataclasses import dataclass

from flashnest.record import I64Array
from flashnest.runtime.request import Request


@dataclass(frozen=True, slots=True)
class LookupCounts:
    """Table lookups of a step.

    queries: sequences that asked for a draft and prompt chunks that asked for a block; hits: of these, found, cold
    answers counted in the step that drained them; keys: keys asked; ns: nanoseconds the router took for them;
    tier_hits: the hits by the tier that answered, VRAM, DRAM and NVMe.
    """

    queries: int
    hits: int
    keys: int
    ns: int
    tier_hits: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class StepEvent:
    """One engine step. Times are seconds of the engine's clock.

    forward_tokens counts packed tokens, prefill_tokens those of them that were prompt; scored counts the sequences that
    were given tokens, committed the output tokens they kept. drafts int64 (6, 3): by `Source`, drafts verified, tokens
    drafted, tokens accepted. no_draft int64 (5,): by `NoDraft`, the scored sequences that got none. lookups: what the
    table was asked and had.
    """

    started_s: float
    duration_s: float
    forward_s: float
    forward_tokens: int
    prefill_tokens: int
    scored: int
    running: int
    waiting: int
    committed: int
    drafts: I64Array
    no_draft: I64Array
    lookups: LookupCounts
    sweep_s: float
    finished: tuple[Request, ...]
