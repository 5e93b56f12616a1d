"""What flashnest's drafts are worth under the governor: recorded streams, forwards that take stated times, no model.

Only steps with all requests in flight count: those at a pass's end, with few, would blur the load.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.draft_flashnest import Flashnest
from benchmarks.draft_replay import Stream
from benchmarks.harness import Fact, Result
from flashnest.record import I32Array, I64Array
from flashnest.runtime.forward_cost import ForwardCost, ForwardShape
from flashnest.runtime.governor import Governor


@dataclass(slots=True)
class _Running:
    stream: Stream
    said: int = 0


class _Load:
    """Requests in flight over one drafter and one governor."""

    def __init__(self, rows: int, width: int, forward_ms: Mapping[int, float], *, drafts: bool) -> None:
        self._knots, self._ms = np.array(list(forward_ms), np.float64), np.array(list(forward_ms.values()))
        profile = [(self._shape(tokens), ms / 1e3) for tokens, ms in forward_ms.items()]
        self._flashnest = Flashnest(rows, width)
        self._governor = Governor(max_draft_tokens=width if drafts else 0, cost=ForwardCost(profile))
        self._rows = rows
        self._running: dict[int, _Running] = {}

    def one_pass(self, streams: Sequence[Stream]) -> float:
        """Serve all streams; returns tokens a second of steps with all rows."""
        waiting, tokens, seconds = deque(streams), 0, 0.0
        while waiting or self._running:
            for row in range(self._rows):
                if row not in self._running and waiting:
                    self._running[row] = _Running(waiting.popleft())
                    self._flashnest.start(row, self._running[row].stream.prompt)
            committed, spent_s = self._step()
            if len(self._running) == self._rows:
                tokens, seconds = tokens + committed, seconds + spent_s
            self._running = {row: r for row, r in self._running.items() if r.said < len(r.stream.answer)}
        return tokens / seconds

    def _step(self) -> tuple[int, float]:
        rows, n = list(self._running), len(self._running)
        drafts = self._flashnest.ask(np.array(rows, np.int64))
        caps = np.array([len(r.stream.answer) - r.said - 1 for r in self._running.values()], np.int32)
        lengths = self._governor.choose(drafts, caps, self._shape(n))
        said = []
        for i, request in enumerate(self._running.values()):
            left, offered = request.stream.answer[request.said :], drafts.tokens[i, : lengths[i]]
            right = int(np.argmin(np.append(offered == left[: len(offered)], False)))
            said.append(left[: right + 1])
            request.said += right + 1
        shape = self._shape(n + int(lengths.sum()))
        spent_s = float(np.interp(shape.tokens, self._knots, self._ms)) / 1e3
        self._governor.record_forward(shape, spent_s)
        self._judge(lengths, np.array([len(tokens) - 1 for tokens in said], np.int32))
        ended = [r.said == len(r.stream.answer) for r in self._running.values()]
        self._flashnest.add(rows, said, ended)
        return sum(len(tokens) for tokens in said), spent_s

    def _judge(self, lengths: I32Array, agreed: I32Array) -> None:
        drafts, at = self._flashnest.drafter.drafts, np.flatnonzero(lengths)
        tried = np.minimum(lengths, agreed + 1)
        self._flashnest.drafter.feedback(drafts.keys[: len(lengths)], tried.astype(np.uint32), agreed.astype(np.uint32))
        sources: I64Array = drafts.sources[at].astype(np.int64)
        self._governor.record_drafts(sources.astype(np.int32), drafts.matched[at], tried[at], agreed[at])

    @staticmethod
    def _shape(tokens: int) -> ForwardShape:
        return ForwardShape(tokens, tokens, 0, 0)


def goodput(
    workload: str, streams: Sequence[Stream], forward_ms: Mapping[int, float], *, rows: int, width: int
) -> list[Result]:
    """Return tokens a second with drafts, on a first and a second pass, over those without.

    There must be at least as many streams as `rows`. forward_ms: milliseconds by packed tokens, straight between; past
    the last they stay: name as many as can occur.
    """
    plain = _Load(rows, width, forward_ms, drafts=False).one_pass(streams)
    load, results = _Load(rows, width, forward_ms, drafts=True), []
    for number in (1, 2):
        facts: dict[str, Fact] = {"workload": workload, "requests": rows, "draft_tokens": width, "pass": number}
        results.append(Result("goodput", facts, load.one_pass(streams), "tok/s", "no drafts", plain))
    return results
