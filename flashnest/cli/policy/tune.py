"""`flash-nest policy tune`: the params of a policy that do best on a trace."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from flashnest.cli.failure import INTERRUPTED
from flashnest.cli.policy.files import OK, count, say, tiering_path
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
)
from flashnest.errors import ConfigError

if TYPE_CHECKING:
    from flashnest.policy.tiering_file import TieringFile
    from flashnest.simulate.result import Simulation
    from flashnest.simulate.tune import Trial, Tuning

_SHOWN: Final = 20
"""Rows of the front that are printed."""


def tune(
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="A tiering file, policy text, or shipped option.")],
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="A trace file, or a shipped workload: repeat_50.")],
    budget: Annotated[
        list[str] | None, typer.Option("--budget", metavar="TIER=SIZE", help="Most bytes of a tier: dram=14GiB.")
    ] = None,
    trials: Annotated[int, typer.Option("--trials", min=1, help="Most settings to simulate.")] = 200,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same search.")] = 7,
    pick: Annotated[
        int | None, typer.Option("--pick", min=1, help="The row of the front to write; not given: see below.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="Write the policy with the chosen params.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the whole front as JSON.")
    ] = None,
    platform: PlatformName = None,
    lengths: Lengths = "8,16,32",
    requests: Requests = DEFAULT_REQUESTS,
    concurrency: Concurrency = None,
    tokenizer: Tokenizer = None,
    output_tokens: OutputTokens = None,
    limit: Limit = None,
) -> None:
    """Search the params that do best on a trace.

    Prints the Pareto front. Chosen is the setting with the least DRAM among those within 1 % of the most questions that
    DRAM and VRAM answer; --pick takes another row. Ctrl-C ends the search with what was found.
    """
    from flashnest.policy.tiering_file import load_tiering_file
    from flashnest.report.write import check_writable

    for option, place in (("--out", out), ("--json", json_file)):
        if place is not None:
            check_writable(Path(place), option=option)
    file = load_tiering_file(tiering_path(policy))
    file.compile()
    if out is not None:
        _check_kind(file.path, Path(out))
    options = TraceOptions(lengths, requests, concurrency, tokenizer, limit, output_tokens)
    stage = open_stage(trace, options, platform, _budget(budget or []))
    found = _search(file, stage, trials, seed)
    chosen = _chosen(found, pick)
    _print(stage, found, chosen)
    if json_file is not None:
        _write_json(found, chosen, Path(json_file))
    if out is not None:
        _write_policy(file, stage, found, chosen, Path(out))
    raise typer.Exit(INTERRUPTED if found.interrupted else OK)


def _budget(given: list[str]) -> dict[Any, int]:
    """Return --budget as sizes of tiers. Raises ConfigError."""
    from flashnest.policy.facts import TIERS

    sizes: dict[str, str | None] = {}
    for text in given:
        for part in text.split(","):
            tier, equals, size = part.partition("=")
            if not equals or tier.strip().lower() not in TIERS:
                raise ConfigError(
                    f"--budget {part} is not a tier and its size",
                    fix=f"write it like dram=14GiB; tiers: {', '.join(TIERS)}",
                )
            sizes[tier.strip().lower()] = size
    return parse_sizes(**sizes)


def _search(file: TieringFile, stage: Stage, trials: int, seed: int) -> Tuning:
    from rich.console import Console

    from flashnest.simulate.tune import tune as search

    def evaluate(params: Mapping[str, str]) -> Simulation:
        policy = replace(file, params={**(file.params or {}), **params}).compile()
        return stage.simulate(file, policy, belady=False)

    with progress_bar(Console(stderr=True)) as bar:
        told = _told(bar, file.path.stem, len(stage.trace))
        found = search(file.compile(), stage.trace, evaluate, trials=trials, seed=seed, progress=told)
    if found.interrupted:
        print(f"interrupted after {count(found.tried, 'setting')}: this is what was found", file=sys.stderr)
    return found


def _told(bar: Any, what: str, accesses: int) -> Callable[[int, int], None]:
    import time

    task = bar.add_task(what, total=1.0, rate="loading kernels")
    first: list[float] = []  # when the first simulation was done: before it kernels may have been compiled

    def tell(done: int, total: int) -> None:
        now_s = time.monotonic()
        if not first:
            first.append(now_s)
        rate = (done - 1) * accesses / max(now_s - first[0], 1e-9)
        bar.update(task, completed=done / total, rate=f"{done} of {total}, {rate / 1e6:.1f} M accesses/s")

    return tell


def _chosen(found: Tuning, pick: int | None) -> Trial:
    if pick is None:
        return found.chosen
    if pick > len(found.front):
        raise ConfigError(
            f"--pick {pick}: the front has {count(len(found.front), 'row')}", fix="pick a row that is there"
        )
    return found.front[pick - 1]


# --- what is printed and written -------------------------------------------------------------------------------------


def _print(stage: Stage, found: Tuning, chosen: Trial) -> None:
    from flashnest.report.tuning import print_front, score_text

    say(stage.heading)
    how = "all of them tried" if found.exhaustive else f"{found.tried} simulated"
    refused = f", {found.refused} that do not check" if found.refused else ""
    say(f"{count(found.space, 'setting')} of {count(len(found.knobs), 'param')}, {how}{refused}\n")
    print_front(_rows(found, chosen), most=_SHOWN)
    better = sum(found.beats_start(trial) for trial in found.front)
    say(f"\n{better} of {count(len(found.front), 'setting')} on the front beat the policy as it came in everything.")
    say(f"now     {score_text(_row(found.start, 'now'))}")
    say(f"chosen  {score_text(_row(chosen, ''))}")


def _rows(found: Tuning, chosen: Trial) -> list[dict[str, Any]]:
    """Return the policy as it came, then the front, as dicts."""
    rows = [_row(found.start, "now")]
    rows += [_row(trial, str(place), chosen=trial is chosen) for place, trial in enumerate(found.front, 1)]
    return rows


def _row(trial: Trial, place: str, *, chosen: bool = False) -> dict[str, Any]:
    return {"place": place, "chosen": chosen, "params": dict(trial.params), **asdict(trial.score)}


def _write_json(found: Tuning, chosen: Trial, path: Path) -> None:
    from flashnest.report.write import write_text

    document = {
        "command": _command(),
        "settings": found.space,
        "tried": found.tried,
        "refused": found.refused,
        "interrupted": found.interrupted,
        "knobs": [asdict(knob) for knob in found.knobs],
        "rows": _rows(found, chosen),
    }
    write_text(json.dumps(document, indent=2) + "\n", path, option="--json")
    print(f"wrote {path}", file=sys.stderr)


def _check_kind(old: Path, new: Path) -> None:
    """Refuse a text as the place of a YAML file, and the other way round, before the search."""
    from flashnest.policy.tiering_file import TEXT_SUFFIXES, YAML_SUFFIXES

    kind = YAML_SUFFIXES if old.suffix in YAML_SUFFIXES else TEXT_SUFFIXES
    if new.suffix not in kind:
        raise ConfigError(f"{new} is of another kind than {old}", fix=f"end its name in {old.suffix}")


def _write_policy(file: TieringFile, stage: Stage, found: Tuning, chosen: Trial, path: Path) -> None:
    """Write the policy with the chosen params, and say how its own tests do."""
    from flashnest.policy.testing import run_tests
    from flashnest.policy.tiering_file import YAML_SUFFIXES, load_tiering_file
    from flashnest.report.write import write_text
    from flashnest.simulate.tuned_file import tuned_text, tuned_yaml

    lines = _numbers(stage, found, chosen)
    if file.path.suffix in YAML_SUFFIXES:
        text = tuned_yaml(file.path.read_text("utf-8"), chosen.params, lines)
    else:
        text = tuned_text(file.compile().document, chosen.params, lines)
    write_text(text, path, option="--out")
    written = load_tiering_file(path)
    failed = [result for result in run_tests(written) if not result.passed]
    say(f"wrote {path}")
    if failed:
        say(f"{len(failed)} of its {len(written.tests)} tests fail with these params: flash-nest policy test {path}")


def _numbers(stage: Stage, found: Tuning, chosen: Trial) -> list[str]:
    from flashnest.report.tuning import score_text

    trace = stage.trace
    return [
        f"{date.today().isoformat()} by {_command()}",
        f"trace  {trace.name}: {trace.source}; {len(trace):,} accesses",
        f"before {score_text(_row(found.start, 'now'))}",
        f"now    {score_text(_row(chosen, ''))}",
        f"search {found.tried} of {found.space} settings simulated; not measured on a machine",
    ]


def _command() -> str:
    return shlex.join(["flash-nest", *sys.argv[1:]])
