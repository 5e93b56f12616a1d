"""A recorded access trace as a `Trace`: facts of records, order within a step, what is missing is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flashnest.errors import WorkloadError
from flashnest.record import META, NAMESPACE, Kind, U32Array, namespace_id, namespace_salt, pack_meta, row_words
from flashnest.simulate import LOOKUP, load_trace
from flashnest.telemetry.trace_writer import TraceWriter

HEADER = {"title": "a run", "ngram_lengths": [4, 8], "record_bytes": 104, "namespaces": ["acme"]}
ACME = namespace_id("acme")


def keys_of(*keys: int) -> np.ndarray:
    return np.array(keys, np.uint64)


def rows_of(count: int, kind: Kind, tokens: int) -> U32Array:
    rows = np.zeros((count, row_words()), np.uint32)
    rows[:, META], rows[:, NAMESPACE] = pack_meta(kind, tokens, 0), ACME
    return rows


def record(path: Path, steps: int = 2, block_keys: int = 1 << 10) -> None:
    """Each step learns before it asks for a draft, as no engine does, to see the order put right."""
    writer = TraceWriter(path, HEADER, limit_bytes=1 << 30, block_keys=block_keys, threaded=False)
    for _ in range(steps):
        writer.begin_step()
        writer.ask_chunks(keys_of(70, 71))
        writer.teach(keys_of(70), rows_of(1, Kind.CHUNK, 32))
        writer.ask_ngrams(keys_of(4, 8).reshape(1, 2), keys_of(namespace_salt("acme")))
        writer.teach(keys_of(8), rows_of(1, Kind.NGRAM, 8))
    writer.close()


def test_lookups_come_first_and_facts_are_what_was_taught(tmp_path: Path) -> None:
    record(tmp_path / "run.trace", steps=1)
    trace = load_trace(tmp_path / "run.trace")
    assert trace.op.tolist() == [LOOKUP] * 4 + [1 - LOOKUP] * 2
    assert trace.record.tolist() == [0, 1, 2, 3, 0, 2]  # chunks 70 and 71, then the longest n-gram first
    assert trace.tokens.tolist() == [32, 32, 8, 4]
    assert trace.kind.tolist() == [Kind.CHUNK, Kind.CHUNK, Kind.NGRAM, Kind.NGRAM]
    assert trace.namespace.tolist() == [ACME, 0, ACME, ACME]  # chunk 71 was never taught
    assert trace.questions == 3
    assert set(trace.nbytes.tolist()) == {104}
    assert (trace.name, trace.namespaces) == ("run", {ACME: "acme"})
    assert trace.source == f"{tmp_path / 'run.trace'}, a run"


def test_time_begins_with_the_first_step_and_steps_can_be_limited(tmp_path: Path) -> None:
    record(tmp_path / "t", steps=5)
    assert load_trace(tmp_path / "t").step_time_ms[0] == 0
    trace = load_trace(tmp_path / "t", limit=3)
    assert (trace.steps, len(trace), trace.questions) == (3, 18, 9)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    path = tmp_path / "t"
    record(path, steps=100, block_keys=64)
    path.write_bytes(path.read_bytes()[:-5])
    assert load_trace(path).source.endswith("a run, 1 damaged blocks left out")


def test_a_run_without_a_lookup_is_no_trace(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t", HEADER, limit_bytes=1 << 30, threaded=False)
    writer.begin_step()
    writer.close()
    with pytest.raises(WorkloadError, match="holds no access"):
        load_trace(tmp_path / "t")
