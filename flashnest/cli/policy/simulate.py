"""`flash-nest policy simulate`: policies side by side on a trace, before one of them runs."""

from __future__ import annotations

import json
import shlex
import sys
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flashnest.cli.failure import INTERRUPTED
from flashnest.cli.policy.files import FAILED, OK, say, tiering_path
from flashnest.cli.policy.traced import (
    DEFAULT_REQUESTS,
    Concurrency,
    Lengths,
    Limit,
    OutputTokens,
    PlatformName,
    Requests,
    Stage,
    Tokenizer,
    TraceOptions,
    open_stage,
    parse_sizes,
    progress_bar,
    told,
)

if TYPE_CHECKING:
    from flashnest.policy.compile import Policy
    from flashnest.policy.tiering_file import TieringFile
    from flashnest.simulate.result import Simulation


class Format(StrEnum):
    """How the result is printed."""

    TABLE = "table"
    JSON = "json"


def simulate(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="A trace file, or a shipped workload: repeat_50.")],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", "-p", metavar="FILE", help="Compare this policy; may be repeated. Not given: the shipped."
        ),
    ] = None,
    platform: PlatformName = None,
    dram: Annotated[str | None, typer.Option("--dram", help="Bytes of DRAM for every policy: 14GiB.")] = None,
    nvme: Annotated[str | None, typer.Option("--nvme", help="Bytes of NVMe for every policy.")] = None,
    vram: Annotated[str | None, typer.Option("--vram", help="Bytes of VRAM for every policy.")] = None,
    lengths: Lengths = "8,16,32",
    requests: Requests = DEFAULT_REQUESTS,
    concurrency: Concurrency = None,
    tokenizer: Tokenizer = None,
    output_tokens: OutputTokens = None,
    limit: Limit = None,
    form: Annotated[
        Format, typer.Option("--format", help="What is printed: a table with plots, or JSON.")
    ] = Format.TABLE,
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write a page with plots, too.")] = None,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write the JSON, too.")] = None,
    belady: Annotated[bool, typer.Option("--belady/--no-belady", help="Compute the optimum for the same DRAM.")] = True,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count: exit 1.")] = False,
) -> None:
    """Compare policies on a trace, without a model.

    Says who hits where, which rule placed it, how many bytes that takes, what is written and how long a step's lookups
    take, beside the optimum for the same DRAM.

    TRACE is an access trace that a run recorded (trace.path=FILE), Mooncake's JSON lines, JSON lines of prompts, a
    plain text, or the name of a shipped workload, whose text is generated. Ctrl-C ends with the policies that are done.
    """
    pages = {"--html": Path(html) if html else None, "--json": Path(json_file) if json_file else None}
    _check_places(pages)
    options = TraceOptions(lengths, requests, concurrency, tokenizer, limit, output_tokens)
    given = _compiled(policy or _shipped(with_vram=platform is not None or vram is not None))
    stage = open_stage(trace, options, platform, parse_sizes(dram=dram, nvme=nvme, vram=vram))
    done, interrupted = _simulate_all(stage, given, belady=belady)
    document = _document(stage, done, interrupted=interrupted)
    _print(document, form)
    _write(document, pages)
    raise typer.Exit(INTERRUPTED if interrupted else _exit_code(done, strict=strict))


def _shipped(*, with_vram: bool) -> list[str]:
    """Return the shipped policies that fit: those with a VRAM tier only where somebody says how large it is."""
    from flashnest.policy.tiering_file import load_tiering_file

    folder = Path(str(resources.files("flashnest"))) / "conf" / "tiering"
    names = sorted((path.stem for path in folder.glob("*.yaml")), key=lambda name: (name != "dram_only", name))
    return [name for name in names if with_vram or "vram" not in (load_tiering_file(tiering_path(name)).tiers or ())]


def _compiled(names: list[str]) -> list[tuple[TieringFile, Policy]]:
    """Read and check the policies, before a trace is opened. Raises PolicyCheckError and TieringFileError."""
    from flashnest.policy.tiering_file import load_tiering_file

    files = [load_tiering_file(tiering_path(name)) for name in dict.fromkeys(names)]
    return [(file, file.compile()) for file in files]


def _simulate_all(
    stage: Stage, given: list[tuple[TieringFile, Policy]], *, belady: bool
) -> tuple[list[Simulation], bool]:
    """Simulate one policy after the other; return those done, and whether the rest was called off."""
    from rich.console import Console

    done: list[Simulation] = []
    try:
        with progress_bar(Console(stderr=True)) as bar:
            for file, policy in given:
                tell = told(bar, file.path.stem, len(stage.trace))
                done.append(stage.simulate(file, policy, belady=belady, progress=tell))
    except KeyboardInterrupt:
        if not done:
            raise
        print(f"interrupted: {len(done)} of {len(given)} policies are done", file=sys.stderr)
        return done, True
    return done, False


def _document(stage: Stage, done: list[Simulation], *, interrupted: bool) -> dict[str, Any]:
    trace = stage.trace
    return {
        "trace": {
            "name": trace.name,
            "source": trace.source,
            "accesses": len(trace),
            "questions": trace.questions,
            "records": trace.records,
            "steps": trace.steps,
            "duration_s": trace.duration_s,
        },
        "heading": stage.heading,
        "command": shlex.join(["flash-nest", *sys.argv[1:]]),
        "interrupted": interrupted,
        "simulations": [one.to_json() for one in done],
    }


def _print(document: dict[str, Any], form: Format) -> None:
    if form is Format.JSON:
        say(json.dumps(document, indent=2))
        return
    from flashnest.report.simulation import print_simulations

    say(document["heading"] + "\n")
    print_simulations(document["simulations"])


def _check_places(pages: dict[str, Path | None]) -> None:
    """Try the files' places before the work is done."""
    from flashnest.report.write import check_writable

    for option, path in pages.items():
        if path is not None:
            check_writable(path, option=option)


def _write(document: dict[str, Any], pages: dict[str, Path | None]) -> None:
    from flashnest.report.write import write_text

    if (path := pages["--json"]) is not None:
        write_text(json.dumps(document, indent=2) + "\n", path, option="--json")
    if (path := pages["--html"]) is not None:
        from flashnest.report.simulation_page import write_page

        write_page(document["simulations"], path, heading=document["heading"], command=document["command"])
    for path in pages.values():
        if path is not None:
            print(f"wrote {path}", file=sys.stderr)


def _exit_code(done: list[Simulation], *, strict: bool) -> int:
    """Return 1 where an enforced requirement is broken, or with `strict` where anything was warned of."""
    return FAILED if any(one.broken or (strict and one.warnings) for one in done) else OK
