"""Replays recorded token streams through a drafter, without a model. Needs numpy alone: other Pythons run it too.

The stream says what the model would have said, so a step costs nothing but the drafter's own time, and a draft token is
accepted where the stream has it. Drafts are not weighed against a cost: every one goes out whole.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Stream:
    """One request: its prompt, int32 (n,), and the whole answer, int32 (m,)."""

    prompt: Tokens
    answer: Tokens


class Replayed(Protocol):
    """A drafter as the replay sees it. Rows are 0..rows-1; each has one request at a time."""

    def start(self, row: int, prompt: Tokens) -> None:
        """Begin a request in a row: its prompt is known, nothing is said yet."""

    def propose(self, rows: Sequence[int]) -> list[Tokens]:
        """Return a draft for each of these rows."""

    def take(self, rows: Sequence[int], said: Sequence[Tokens], ended: Sequence[bool]) -> None:
        """Learn what the model said in these rows: the accepted head of the last draft and a token of its own."""

    def history_bytes(self) -> int:
        """Return the bytes that what was learnt of ended requests takes."""


@dataclass(slots=True)
class Pass:
    """Figures of one pass over the streams."""

    committed: int = 0
    row_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    step_ns: list[int] = field(default_factory=list)
    """Propose and take of each step, all rows."""

    def figures(self) -> dict[str, float]:
        """Return acceptance length, share of drafted tokens that were accepted, and us a step in the median."""
        return {
            "accept_length": self.committed / self.row_steps,
            "accepted_share": self.accepted / max(1, self.drafted),
            "step_us": float(np.median(self.step_ns)) / 1e3,
        }


@dataclass(slots=True)
class _Running:
    stream: Stream
    said: int = 0


def replay(drafter: Replayed, streams: Sequence[Stream], *, rows: int, passes: int) -> dict[str, object]:
    """Run the streams through a drafter `passes` times, `rows` at once; returns figures as `drafts.py` shows them."""
    done = [_one_pass(drafter, streams, rows) for _ in range(passes)]
    tokens = sum(len(s.prompt) + len(s.answer) for s in streams)
    return {"passes": [p.figures() for p in done], "bytes_per_token": drafter.history_bytes() / tokens}


def _one_pass(drafter: Replayed, streams: Sequence[Stream], rows: int) -> Pass:
    taken, waiting = Pass(), deque(streams)
    running: dict[int, _Running] = {}
    while waiting or running:
        for row in range(rows):
            if row not in running and waiting:
                running[row] = _Running(waiting.popleft())
                drafter.start(row, running[row].stream.prompt)
        _step(drafter, running, taken)
        running = {row: r for row, r in running.items() if r.said < len(r.stream.answer)}
    return taken


def _step(drafter: Replayed, running: dict[int, _Running], taken: Pass) -> None:
    rows = list(running)
    began = time.perf_counter_ns()
    drafts = drafter.propose(rows)
    spent = time.perf_counter_ns() - began
    said: list[Tokens] = []
    for request, draft in zip(running.values(), drafts, strict=True):
        left = request.stream.answer[request.said :]
        offered = draft[: len(left) - 1]
        right = int(np.argmin(np.append(offered == left[: len(offered)], False)))
        said.append(left[: right + 1])
        request.said += right + 1
        taken.drafted += len(offered)
        taken.accepted += right
        taken.committed += right + 1
    ended = [r.said == len(r.stream.answer) for r in running.values()]
    began = time.perf_counter_ns()
    drafter.take(rows, said, ended)
    taken.step_ns.append(spent + time.perf_counter_ns() - began)
    taken.row_steps += len(rows)


def save_streams(place: Path, streams: Sequence[Stream]) -> None:
    """Write streams as one .npz."""
    np.savez_compressed(
        place,
        prompts=np.concatenate([s.prompt for s in streams]),
        lengths=np.array([len(s.prompt) for s in streams], np.int64),
        answers=np.stack([s.answer for s in streams]),
    )


def read_streams(place: Path) -> list[Stream]:
    """Read what `save_streams` wrote."""
    with np.load(place, allow_pickle=False) as stored:
        heads = np.split(stored["prompts"], np.cumsum(stored["lengths"])[:-1])
        return [Stream(p, a) for p, a in zip(heads, stored["answers"], strict=True)]


class Dictionary:
    """A plain dictionary from the last 16, 8, 4 or 3 tokens to where they were last seen, in all texts."""

    lengths = (16, 8, 4, 3)

    def __init__(self, rows: int, width: int) -> None:
        self._width = width
        self._index: dict[tuple[int, ...], tuple[int, int]] = {}
        self._texts: list[list[int]] = []
        self._text_of, self._learnt = [0] * rows, [0] * rows

    def start(self, row: int, prompt: Tokens) -> None:
        """See `Replayed`."""
        self._text_of[row], self._learnt[row] = len(self._texts), 0
        self._texts.append(prompt.tolist())
        self._learn(row)

    def propose(self, rows: Sequence[int]) -> list[Tokens]:
        """See `Replayed`."""
        return [np.array(self._draft(self._texts[self._text_of[row]]), np.int32) for row in rows]

    def _draft(self, text: list[int]) -> list[int]:
        for size in self.lengths:
            if hit := self._index.get(tuple(text[-size:])):
                where, place = hit
                return self._texts[where][place : place + self._width]
        return []

    def take(self, rows: Sequence[int], said: Sequence[Tokens], ended: Sequence[bool]) -> None:
        """See `Replayed`."""
        for row, tokens in zip(rows, said, strict=True):
            self._texts[self._text_of[row]].extend(tokens.tolist())
            self._learn(row)

    def _learn(self, row: int) -> None:
        where = self._text_of[row]
        text = self._texts[where]
        for place in range(max(self._learnt[row], 3), len(text)):
            for size in self.lengths:
                if place >= size:
                    self._index[tuple(text[place - size : place])] = (where, place)
        self._learnt[row] = len(text)

    def history_bytes(self) -> int:
        """Return the bytes of keys, values and texts, and of the dictionary itself; token objects not counted."""
        return (
            self._index.__sizeof__()
            + sum(_entry_bytes(len(k)) for k in self._index)
            + sum(t.__sizeof__() for t in self._texts)
        )


def _entry_bytes(tokens: int) -> int:
    """Return the bytes of a key tuple of `tokens`, and of its value: a pair with one number of its own."""
    return (40 + 16 + 8 * tokens) + (40 + 16 + 16 + 28)
