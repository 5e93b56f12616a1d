"""Makes a `Trace` of an access trace that a run recorded with `trace.path=FILE`. The file's form is telemetry's."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flashnest.errors import WorkloadError
from flashnest.record import namespace_id, record_bytes
from flashnest.simulate.numbering import number_keys
from flashnest.simulate.trace import Trace
from flashnest.telemetry.access_trace import AccessLog, read_access_trace


def recorded_trace(path: Path, *, limit: int | None = None) -> Trace:
    """Read a recorded trace, the first `limit` steps of it. Raises WorkloadError where there is none.

    Blocks that are damaged and accesses that the writer dropped are missing; `source` says how many. Facts of a record
    are those it was taught with; one that was only asked for has its length's, and a chunk no known namespace.
    """
    log = read_access_trace(path, limit=limit)
    if not len(log.key):
        raise WorkloadError(
            f"{path} holds no access", why="the run ended before its first lookup", fix="record it again"
        )
    order = np.argsort(2 * log.step + log.taught, kind="stable")
    record, first = number_keys(log.key[order])
    at = order[first]  # of each record, the access that says its facts
    taught = log.taught[order]
    at[record[taught]] = order[taught]
    names = [str(name) for name in log.header.get("namespaces", ["default"])]
    return Trace.checked(
        name=path.stem,
        source=f"{path}, {_origin(log)}",
        record=record,
        op=taught.astype(np.uint8),
        step=log.step[order],
        group=log.question[order],
        step_time_ms=log.step_ms - log.step_ms[0],
        tokens=log.tokens[at],
        kind=log.kind[at],
        namespace=log.namespace[at],
        nbytes=np.full(len(first), int(log.header.get("record_bytes", record_bytes()))),
        namespaces={namespace_id(name): name for name in names},
    )


def _origin(log: AccessLog) -> str:
    parts = [str(log.header.get("title", "a recorded run"))]
    if log.damaged:
        parts.append(f"{log.damaged} damaged blocks left out")
    if log.dropped:
        parts.append(f"{log.dropped} accesses not recorded, the disk was behind")
    return ", ".join(parts)
