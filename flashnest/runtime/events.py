"""What the engine says about a step: all that metrics and reports ever see of it."""

from __future__ import annotations

from dataclasses import dataclass

from flashnest.record import I64Array
from flashnest.runtime.request import Request


@dataclass(frozen=True, slots=True)
class StepEvent:
    """One engine step. Times are seconds of the engine's clock.

    forward_tokens counts packed tokens, prefill_tokens those of them that were prompt; committed counts output tokens
    that requests kept. drafts int64 (4, 3): by `Source`, drafts verified, tokens drafted, tokens accepted.
    """

    started_s: float
    duration_s: float
    forward_s: float
    forward_tokens: int
    prefill_tokens: int
    running: int
    waiting: int
    committed: int
    drafts: I64Array
    finished: tuple[Request, ...]
