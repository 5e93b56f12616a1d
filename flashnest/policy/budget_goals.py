"""T202 and T203: whether what a policy requires can hold on a platform: lookups of a step, writes and the drive's life.

Judges predictions that come as `ExpectedLookups` and `ExpectedWrites`; the requirement's level makes a finding an error
or a warning. `dram hits` depends on what moves do with time: `simulate` judges it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from flashnest.policy.compile import Policy
from flashnest.policy.diagnostics import Diagnostic, Label, Note, Severity
from flashnest.policy.expectations import ExpectedLookups, ExpectedWrites
from flashnest.policy.goals import Level, Requirement
from flashnest.policy.platform_facts import PlatformFacts
from flashnest.policy.syntax import Span
from flashnest.units import format_duration

YEAR_S: Final = 365 * 86400.0
WARRANTY_S: Final = 5 * YEAR_S
"""What a drive's written bytes (TBW) are warranted for: five years on the sheets of the 990 PRO and its like."""

_SUSTAINED_S: Final = 3600.0
"""Rates over a shorter time are a burst: they say nothing of years unless a requirement asks."""


def check_latency(policy: Policy, lookups: ExpectedLookups, platform: PlatformFacts, source: str) -> list[Diagnostic]:
    """Return T202 for each requirement on lookups or steps that the predicted lookups break."""
    found = []
    for requirement, span in _requirements(policy):
        predicted = lookups.p50_s if requirement.metric == "lookup p50" else lookups.p99_s
        if requirement.metric in ("lookup p50", "lookup p99", "step p99") and not requirement.holds(predicted):
            found.append(_too_slow(policy, requirement, span, predicted, lookups, platform, source))
    return found


def check_writes(policy: Policy, writes: ExpectedWrites, platform: PlatformFacts, source: str) -> list[Diagnostic]:
    """Return T203 for each requirement on writes or drive life that the predicted writes break; a warning without any
    where the drive would not last its warranty."""
    found, asked = [], False
    life = drive_life_s(writes.bytes_per_s, platform)
    for requirement, span in _requirements(policy):
        if requirement.metric == "nvme writes" and not requirement.holds(writes.bytes_per_s):
            words = f"{rate_words(writes.bytes_per_s)} predicted, `{requirement.text}`"
            found.append(_worn(policy, words, span, requirement.level, writes, platform, source))
        if requirement.metric == "nvme life":
            asked = True
            if life is None:
                found.append(_unknown_life(policy, requirement, span, platform))
            elif not requirement.holds(life):
                words = f"the drive lasts {life_words(life)}, `{requirement.text}`"
                found.append(_worn(policy, words, span, requirement.level, writes, platform, source))
    if not asked and life is not None and life < WARRANTY_S and writes.within_s >= _SUSTAINED_S:
        words = f"the drive lasts {life_words(life)}, its endurance is warranted for {life_words(WARRANTY_S)}"
        found.append(_worn(policy, words, None, Level.WARN, writes, platform, source))
    return found


def drive_life_s(bytes_per_s: float, platform: PlatformFacts) -> float | None:
    """Return after how many seconds of such writing the drive's endurance is used up, None where that is not known."""
    if platform.nvme_endurance_bytes is None:
        return None
    return platform.nvme_endurance_bytes / bytes_per_s if bytes_per_s > 0 else math.inf


def life_words(seconds: float) -> str:
    """Return a drive's life for people: `309 d`, `12.4 y`."""
    return f"{seconds / YEAR_S:.1f} y" if seconds >= YEAR_S else format_duration(seconds)


def rate_words(bytes_per_s: float) -> str:
    """Return a rate in the decimal units that drives are rated in: `4.5 MB/s`, `12.0 kB/s`."""
    return f"{bytes_per_s / 1e6:.1f} MB/s" if bytes_per_s >= 1e5 else f"{bytes_per_s / 1e3:.1f} kB/s"


def _requirements(policy: Policy) -> list[tuple[Requirement, Span]]:
    return [(one, node.span) for one, node in zip(policy.requirements, policy.document.requirements, strict=True)]


def _severity(level: Level) -> Severity:
    return Severity.ERROR if level is Level.ENFORCE else Severity.WARNING


def _too_slow(
    policy: Policy,
    requirement: Requirement,
    span: Span,
    predicted: float,
    lookups: ExpectedLookups,
    platform: PlatformFacts,
    source: str,
) -> Diagnostic:
    what = "the lookups of a step alone take" if requirement.metric == "step p99" else f"{requirement.metric} is"
    message = (
        f"`{requirement.text}` cannot hold on `{platform.name}`: {what} {format_duration(predicted)} by prediction"
    )
    text = f"{lookups.keys:.0f} keys a step in memory, {format_duration(lookups.without_reads_s)}"
    if lookups.reads >= 0.05:
        each = format_duration(platform.nvme_read_mean_s)
        waits = (
            f"x {each}, one after another (p99 of a read {format_duration(platform.nvme_read_p99_s)})"
            if lookups.blocking
            else "handed to the drive, not waited for"
        )
        text += f"; {lookups.reads:.1f} NVMe reads a step {waits}"
    notes = [Note("note", source), *_assumed(platform), Note("help", _faster(requirement, lookups))]
    labels = _most(policy, lookups.reads_by_rule, lookups.reads, "reads a step are for its records")
    severity = _severity(requirement.level)
    return Diagnostic("T202", message, policy.document.source, Label(span, text), labels, tuple(notes), severity)


