"""What a table was asked and taught, step by step: arrays of numbers, no keys and no texts. Reads no file.

A trace has m different records, numbered from 0, and n accesses to them. An access is a LOOKUP or an INSERT. LOOKUPs
with one group number are one question, candidates longest first: its answer is the first candidate that is stored, the
others are not touched. Within a step all LOOKUPs come before the INSERTs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

from flashnest.errors import WorkloadError
from flashnest.record import BoolArray, I32Array, I64Array, U8Array, U32Array

LOOKUP: Final = 0
INSERT: Final = 1
NO_GROUP: Final = -1
_T = TypeVar("_T", bound=np.integer[Any])


@dataclass(frozen=True, slots=True)
class Trace:
    """One trace. Arrays are read-only; `Trace.checked` makes one and refuses what the rules below forbid.

    record int32 (n,): index of the record; op uint8 (n,): LOOKUP or INSERT; step int64 (n,): non-decreasing, 0 to
    steps - 1; group int64 (n,): the question of a LOOKUP, growing from question to question, -1 for INSERTs.
    step_time_ms int64 (steps,): when each step began, non-decreasing. Of each record, (m,): tokens uint8 and kind uint8
    (`Kind` codes), namespace uint32 (`record.namespace_id`), nbytes uint32 as tiers exchange it, key and row.
    namespaces: the names of those ids that are known.
    """

    name: str
    source: str
    """What it was read or made from, for people."""
    record: I32Array
    op: U8Array
    step: I64Array
    group: I64Array
    step_time_ms: I64Array
    tokens: U8Array
    kind: U8Array
    namespace: U32Array
    nbytes: U32Array
    namespaces: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def checked(
        cls,
        *,
        name: str,
        source: str,
        record: npt.ArrayLike,
        op: npt.ArrayLike,
        step: npt.ArrayLike,
        group: npt.ArrayLike,
        step_time_ms: npt.ArrayLike,
        tokens: npt.ArrayLike,
        kind: npt.ArrayLike,
        namespace: npt.ArrayLike,
        nbytes: npt.ArrayLike,
        namespaces: Mapping[int, str] | None = None,
    ) -> Self:
        """Make a trace of arrays or lists, cast to the types above. Raises WorkloadError where a rule is broken."""
        trace = cls(
            name=name,
            source=source,
            record=_array(record, np.int32, "record", source),
            op=_array(op, np.uint8, "op", source),
            step=_array(step, np.int64, "step", source),
            group=_array(group, np.int64, "group", source),
            step_time_ms=_array(step_time_ms, np.int64, "step_time_ms", source),
            tokens=_array(tokens, np.uint8, "tokens", source),
            kind=_array(kind, np.uint8, "kind", source),
            namespace=_array(namespace, np.uint32, "namespace", source),
            nbytes=_array(nbytes, np.uint32, "nbytes", source),
            namespaces=dict(namespaces or {}),
        )
        trace.check()
        return trace

    def check(self) -> None:
        """Raise WorkloadError where the arrays break a rule of the class's docstring."""
        _check_sizes(self)
        _check_accesses(self)
        _check_questions(self)

    def __len__(self) -> int:
        """Return the number of accesses."""
        return len(self.record)

    @property
    def steps(self) -> int:
        """How many steps it has; some may be without any access."""
        return len(self.step_time_ms)

    @property
    def records(self) -> int:
        """How many different records it names."""
        return len(self.tokens)

    @property
    def lookups(self) -> int:
        """Candidates looked up: keys that a table is asked for at most."""
        return int(np.count_nonzero(self.op == LOOKUP))

    @property
    def questions(self) -> int:
        """Groups of LOOKUPs."""
        return int(np.count_nonzero(question_starts(self.op, self.group)))

    @property
    def duration_s(self) -> float:
        """From the first step's beginning to the last one's."""
        return float(self.step_time_ms[-1] - self.step_time_ms[0]) / 1000 if self.steps else 0.0

    def part(self, first: int, end: int) -> Self:
        """Return the steps `first` to `end` - 1, as slices count them, as a trace of the same records.

        Nothing is copied but the step numbers, which start from 0 again.
        """
        start, stop, _ = slice(first, end).indices(self.steps)
        stop = max(start, stop)
        low, high = np.searchsorted(self.step, (start, stop))
        return type(self)(
            name=f"{self.name}[{start}:{stop}]",
            source=self.source,
            record=self.record[low:high],
            op=self.op[low:high],
            step=_frozen(self.step[low:high] - start),
            group=self.group[low:high],
            step_time_ms=self.step_time_ms[start:stop],
            tokens=self.tokens,
            kind=self.kind,
            namespace=self.namespace,
            nbytes=self.nbytes,
            namespaces=self.namespaces,
        )


