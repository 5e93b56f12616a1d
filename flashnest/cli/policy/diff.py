"""`flash-nest policy diff`: what a change of a policy changes, in words and with a record for each region."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from flashnest.cli.policy.files import FAILED, OK, count, say, tiering_path
from flashnest.cli.policy.traced import DEFAULT_REQUESTS, Concurrency, Lengths, Limit, Requests, Tokenizer, TraceOptions

if TYPE_CHECKING:
    from flashnest.policy.difference import Difference
    from flashnest.policy.difference_output import Counted


class Format(StrEnum):
    """How the difference is printed."""

    TEXT = "text"
    JSON = "json"


def diff(
    old: Annotated[str, typer.Argument(metavar="A", help="The old policy: a file, or the name of a shipped option.")],
    new: Annotated[str, typer.Argument(metavar="B", help="The new one.")],
    trace: Annotated[
        str | None, typer.Option("--trace", help="Count its records: a trace file, or a workload such as repeat_50.")
    ] = None,
    lengths: Lengths = "8,16,32",
    requests: Requests = DEFAULT_REQUESTS,
    concurrency: Concurrency = None,
    tokenizer: Tokenizer = None,
    limit: Limit = None,
    form: Annotated[Format, typer.Option("--format", help="text for people, json for programs.")] = Format.TEXT,
) -> None:
    """Compare two policies by what they do to records, not by their text.

    Ends with 0 where they do the same to every record, with 1 where they differ.
    """
    options = TraceOptions(lengths, requests, concurrency, tokenizer, limit)
    raise typer.Exit(_diff(old, new, trace, options, form))


def _diff(old: str, new: str, trace: str | None, options: TraceOptions, form: Format) -> int:
    from flashnest.cli.policy.tier_settings import settings_changed
    from flashnest.policy.difference import difference
    from flashnest.policy.difference_output import difference_json, difference_lines
    from flashnest.policy.tiering_file import load_tiering_file

    files = load_tiering_file(tiering_path(old)), load_tiering_file(tiering_path(new))
    found = difference(files[0].compile(), files[1].compile())
    settings = settings_changed(*files)
    counted = None if trace is None else _counted(found, trace, options)
    if form is Format.JSON:
        import json

        say(json.dumps(difference_json(*files, found, settings, counted), indent=2))
    else:
        for line in difference_lines(found, settings, counted):
            say(line)
        say(f"{files[0].path} -> {files[1].path}: {_summary(found, len(settings), counted)}")
    return FAILED if found or settings else OK


def _summary(found: Difference, settings: int, counted: Counted | None) -> str:
    if not found and not settings:
        return "no difference"
    numbers = ((len(found.regions), "region"), (len(found.goals), "statement"), (settings, "setting"))
    parts = [count(number, noun) for number, noun in numbers if number]
    verb = "differs" if sum(number for number, _ in numbers) == 1 else "differ"
    differ = f"{'more than ' if found.more else ''}{_listed(parts)} {verb}"
    if counted is None:
        return differ
    share = 100 * counted.moved / max(1, counted.records)
    return f"{differ}; {counted.moved:,} of {counted.records:,} records of {counted.trace} ({share:.1f} %) go elsewhere"


def _listed(parts: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _counted(found: Difference, name: str, options: TraceOptions) -> Counted:
    from flashnest.cli.policy.traced import open_stage
    from flashnest.policy.difference import RecordArrays
    from flashnest.policy.difference_output import Counted

    trace = open_stage(name, options, None, {}).trace
    records = RecordArrays(trace.tokens, trace.kind, trace.namespace, trace.nbytes)
    by_region, moved = found.counts(records)
    return Counted(trace.name, trace.records, by_region.tolist(), moved)
