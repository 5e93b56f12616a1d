"""Begins a run's access trace, where `trace.path` asks for one, and says at the end what came of it."""

from __future__ import annotations

from pathlib import Path

from flashnest.config import RunConfig
from flashnest.policy import Policy
from flashnest.record import record_bytes
from flashnest.report.figures import bytes_text, short_count_text
from flashnest.runtime.forward import ModelSpec
from flashnest.telemetry.trace_writer import TraceStats, TraceWriter


def open_trace(run: RunConfig, policy: Policy, spec: ModelSpec, namespaces: tuple[str, ...]) -> TraceWriter | None:
    """Open the writer, None where no trace is asked for. Raises WorkloadError where the file cannot be made.

    The header has what a reader of the trace cannot know otherwise: names of namespaces, n-gram lengths, record bytes.
    """
    if run.trace.path is None:
        return None
    header = {
        "title": f"{run.model.name} on {run.platform.name}, tiering {run.tiering.name}, {run.workload.name}",
        "ngram_lengths": list(run.decode.drafts.lengths),
        "record_bytes": record_bytes(run.table.chain_tokens),
        "namespaces": sorted({*namespaces, *policy.namespace_names.values()}),
        "concurrency": run.max_requests,
        "vocabulary": spec.name,
    }
    return TraceWriter(Path(run.trace.path).expanduser(), header, limit_bytes=run.trace.limit_bytes)


def trace_line(stats: TraceStats) -> str:
    """Return what a run says of its trace at its end, for people."""
    parts = [
        f"trace: {stats.path}, {bytes_text(stats.bytes_written)}, {short_count_text(stats.accesses)} accesses"
        f" in {short_count_text(stats.steps)} steps"
    ]
    if stats.full:
        parts.append("it ends where it reached trace.limit")
    if stats.dropped:
        parts.append(f"{short_count_text(stats.dropped)} accesses are missing, the disk was behind")
    if stats.error:
        parts.append(f"it ends early: {stats.error}")
    return "; ".join(parts)