def question_starts(op: U8Array, group: I64Array) -> BoolArray:
    """Return which accesses begin a question, (n,)."""
    first = np.ones(len(op), np.bool_)
    first[1:] = (group[1:] != group[:-1]) | (op[1:] != op[:-1])
    starts: BoolArray = first & (op == LOOKUP)
    return starts


def _array(values: npt.ArrayLike, dtype: type[_T], name: str, source: str) -> npt.NDArray[_T]:
    given = np.asarray(values)
    if given.dtype != np.bool_ and given.size and not np.issubdtype(given.dtype, np.integer):
        raise WorkloadError(f"the trace {source} is not one", why=f"{name} has values of type {given.dtype}")
    if given.ndim != 1:
        raise WorkloadError(f"the trace {source} is not one", why=f"{name} has {given.ndim} dimensions, not 1")
    limits = np.iinfo(dtype)
    if given.size and (int(given.min()) < limits.min or int(given.max()) > limits.max):
        raise WorkloadError(
            f"the trace {source} is not one",
            why=f"{name} goes from {given.min()} to {given.max()}, where {limits.min} to {limits.max} fit",
        )
    return _frozen(given.astype(dtype))


def _frozen(array: npt.NDArray[_T]) -> npt.NDArray[_T]:
    array.flags.writeable = False
    return array


def _refuse(trace: Trace, why: str) -> None:
    raise WorkloadError(f"the trace {trace.source} is not one", why=why)


def _check_sizes(trace: Trace) -> None:
    accesses = {len(array) for array in (trace.record, trace.op, trace.step, trace.group)}
    records = {len(array) for array in (trace.tokens, trace.kind, trace.namespace, trace.nbytes)}
    if len(accesses) > 1:
        _refuse(trace, "record, op, step and group differ in length")
    if len(records) > 1:
        _refuse(trace, "tokens, kind, namespace and nbytes differ in length")
    if trace.records and (int(trace.nbytes.min()) < 1 or int(trace.tokens.min()) < 1):
        _refuse(trace, "a record of 0 bytes or 0 tokens")
    if trace.records and int(trace.kind.max()) > 1:
        _refuse(trace, "a record of a kind that is neither ngram (0) nor chunk (1)")


def _check_accesses(trace: Trace) -> None:
    if (np.diff(trace.step_time_ms) < 0).any():
        _refuse(trace, "a step begins before the one in front of it")
    if not len(trace):
        return
    if int(trace.record.min()) < 0 or int(trace.record.max()) >= trace.records:
        _refuse(trace, f"an access to a record that is none of the {trace.records}")
    if int(trace.op.max()) > INSERT:
        _refuse(trace, "an access that is neither LOOKUP (0) nor INSERT (1)")
    steps = np.diff(trace.step)
    if int(trace.step[0]) < 0 or int(trace.step[-1]) >= trace.steps or (steps < 0).any():
        _refuse(trace, f"step does not grow from 0 to at most {trace.steps - 1}")
    if ((steps == 0) & (trace.op[1:] < trace.op[:-1])).any():
        _refuse(trace, "a LOOKUP after an INSERT of the same step")


def _check_questions(trace: Trace) -> None:
    asks = trace.op == LOOKUP
    if (trace.group[~asks] != NO_GROUP).any() or (trace.group[asks] < 0).any():
        _refuse(trace, "group is not -1 for exactly the INSERTs")
    groups = np.diff(trace.group[asks])
    if (groups < 0).any():
        _refuse(trace, "the group numbers of LOOKUPs go down")
    if ((groups == 0) & (np.diff(trace.step[asks]) != 0)).any():
        _refuse(trace, "a question that spans two steps")