def _faster(requirement: Requirement, lookups: ExpectedLookups) -> str:
    if not requirement.holds(lookups.without_reads_s):
        alone = format_duration(lookups.without_reads_s)
        return f"no placement can: without any read from NVMe it is {alone}; look up fewer lengths, or require less"
    if lookups.blocking and requirement.holds(lookups.async_p99_s):
        return f"`cold_reads: async` under `tiers.nvme` predicts {format_duration(lookups.async_p99_s)}"
    alone = format_duration(lookups.without_reads_s)
    return f"place the records that are asked for most in `dram`: without reads from NVMe it is {alone}"


def _worn(
    policy: Policy,
    words: str,
    span: Span | None,
    level: Level,
    writes: ExpectedWrites,
    platform: PlatformFacts,
    source: str,
) -> Diagnostic:
    each = _size(writes.bytes_a_record)
    text = f"{writes.records_per_s:.1f} records/s x {each} = {rate_words(writes.wanted_bytes_per_s)}"
    if writes.bytes_per_s < writes.wanted_bytes_per_s:
        text += f", of which `flush` lets through {rate_words(writes.bytes_per_s)}"
    if platform.nvme_endurance_bytes is not None:
        whole = f"{platform.nvme_endurance_bytes / 1e12:.0f} TB"
        life = drive_life_s(writes.bytes_per_s, platform) or 0.0
        text += f": that writes {whole} in {life_words(life)}"
    labels = _most(policy, writes.by_rule, writes.records_per_s, "records/s are placed by it")
    primary = labels[0].span if span is None and labels else span
    marked = () if span is None else labels
    came = f"{source}; they come within {life_words(writes.within_s)}"
    notes = [Note("note", came), Note("note", f"engine `{writes.engine}` writes {each} for a record")]
    notes += [*_assumed(platform), Note("help", _less_written(writes, platform))]
    label = None if primary is None else Label(primary, text)
    message = f"writes to NVMe: {words}"
    return Diagnostic("T203", message, policy.document.source, label, marked, tuple(notes), _severity(level))


def _less_written(writes: ExpectedWrites, platform: PlatformFacts) -> str:
    remedies = []
    if writes.other_bytes_a_record < writes.bytes_a_record:
        rate = writes.records_per_s * writes.other_bytes_a_record
        life = drive_life_s(rate, platform)
        lasts = "" if life is None else f", {life_words(life)}"
        remedies.append(f"`engine: {writes.other_engine}` predicts {rate_words(rate)}{lasts}")
    if writes.demoted_per_s > writes.records_per_s / 2:
        remedies.append("limit the `demote` with `at most`")
    if writes.twice_per_s is None:
        remedies.append("admit records `after 2 hits`")
    elif writes.twice_per_s < sum(writes.by_rule.values()):
        rate = (writes.twice_per_s + writes.demoted_per_s) * writes.bytes_a_record
        remedies.append(f"admit records `after 2 hits` (predicted {rate_words(rate)})")
    return ", or ".join([*remedies, "place fewer of them there"])


def _unknown_life(policy: Policy, requirement: Requirement, span: Span, platform: PlatformFacts) -> Diagnostic:
    message = f"`{requirement.text}` cannot be checked: platform `{platform.name}` does not say what its drive endures"
    note = Note("help", "add `endurance: 1200TB` (the sheet's TBW) under `nvme:` in the platform file")
    return Diagnostic("T203", message, policy.document.source, Label(span), notes=(note,), severity=Severity.WARNING)


def _most(policy: Policy, by_rule: Mapping[int, float], whole: float, what: str) -> tuple[Label, ...]:
    """Point at the `place` rule that has the largest part in something."""
    if not by_rule or whole <= 0:
        return ()
    number, part = max(by_rule.items(), key=lambda entry: entry[1])
    rule = policy.rules[number - 1]
    return (Label(rule.place.span, f"{part:.1f} of {whole:.1f} {what}"),) if part > 0 else ()


def _assumed(platform: PlatformFacts) -> list[Note]:
    text = f"platform `{platform.name}` has no drive: that of facts F15 is assumed (86 us mean, 430 us p99)"
    return [Note("note", text)] if platform.drive_assumed else []


def _size(size: float) -> str:
    return f"{size / 1e3:.1f} kB" if size >= 1e3 else f"{size:.0f} B"
