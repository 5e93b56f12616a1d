"""The replay behind benchmarks/drafts.py: what counts as accepted, and that streams are learnt to their end."""

from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.draft_flashnest import Flashnest
from benchmarks.draft_goodput import goodput
from benchmarks.draft_replay import Dictionary, Stream, Tokens, replay
from benchmarks.drafts import OwnTextOnly


class Oracle:
    """Drafts the next `right` tokens of the answer, then a wrong one."""

    def __init__(self, streams: Sequence[Stream], right: int) -> None:
        self.streams, self.right = {tuple(s.prompt.tolist()): s.answer for s in streams}, right
        self.answers: dict[int, Tokens] = {}
        self.said: dict[int, list[int]] = {}
        self.ended: list[list[int]] = []

    def start(self, row: int, prompt: Tokens) -> None:
        self.answers[row], self.said[row] = self.streams[tuple(prompt.tolist())], []

    def propose(self, rows: Sequence[int]) -> list[Tokens]:
        drafts = []
        for row in rows:
            at = len(self.said[row])
            drafts.append(np.append(self.answers[row][at : at + self.right], -1).astype(np.int32))
        return drafts

    def take(self, rows: Sequence[int], said: Sequence[Tokens], ended: Sequence[bool]) -> None:
        for row, tokens, end in zip(rows, said, ended, strict=True):
            self.said[row] += tokens.tolist()
            if end:
                self.ended.append(self.said[row])

    def history_bytes(self) -> int:
        return 0


def streams(count: int, answer: int = 20) -> list[Stream]:
    rng = np.random.default_rng(5)
    return [
        Stream(rng.integers(0, 9000, 40).astype(np.int32), rng.integers(0, 9000, answer).astype(np.int32))
        for _ in range(count)
    ]


@pytest.mark.parametrize(("right", "steps"), [(0, 20), (1, 10), (4, 4), (30, 1)])
def test_a_step_commits_what_agrees_and_one_more(right: int, steps: int) -> None:
    texts = streams(5)
    oracle = Oracle(texts, right)
    figures = replay(oracle, texts, rows=2, passes=1)["passes"]
    assert isinstance(figures, list)
    assert figures[0]["accept_length"] == 20 / steps
    assert oracle.ended == [s.answer.tolist() for s in texts]


@pytest.mark.parametrize("make", [Flashnest, Dictionary])
def test_a_second_pass_over_the_same_streams_accepts_nearly_all(make: type[Flashnest] | type[Dictionary]) -> None:
    texts = streams(6, answer=40)
    first, second = replay(make(2, 16), texts, rows=2, passes=2)["passes"]  # type: ignore[misc]
    assert first["accept_length"] < 1.1
    assert second["accept_length"] > 7


def test_own_text_keeps_nothing_of_a_request_that_ended() -> None:
    texts = streams(6)
    figures = replay(OwnTextOnly(2, 16), texts, rows=2, passes=2)
    assert figures["passes"][0]["accept_length"] == figures["passes"][1]["accept_length"]  # type: ignore[index]
    assert figures["bytes_per_token"] == 0


def test_goodput_is_that_of_no_drafts_where_nothing_repeats_and_rises_where_all_does() -> None:
    texts = streams(8, answer=40)
    first, second = goodput("random", texts, {1: 18.0, 8: 22.0, 32: 50.0, 256: 274.0}, rows=2, width=8)
    assert first.reference_value == pytest.approx(2 / 0.0185714, rel=1e-3)
    assert 0.98 <= first.ratio <= 1.1  # type: ignore[operator]
    assert second.ratio > 3  # type: ignore[operator]
