"""`flash-nest policy plan`: what a policy would move on the table as it stands, before it is deployed."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flashnest.cli.policy.files import say, tiering_path
from flashnest.cli.policy.traced import DEFAULT_REQUESTS, Concurrency, Lengths, Limit, Requests, Tokenizer, TraceOptions
from flashnest.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flashnest.policy.compile import Policy
    from flashnest.policy.expectations import TierRoom
    from flashnest.policy.plan import Present
    from flashnest.policy.platform_facts import PlatformFacts
    from flashnest.policy.tiering_file import TieringFile
    from flashnest.record import Tier


class Format(StrEnum):
    """How the plan is printed."""

    TEXT = "text"
    JSON = "json"


def plan(
    new: Annotated[str, typer.Argument(metavar="NEW", help="The policy to deploy: a file, or a shipped option.")],
    old: Annotated[
        str | None,
        typer.Option("--from", metavar="OLD", help="The policy that made the table; with --trace, places it."),
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", metavar="DIR", help="The kept NVMe store of a run that is over.")
    ] = None,
    trace: Annotated[
        str | None, typer.Option("--trace", help="The table after a trace: a file, or a workload such as repeat_50.")
    ] = None,
    platform: Annotated[str, typer.Option("--platform", help="Its budgets and drive: rtx4090, or a file.")] = "local",
    lengths: Lengths = "8,16,32",
    requests: Requests = DEFAULT_REQUESTS,
    concurrency: Concurrency = None,
    tokenizer: Tokenizer = None,
    limit: Limit = None,
    form: Annotated[Format, typer.Option("--format", help="text for people, json for programs.")] = Format.TEXT,
) -> None:
    """Say what a policy would move on the present table: records, bytes, seconds, and how full tiers are after it.

    The table is read from a kept store, which is left as it is, or taken as it stands after a trace.
    """
    if (store is None) == (trace is None):
        raise ConfigError(
            "a plan needs a table", why="give --store or --trace, not both", fix="--store DIR, or --trace FILE"
        )
    from flashnest.cli.policy.platforms import platform_facts
    from flashnest.policy.tiering_file import load_tiering_file

    facts = platform_facts(platform)
    file = load_tiering_file(tiering_path(new))
    before = None if old is None else load_tiering_file(tiering_path(old))
    policies = file.compile(), None if before is None else before.compile()
    windows = tuple(sorted({window for policy in policies if policy for window in policy.moves.windows_s}))
    rooms, written = _rooms(file, policies[0], facts)
    if store is not None:
        present = _stored(Path(store), windows)
    else:
        options = TraceOptions(lengths, requests, concurrency, tokenizer, limit)
        placed_by = (file, policies[0]) if before is None or policies[1] is None else (before, policies[1])
        present = _traced(trace or "", options, *placed_by, facts, windows)
    _print(present, rooms, written(len(present)), *policies, facts, form)


def _rooms(
    file: TieringFile, policy: Policy, platform: PlatformFacts
) -> tuple[dict[Tier, TierRoom], Callable[[int], float]]:
    """Return the room of each tier, and what says the bytes that NVMe's engine writes for a change among n records."""
    from flashnest.cli.policy.traced import tier_options
    from flashnest.policy.platform_facts import tier_capacities
    from flashnest.simulate.expected import bytes_a_change, tier_rooms

    options = tier_options(file)
    rooms = tier_rooms(tier_capacities(file, platform), policy, options)
    return rooms, lambda records: bytes_a_change(records, rooms, options)


def _traced(
    name: str,
    options: TraceOptions,
    file: TieringFile,
    policy: Policy,
    platform: PlatformFacts,
    windows_s: tuple[int, ...],
) -> Present:
    from flashnest.cli.policy.traced import open_stage
    from flashnest.simulate.present import present_after

    rooms, _ = _rooms(file, policy, platform)
    return present_after(open_stage(name, options, None, {}).trace, policy, rooms, windows_s)


def _stored(path: Path, windows_s: tuple[int, ...]) -> Present:
    from rich.console import Console

    from flashnest.app.plan import present_in_store
    from flashnest.cli.policy.traced import progress_bar

    with progress_bar(Console(stderr=True)) as bar:
        task = bar.add_task(f"reading {path}", total=1.0, rate="")
        return present_in_store(path, windows_s, progress=lambda share: bar.update(task, completed=share))


def _print(
    present: Present,
    rooms: Mapping[Tier, TierRoom],
    written: float,
    new: Policy,
    old: Policy | None,
    platform: PlatformFacts,
    form: Format,
) -> None:
    from flashnest.policy.plan import make_plan
    from flashnest.policy.plan_output import plan_json, plan_lines

    made = make_plan(present, new, rooms, platform, write_bytes_a_record=written, old=old)
    if form is Format.JSON:
        import json

        say(json.dumps(plan_json(made, present, new, old, platform), indent=2))
        return
    for line in plan_lines(made, present, new, old, platform):
        say(line)
