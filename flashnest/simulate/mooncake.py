"""Reads the JSON lines that Mooncake released: one request a line, its prefix as numbers of 512-token blocks.

A line is `{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}` (kvcache-ai/Mooncake, FAST'25).
One block is one record of kind chunk here, its `tokens` the 32 of a chunk record: what a policy may ask is the record's
facts, and a record's row is as large whether its KV block holds 32 tokens or 512. Lines of one timestamp are one step:
each block is a question of its own, as the prefix cache asks, and all blocks are inserted at the end of the step. The
tokens that were answered have no block numbers and are left out. Never reads texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain, islice
from typing import Final

import numpy as np

from flashnest.errors import WorkloadError
from flashnest.record import CHUNK_TOKENS, I64Array, Kind, namespace_id
from flashnest.simulate.trace import INSERT, LOOKUP, NO_GROUP, Trace

NAMESPACE: Final = "default"


def mooncake_trace(
    lines: Iterable[tuple[int, str]], *, source: str, name: str, nbytes: int, limit: int | None
) -> Trace:
    """Make a trace of numbered lines, at most `limit` of them. Raises WorkloadError with the line's number."""
    requests = [_request(f"{source}:{number}", line) for number, line in islice(lines, limit)]
    requests.sort(key=lambda request: request[0])
    counts = np.array([len(blocks) for _, blocks in requests], np.int64)
    blocks: I64Array = np.fromiter(chain.from_iterable(b for _, b in requests), np.int64, int(counts.sum()))
    if not len(blocks):
        raise WorkloadError(f"{source} asks for no block", why="every `hash_ids` is empty", fix="give other lines")
    step_time_ms, step_of_request = np.unique(np.array([t for t, _ in requests], np.int64), return_inverse=True)
    _, first, record = np.unique(blocks, return_index=True, return_inverse=True)
    step = np.repeat(step_of_request, counts)
    order, op = _lookups_before_inserts(step)
    group = np.where(op == LOOKUP, np.cumsum(op == LOOKUP) - 1, NO_GROUP)
    records = len(first)
    namespace = namespace_id(NAMESPACE)
    return Trace.checked(
        name=name,
        source=f"{source}, {len(requests)} requests, {len(blocks)} references to 512-token blocks",
        record=np.tile(record, 2)[order],
        op=op,
        step=np.tile(step, 2)[order],
        group=group,
        step_time_ms=step_time_ms - step_time_ms[0],
        tokens=np.full(records, CHUNK_TOKENS),
        kind=np.full(records, Kind.CHUNK),
        namespace=np.full(records, namespace, np.uint32),
        nbytes=np.full(records, nbytes),
        namespaces={namespace: NAMESPACE},
    )


def _lookups_before_inserts(step: I64Array) -> tuple[I64Array, I64Array]:
    """Return how to order every access twice, as a LOOKUP and as an INSERT, and the ops in that order, both (2n,)."""
    op = np.repeat(np.array([LOOKUP, INSERT], np.int64), len(step))
    order: I64Array = np.argsort(2 * np.tile(step, 2) + op, kind="stable")
    ordered: I64Array = op[order]
    return order, ordered


def _request(where: str, line: str) -> tuple[int, list[int]]:
    """Return one line's timestamp and blocks."""
    try:
        row: object = json.loads(line)
    except ValueError as error:
        raise WorkloadError(f"{where} is not JSON", why=str(error), fix="write one JSON object a line") from None
    timestamp = row.get("timestamp") if isinstance(row, dict) else None
    blocks = row.get("hash_ids") if isinstance(row, dict) else None
    if not _is_natural(timestamp) or not isinstance(blocks, list) or not all(map(_is_natural, blocks)):
        raise WorkloadError(
            f"{where} is no Mooncake request",
            why="it needs `timestamp`, whole milliseconds, and `hash_ids`, a list of block numbers",
            fix='write lines such as {"timestamp": 0, "hash_ids": [0, 1, 2]}',
        )
    assert isinstance(timestamp, int)
    return timestamp, blocks


def _is_natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
