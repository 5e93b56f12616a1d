"""The draft of last resort: the newest successor of the last two tokens, else of the last one, within a namespace."""

import numpy as np

from flashnest.record import I32Array, namespace_salt
from flashnest.runtime.drafts import DraftParts, Drafts, Source
from flashnest.runtime.successors import WALK, Successors

ROWS = np.zeros(1, np.int64)


def learn(successors: Successors, text: list[int], salt: int = 1) -> None:
    successors.learn(
        np.array([text], np.int32), ROWS, np.zeros(1, np.int32), np.array([len(text)], np.int32), salts_of(salt)
    )


def salts_of(salt: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.array([namespace_salt(str(salt))], np.uint64)


def extend(
    successors: Successors, text: list[int], draft: tuple[int, ...] = (), salt: int = 1, width: int = 8
) -> tuple[Drafts, list[int]]:
    """Return the drafts, and row 0's tokens, after extending `draft`."""
    drafts, parts = Drafts.allocate(1, width), DraftParts.allocate(1, 3)
    drafts.tokens[0, : len(draft)] = draft
    drafts.lengths[0] = len(draft)
    if draft:
        drafts.sources[0], drafts.matched[0] = Source.DRAM, 8
        parts.counts[0], parts.ends[0, 0] = 1, len(draft)
    tokens: I32Array = np.array([text], np.int32)
    successors.extend(tokens, ROWS, np.array([len(text)], np.int32), salts_of(salt), drafts, parts)
    assert parts.ends[0, parts.counts[0] - 1] == drafts.lengths[0] or not drafts.lengths[0]
    return drafts, drafts.tokens[0, : drafts.lengths[0]].tolist()


def test_two_tokens_decide_before_one() -> None:
    successors = Successors()
    learn(successors, [1, 2, 3, 9, 2, 4])
    drafts, said = extend(successors, [7, 1, 2])
    assert (said[0], drafts.matched[0], drafts.sources[0]) == (3, 2, Source.RECENT)
    drafts, said = extend(successors, [7, 8, 2])
    assert (said[0], drafts.matched[0]) == (4, 1)


def test_the_newest_successor_wins() -> None:
    successors = Successors()
    learn(successors, [1, 2, 3])
    learn(successors, [1, 2, 4])
    assert extend(successors, [1, 2])[1][0] == 4


def test_a_walk_is_short_and_fits_the_draft() -> None:
    successors = Successors()
    learn(successors, list(range(40)))
    assert extend(successors, [4, 5])[1] == list(range(6, 6 + WALK))
    assert extend(successors, [4, 5], width=2)[1] == [6, 7]


def test_a_draft_goes_on_from_its_own_last_tokens_and_keeps_its_source() -> None:
    successors = Successors()
    learn(successors, list(range(40)))
    drafts, said = extend(successors, [4, 5], (20, 21))
    assert said == [20, 21, *range(22, 22 + WALK)]
    assert (drafts.sources[0], drafts.matched[0]) == (Source.DRAM, 8)
    assert extend(successors, [4, 5], (6,))[1] == [6, *range(7, 7 + WALK)]


def test_another_tenant_finds_nothing() -> None:
    successors = Successors()
    learn(successors, list(range(40)), salt=1)
    assert extend(successors, [4, 5], salt=2)[1] == []


def test_a_token_too_large_for_a_slot_is_left_out() -> None:
    successors = Successors()
    learn(successors, [1, 2, 1 << 18, 3])
    assert extend(successors, [1, 2])[1] == []
    assert extend(successors, [2, 1 << 18])[1] == [3]


def test_texts_of_one_token_are_left_alone() -> None:
    successors = Successors()
    learn(successors, [1])
    assert extend(successors, [1])[1] == []


def test_a_context_knows_how_predictable_it_is() -> None:
    successors = Successors()
    for last in (3, 3, 3, 4, 3):
        learn(successors, [1, 2, last])
    drafts, said = extend(successors, [1, 2])
    assert (said[0], drafts.tried[0], drafts.agreed[0]) == (3, 4, 2)


def test_history_of_a_context_is_halved_before_it_overflows() -> None:
    successors = Successors()
    for _ in range(100):
        learn(successors, [1, 2, 3])
    drafts, _ = extend(successors, [1, 2])
    assert 8 <= drafts.tried[0] <= 15
    assert drafts.agreed[0] == drafts.tried[0]
