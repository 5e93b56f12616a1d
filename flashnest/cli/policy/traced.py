"""What the commands that need a trace share: their options, opening the trace, the room of each tier, the progress bar.

A TRACE is a file that `flashnest.simulate.load_trace` reads, or the name of a shipped workload (`repeat_50`), whose
text is made here. Without a platform nothing is timed, and a tier whose size is not given has room for every record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from flashnest.errors import ConfigError, WorkloadError
from flashnest.units import parse_duration_s

if TYPE_CHECKING:
    from flashnest.policy.compile import Policy
    from flashnest.policy.platform_facts import PlatformFacts
    from flashnest.policy.tiering_file import TieringFile
    from flashnest.record import Tier
    from flashnest.simulate.engine import TierOptions
    from flashnest.simulate.result import Simulation
    from flashnest.simulate.trace import Trace

DEFAULT_REQUESTS: Final = 256
"""Prompts of a generated trace: two for each of F8's 128 streams."""
_SPARE_BYTES: Final = 64 << 20
_SPARE_FACTOR: Final = 6
"""A tier without a size gets this many times the records' bytes: an LMDB leaf is 0.6 full, a DRAM table 0.8."""
_LONGEST_STEP_S: Final = 1.0
"""Steps of Mooncake's lines are 3 s apart: arrivals, not decode steps."""

PlatformName = Annotated[
    str | None, typer.Option("--platform", help="Predict times there, and take its budgets: rtx4090, or a file.")
]
Lengths = Annotated[str, typer.Option("--lengths", help="N-gram lengths that are looked up, for text.")]
Requests = Annotated[int, typer.Option("--requests", min=1, help="Prompts of a generated trace.")]
Concurrency = Annotated[
    int | None,
    typer.Option("--concurrency", min=1, help="Requests at once, for text; not given: the platform's, or 32."),
]
OutputTokens = Annotated[
    int | None, typer.Option("--output-tokens", min=1, help="Most tokens of an answer, for text; not given: 128.")
]
Tokenizer = Annotated[
    str | None, typer.Option("--tokenizer", help="A tokenizer.json, for text; not given: hashed pieces.")
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Read the first N lines or steps of a file only.")]


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """How a trace is opened, as given on the command line."""

    lengths: str
    requests: int
    concurrency: int | None
    tokenizer: str | None
    limit: int | None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A trace, and where policies are tried on it. `sizes` override what tiering files and the platform say."""

    trace: Trace
    platform: PlatformFacts | None
    sizes: Mapping[Tier, int]

    def capacities(self, file: TieringFile) -> dict[Tier, int]:
        """Return the bytes of each tier that the file opens. Raises ConfigError."""
        from flashnest.policy.platform_facts import tier_capacities

        given = tier_capacities(file, self.platform or _roomy(self.trace))
        return {tier: self.sizes.get(tier, room) for tier, room in given.items()}

    def simulate(
        self, file: TieringFile, policy: Policy, *, belady: bool, progress: Callable[[float], None] | None = None
    ) -> Simulation:
        """Play the trace through a policy of the file. Raises ConfigError and StoreFullError."""
        from flashnest.simulate.engine import simulate

        return simulate(
            policy,
            self.trace,
            capacities=self.capacities(file),
            platform=self.platform,
            belady=belady,
            progress=progress,
            options=self.options(file),
        )

    def options(self, file: TieringFile) -> TierOptions:
        """Return what else the file says of its tiers. Raises ConfigError."""
        return tier_options(file, self.step_s)

    @property
    def step_s(self) -> float | None:
        """What a step takes: the trace's median, None where its steps are too far apart to be decode steps."""
        import numpy as np

        gaps_ms = np.diff(self.trace.step_time_ms)
        median_s = float(np.median(gaps_ms)) / 1000 if len(gaps_ms) else 0.0
        return median_s if 0.0 < median_s < _LONGEST_STEP_S else None

    @property
    def heading(self) -> str:
        """What was traced and where, in two lines."""
        trace = self.trace
        what = f"{trace.name}: {trace.source}"
        counts = (
            f"{len(trace):,} accesses, {trace.questions:,} questions, {trace.records:,} records, {trace.steps:,} steps"
        )
        where = f"times predicted for {self.platform.name}" if self.platform else "no platform, so no predicted times"
        return f"{what}\n{counts}; {where}"


def tier_options(file: TieringFile, base_step_s: float | None = None) -> TierOptions:
    """Return what a tiering file says of its tiers beside their capacity. Raises ConfigError."""
    from flashnest.simulate.engine import TierOptions

    settings = file.settings or {}
    dram, nvme = settings.get("dram", {}), settings.get("nvme", {})
    given: dict[str, Any] = {}
    if "eviction" in dram:
        given["eviction"] = dram["eviction"]
    if "engine" in nvme:
        given["engine"] = nvme["engine"]
    if "flush_records" in nvme:
        given["flush_records"] = int(str(nvme["flush_records"]))
    if "flush_interval" in nvme:
        given["flush_interval_s"] = parse_duration_s(str(nvme["flush_interval"]))
    return TierOptions(blocking=nvme.get("cold_reads") == "blocking", base_step_s=base_step_s, **given)


def open_stage(trace: str, options: TraceOptions, platform: str | None, sizes: Mapping[Tier, int]) -> Stage:
    """Open the trace and the platform. Raises WorkloadError and ConfigError."""
    facts = None
    if platform is not None:
        from flashnest.cli.policy.platforms import platform_facts

        facts = platform_facts(platform)
    streams = options.concurrency or (facts.concurrency if facts else None)
    with _waiting(f"reading {trace}"):
        return Stage(_open_trace(trace, options, streams), facts, sizes)


def parse_sizes(**given: str | None) -> dict[Tier, int]:
    """Return the tiers whose size is given: parse_sizes(dram="14GiB"). Raises UnitError."""
    from flashnest.policy.facts import TIERS
    from flashnest.units import parse_bytes

    return {TIERS[name]: parse_bytes(text) for name, text in given.items() if text is not None}


@contextmanager
def _waiting(what: str) -> Iterator[None]:
    """Show on a terminal that something goes on whose length is not known; nothing elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(f"{what} ..."):
        yield


@contextmanager
def progress_bar(console: Any) -> Iterator[Any]:
    """Show a progress bar on a terminal, nothing elsewhere; gone when it ends."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[rate]}"))
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        yield bar


