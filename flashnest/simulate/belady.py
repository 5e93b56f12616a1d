"""Belady's optimum: how many questions any table of a size could answer that knew the future. Simulates no policy.

What is bounded. A question is answered by a table if one of its candidates lies in it, and that one has lain there
since it was last inserted or looked up. Of a question's candidates the one that was last named most recently has to
lie there for the shortest time, and each of the others would have to lie there that time too. So every question that
was answered took one record's room over its *shortest* interval, and two intervals that overlap took the room of two
records. The optimum is the largest set of intervals of which no more than the table's records overlap: greedily, when
one too many overlap, the one that ends last goes. That is Belady's MIN with bypass (IBM Systems Journal 1966), the
greedy choice optimal for intervals (Carlisle and Lloyd 1995).

With one candidate a question and an insert after each miss the bound is exact: MIN itself. With several it is an upper
bound. A table that NVMe promotes into may pass it by a little: a record then comes back without being named.
"""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from flashnest.jit import inline_kernel, kernel
from flashnest.record import I32Array, I64Array, U8Array
from flashnest.simulate.trace import LOOKUP, Trace

_NONE: Final = -1
_T = TypeVar("_T", bound=np.generic)


def most_answered(trace: Trace, records: int) -> int:
    """Return the most questions of a trace that a table of so many records could answer."""
    if records < 1 or not len(trace):
        return 0
    named = np.full(trace.records, _NONE, np.int64)
    begins = np.full(len(trace), _NONE, np.int64)
    _shortest(_view(trace.record), _view(trace.op), _view(trace.group), named, begins)
    asked = np.flatnonzero(begins >= 0)
    order = asked[np.argsort(begins[asked], kind="stable")]
    return int(_most_overlapping(begins[order], order, len(trace), records))


def _view(array: npt.NDArray[_T]) -> npt.NDArray[_T]:
    view = array.view()
    view.flags.writeable = False
    return view


@kernel
def _shortest(record: I32Array, op: U8Array, group: I64Array, named: I64Array, begins: I64Array) -> None:
    """Write for the first access of each question when its most recently named candidate was, -1: never learnt.

    named int64 (m,), -1 everywhere: becomes the last access to each record that was learnt once.
    """
    i = 0
    while i < record.shape[0]:
        if op[i] != LOOKUP:
            named[record[i]] = i
            i += 1
            continue
        j, latest = i, int(_NONE)
        while j < record.shape[0] and op[j] == LOOKUP and group[j] == group[i]:
            latest = max(latest, named[record[j]])
            j += 1
        begins[i] = latest
        for k in range(i, j):
            if named[record[k]] >= 0:
                named[record[k]] = i
        i = j


@inline_kernel
def _push(heap: I64Array, size: int, value: int) -> int:
    """Put a value into a heap whose largest is first; returns its size."""
    at = size
    while at > 0 and heap[(at - 1) >> 1] < value:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    heap[at] = value
    return size + 1


@inline_kernel
def _pop(heap: I64Array, size: int) -> int:
    """Take the largest value, heap[0], off a heap; returns its size."""
    size -= 1
    value, at = heap[size], 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] > heap[child]:
            child += 1
        if heap[child] <= value:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = value
    return size


@kernel
def _most_overlapping(begins: I64Array, ends: I64Array, accesses: int, room: int) -> int:
    """Return how many intervals can be kept, at most `room` at any moment; `begins` ascending, ends all different.

    Ended intervals stay in the heap below those that go on: the largest end is never one of them while one goes on.
    """
    heap = np.empty(begins.shape[0], np.int64)
    kept = np.zeros(accesses, np.uint8)
    size = open_now = total = 0
    at = 0
    for i in range(begins.shape[0]):
        while at <= begins[i]:
            if kept[at]:
                open_now -= 1
                total += 1
            at += 1
        size = _push(heap, size, ends[i])
        kept[ends[i]] = 1
        open_now += 1
        if open_now > room:
            kept[heap[0]] = 0
            size = _pop(heap, size)
            open_now -= 1
    while at < accesses:
        total += kept[at]
        at += 1
    return total
