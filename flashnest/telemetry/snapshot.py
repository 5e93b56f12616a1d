"""One moment of a run, as the live display shows it. Holds numbers only and knows no engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TierFill:
    """One tier at one moment. `fill` is the share of its room in use, 0..1; counters run since the store was opened."""

    tier: str
    records: int
    fill: float
    bytes_budget: int
    lookups: int
    hits: int

    @property
    def hit_ratio(self) -> float | None:
        """The share of the keys asked of this tier that it held; None before the first."""
        return self.hits / self.lookups if self.lookups else None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment. Counters run since the run began; `requests_total` is None where it is not known.

    `phase` is a word for the title, such as "warm-up" or "measuring". `drafts` counts verified drafts, `drafted` and
    `accepted` their tokens.
    """

    elapsed_s: float
    phase: str
    requests_done: int
    requests_running: int
    requests_waiting: int
    requests_total: int | None
    prompt_tokens: int
    reused_tokens: int
    output_tokens: int
    drafts: int
    drafted: int
    accepted: int
    tiers: tuple[TierFill, ...] = ()

    @property
    def accept_length(self) -> float | None:
        """Tokens committed by a forward for a sequence with a draft: 1 + accepted / drafts; None before a draft."""
        return 1 + self.accepted / self.drafts if self.drafts else None