def told(bar: Any, what: str, accesses: int) -> Callable[[float], None]:
    """Return what tells a bar of a simulation's share done, with accesses a second."""
    task = bar.add_task(what, total=1.0, rate="loading kernels")
    first: list[tuple[float, float]] = []  # the first run after an update compiles kernels: no speed of ours

    def tell(share: float) -> None:
        now_s = time.monotonic()
        if share > 0 and not first:
            first.append((share, now_s))
        elif first and now_s > first[0][1]:
            rate = (share - first[0][0]) * accesses / (now_s - first[0][1])
            bar.update(task, completed=share, rate=f"{rate / 1e6:.1f} M accesses/s")

    return tell


# --- opening ---------------------------------------------------------------------------------------------------------


def _open_trace(name: str, options: TraceOptions, streams: int | None) -> Trace:
    from flashnest.simulate import load_trace

    given: dict[str, Any] = {"lengths": _lengths(options.lengths), "tokenizer": options.tokenizer}
    if streams is not None:
        given["concurrency"] = streams
    if options.output_tokens is not None:
        given["output_tokens"] = options.output_tokens
    if "/" in name or Path(name).suffix or Path(name).exists():
        return load_trace(name, limit=options.limit, **given)
    return _generated(name, options.requests, given)


def _generated(name: str, requests: int, given: Mapping[str, Any]) -> Trace:
    """Make the text of a shipped workload, and its trace."""
    from flashnest.policy.yaml_nodes import read_yaml
    from flashnest.simulate.texts import text_trace
    from flashnest.workload.prompts import repeat_prompts, words_needed
    from flashnest.workload.text import load_corpus

    load = read_yaml(_workload_path(name).read_text("utf-8")).value()
    assert isinstance(load, dict), "a shipped workload is a mapping"
    given = {"output_tokens": int(str(load["output_tokens"])), **given}
    shape: dict[str, Any] = {key: load[key] for key in ("fragments", "fragment_words", "hot_fragments")}
    made = repeat_prompts(
        load_corpus(None, min_words=words_needed(requests, **shape)),
        count=requests,
        output_tokens=given["output_tokens"],
        repeat_share=float(str(load["repeat_share"])),
        echo_share=float(str(load["echo_share"])),
        **shape,
    )
    share = f"{100 * made.measured_repeat_share:.0f} % of the fragments repeated"
    source = f"{made.source}, {share}, n-grams of {options_text(given['lengths'])}"
    return text_trace(made.prompts, name=name, source=source, **given)


def options_text(lengths: tuple[int, ...]) -> str:
    return ", ".join(str(length) for length in lengths) + " tokens"


def _workload_path(name: str) -> Path:
    folder = Path(str(resources.files("flashnest"))) / "conf" / "workload"
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        from flashnest.policy.diagnostics import unknown

        what, fix = unknown(name, "trace", known)
        raise WorkloadError(
            what, why="a bare name is a shipped workload; a trace file has an ending or a folder", fix=fix
        )
    return folder / f"{name}.yaml"


def _lengths(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdigit() for part in parts):
        raise ConfigError(f"--lengths {text} is not a list of numbers", fix="write it like --lengths 8,16,32")
    return tuple(sorted({int(part) for part in parts}))


def _roomy(trace: Trace) -> PlatformFacts:
    """Return a platform whose tiers have room for every record of the trace. Nothing is timed on it."""
    from flashnest.policy.platform_facts import PlatformFacts

    room = _SPARE_BYTES + _SPARE_FACTOR * int(trace.nbytes.sum(dtype="int64"))
    return PlatformFacts(
        name="room for every record", vram_bytes=room, dram_bytes=room, nvme_bytes=room, nvme_read_mean_s=0.0,
        nvme_read_p99_s=0.0, nvme_iops=1, nvme_endurance_bytes=None, concurrency=1,
    )  # fmt: skip
