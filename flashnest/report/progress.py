"""The live display of a run: a few lines on a terminal, a plain line every five seconds elsewhere.

Takes `Snapshot`s and knows no engine. Draws at most four times a second from the caller's thread: no thread of its own,
no cost between draws but one clock read. Never ends a run: what goes wrong while drawing switches the display off.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flashnest.report.figures import bytes_text, clock_text, count_text, number_text, share_text, short_count_text
from flashnest.telemetry.snapshot import Snapshot, TierFill

DRAW_EVERY_S: Final = 0.25
PLAIN_EVERY_S: Final = 5.0
RATE_WINDOW_S: Final = 3.0
"""Tokens per second are those of the last three seconds: shorter jumps with every prefill."""
_BAR_WIDTH: Final = 18


class Progress:
    """Shows how a run goes: `with Progress() as progress: ... progress.tick(make_snapshot)`.

    `clock_s` only paces the drawing; rates use the snapshots' own time. One thread uses it.
    """

    def __init__(
        self, console: Console | None = None, *, enabled: bool = True, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console(stderr=True)
        self._clock_s = clock_s
        self._enabled = enabled
        self._live: Live | None = None
        self._due_s = float("-inf")
        self._recent: deque[tuple[float, int]] = deque()

    def __enter__(self) -> Self:
        if self._enabled and self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        else:
            self._due_s = self._clock_s() + PLAIN_EVERY_S
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        live, self._live, self._enabled = self._live, None, False
        if live is not None:
            with suppress(OSError, ValueError):  # the terminal is gone: nothing is left to restore
                live.stop()

    def tick(self, make: Callable[[], Snapshot]) -> None:
        """Draw if it is time to; `make` is called only then."""
        if not self._enabled or self._clock_s() < self._due_s:
            return
        self._due_s = self._clock_s() + (PLAIN_EVERY_S if self._live is None else DRAW_EVERY_S)
        try:
            self._draw(make())
        except (OSError, ValueError):  # the terminal went away or the pipe closed: the run matters more
            self._enabled = False

    def _draw(self, snapshot: Snapshot) -> None:
        rate = self._rate(snapshot)
        if self._live is None:
            # Not through rich: on a closed pipe its console ends the process and points stdout at /dev/null.
            self._console.file.write(plain_line(snapshot, rate) + "\n")
            self._console.file.flush()
        else:
            self._live.update(render_snapshot(snapshot, rate), refresh=True)

    def _rate(self, snapshot: Snapshot) -> float | None:
        """Return output tokens per second over the window, from the run's start for the first reading."""
        recent = self._recent
        if recent and (snapshot.elapsed_s < recent[-1][0] or snapshot.output_tokens < recent[-1][1]):
            recent.clear()  # counters began anew, as after a warm-up
        if not recent:
            recent.append((0.0, 0))
        recent.append((snapshot.elapsed_s, snapshot.output_tokens))
        while len(recent) > 2 and recent[-1][0] - recent[1][0] >= RATE_WINDOW_S:
            recent.popleft()
        span_s = recent[-1][0] - recent[0][0]
        return (recent[-1][1] - recent[0][1]) / span_s if span_s > 0 else None


def plain_line(snapshot: Snapshot, rate: float | None) -> str:
    """Return one line for a log file."""
    parts = [
        f"{clock_text(snapshot.elapsed_s)} {snapshot.phase}",
        f"requests {_done(snapshot)} done, {snapshot.requests_running} running",
        f"{number_text(rate)} tok/s",
        f"accept length {number_text(snapshot.accept_length)}",
        f"KV reuse {share_text(_reuse(snapshot))}",
    ]
    parts += [f"{t.tier} {share_text(t.fill)} full, hit rate {share_text(t.hit_ratio)}" for t in snapshot.tiers]
    return " | ".join(parts)


def render_snapshot(snapshot: Snapshot, rate: float | None) -> RenderableType:
    """Return the lines of the live display: at most 80 columns."""
    total = snapshot.requests_total
    head = _row_of_cells()
    bar = ProgressBar(total=total or 1, completed=snapshot.requests_done if total else 0, width=_BAR_WIDTH)
    waiting = f", {snapshot.requests_waiting} waiting" if snapshot.requests_waiting else ""
    running = f"{snapshot.requests_running} running{waiting}"
    head.add_row(Text(snapshot.phase, "bold"), bar, f"{_done(snapshot)} done", running, clock_text(snapshot.elapsed_s))
    figures = _row_of_cells()
    figures.add_row(
        _labelled(number_text(rate), "tok/s"),
        _labelled(number_text(snapshot.accept_length), "accept length"),
        _labelled(share_text(_reuse(snapshot)), "KV reuse"),
        _labelled(count_text(snapshot.output_tokens), "output tokens"),
    )
    return Group(head, figures, _tiers(snapshot.tiers))


def _tiers(tiers: tuple[TierFill, ...]) -> Table:
    table = _row_of_cells()
    for tier in tiers:
        used = f"{share_text(tier.fill)} of {bytes_text(tier.bytes_budget)}"
        bar = ProgressBar(total=1.0, completed=tier.fill, width=_BAR_WIDTH, finished_style="bar.complete")
        hits = _labelled(share_text(tier.hit_ratio), "hits")
        table.add_row(Text(tier.tier, "bold"), bar, used, f"{short_count_text(tier.records)} records", hits)
    return table


def _row_of_cells() -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(5):
        table.add_column(no_wrap=True)
    return table


def _labelled(value: str, label: str) -> Text:
    return Text.assemble((value, "bold"), " ", (label, "dim"))


def _done(snapshot: Snapshot) -> str:
    return f"{snapshot.requests_done}/{snapshot.requests_total or '?'}"


def _reuse(snapshot: Snapshot) -> float | None:
    return snapshot.reused_tokens / snapshot.prompt_tokens if snapshot.prompt_tokens else None
