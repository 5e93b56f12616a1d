"""The live display draws at its pace, also where there is no terminal, and never ends a run."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO

import pytest
from rich.console import Console

from flashnest.report.progress import Progress, plain_line, render_snapshot
from flashnest.telemetry.snapshot import Snapshot, TierFill

TIERS = (
    TierFill("dram", 12_345_678, 0.5, 14 << 30, 1000, 423),
    TierFill("nvme", 4_567_890, 1 / 64, 64 << 30, 577, 12),
)


class Stage:
    """A run that the test moves: a clock, a counter of snapshots made, what was printed."""

    def __init__(self, *, terminal: bool) -> None:
        self.now_s = 0.0
        self.tokens = 0
        self.made = 0
        self.out = StringIO()
        self.console = Console(file=self.out, force_terminal=terminal, width=80)

    def snapshot(self) -> Snapshot:
        self.made += 1
        return _snapshot(self.now_s, self.tokens)

    def run(self, progress: Progress, seconds: float, ticks_per_s: int = 100, tokens_per_s: int = 1000) -> None:
        for _ in range(int(seconds * ticks_per_s)):
            self.now_s += 1 / ticks_per_s
            self.tokens += tokens_per_s // ticks_per_s
            progress.tick(self.snapshot)


def _snapshot(elapsed_s: float, tokens: int, tiers: tuple[TierFill, ...] = TIERS) -> Snapshot:
    return Snapshot(
        elapsed_s, "measuring", 22, 128, 44, 256, 1000, 400, tokens, drafts=10, drafted=80, accepted=9, tiers=tiers
    )


def _progress(stage: Stage, enabled: bool = True) -> Progress:
    return Progress(stage.console, enabled=enabled, clock_s=lambda: stage.now_s)


def test_terminal_is_drawn_four_times_a_second() -> None:
    stage = Stage(terminal=True)
    with _progress(stage) as progress:
        stage.run(progress, 5.0)
    assert 19 <= stage.made <= 21


def test_log_gets_a_line_every_five_seconds() -> None:
    stage = Stage(terminal=False)
    with _progress(stage) as progress:
        stage.run(progress, 21.0)
    lines = stage.out.getvalue().splitlines()
    assert stage.made == len(lines) == 4
    assert lines[1].startswith("0:10 measuring | requests 22/256 done, 128 running | 1,000 tok/s | accept length 1.90")
    assert lines[1].endswith("dram 50.0 % full, hit rate 42.3 % | nvme 1.6 % full, hit rate 2.1 %")


def test_rate_follows_the_last_seconds_not_the_average() -> None:
    stage = Stage(terminal=False)
    with _progress(stage) as progress:
        stage.run(progress, 20.5, tokens_per_s=1000)
        stage.run(progress, 10.5, tokens_per_s=200)
    assert "| 200 tok/s |" in stage.out.getvalue().splitlines()[-1]


def test_counters_that_begin_anew_do_not_give_a_negative_rate() -> None:
    stage = Stage(terminal=False)
    with _progress(stage) as progress:
        stage.run(progress, 10.5)
        stage.tokens = 0
        stage.run(progress, 10.5)
    assert "-" not in "".join(line.split(" | ")[2] for line in stage.out.getvalue().splitlines())


def test_disabled_display_prints_and_asks_nothing() -> None:
    for terminal in (True, False):
        stage = Stage(terminal=terminal)
        with _progress(stage, enabled=False) as progress:
            stage.run(progress, 12.0)
        assert (stage.made, stage.out.getvalue()) == (0, "")


def test_broken_pipe_switches_the_display_off_and_the_run_goes_on() -> None:
    stage = Stage(terminal=False)

    def broken(_: str) -> int:
        raise BrokenPipeError

    stage.out.write = broken  # type: ignore[method-assign]
    with _progress(stage) as progress:
        stage.run(progress, 30.0)
    assert stage.made == 1
    assert stage.now_s == pytest.approx(30.0)


def test_interrupt_passes_and_the_cursor_comes_back() -> None:
    stage = Stage(terminal=True)
    calls = iter(range(3))

    def interrupted_later() -> Snapshot:
        if next(calls) == 2:
            raise KeyboardInterrupt
        stage.now_s += 1.0
        return stage.snapshot()

    def run() -> None:
        with _progress(stage) as progress:
            for _ in range(3):
                progress.tick(interrupted_later)
                stage.now_s += 1.0

    with pytest.raises(KeyboardInterrupt):
        run()
    assert stage.made == 2
    shown, hidden = stage.out.getvalue().rfind("\x1b[?25h"), stage.out.getvalue().rfind("\x1b[?25l")
    assert shown > hidden >= 0


def test_vanished_terminal_does_not_hide_how_the_run_ended() -> None:
    stage = Stage(terminal=True)
    with _progress(stage) as progress:
        stage.run(progress, 1.0)
        stage.out.close()
        stage.run(progress, 1.0)
    assert stage.now_s == pytest.approx(2.0)


def test_tick_after_the_end_does_nothing() -> None:
    stage = Stage(terminal=True)
    with _progress(stage) as progress:
        pass
    stage.run(progress, 1.0)
    assert stage.made == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: _snapshot(5.0, 12_650),
        lambda: _snapshot(3599.0, 99_999_999, TIERS[:1]),
        lambda: Snapshot(0.0, "warm-up", 0, 0, 0, None, 0, 0, 0, 0, 0, 0),
    ],
)
def test_display_fits_80_columns(make: Callable[[], Snapshot]) -> None:
    out = StringIO()
    Console(file=out, width=80).print(render_snapshot(make(), 2300.0))
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert "\u2026" not in out.getvalue()


def test_unknown_figures_are_dashes() -> None:
    line = plain_line(Snapshot(0.0, "warm-up", 0, 0, 0, None, 0, 0, 0, 0, 0, 0), None)
    assert line == "0:00 warm-up | requests 0/? done, 0 running | - tok/s | accept length - | KV reuse -"
