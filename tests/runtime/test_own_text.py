"""The index of a request's own text against brute force: longest match, most recent of equals, rows that change."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashnest.record import I32Array
from flashnest.runtime import own_text
from flashnest.runtime.drafts import DraftParts, Drafts, Source
from flashnest.runtime.own_text import OwnText

WIDTH = 6
ROWS = np.zeros(1, np.int64)


def offer(index: OwnText, text: I32Array, drafts: Drafts | None = None) -> Drafts:
    """Return what row 0's own text offers when it is `text`."""
    drafts = Drafts.allocate(1, WIDTH) if drafts is None else drafts
    lengths = np.array([len(text)], np.int32)
    index.read(text[None], ROWS, lengths)
    index.offer(text[None], ROWS, lengths, drafts, DraftParts.allocate(1, 3))
    return drafts


def brute_force(values: list[int]) -> tuple[int, list[int]]:
    """Return the tokens matched, at least 2, and the draft that follows, which goes on in itself."""
    best, place = 1, 0
    for end in range(2, len(values)):
        matched = 0
        while matched < min(end, own_text.COMPARE) and values[end - 1 - matched] == values[-1 - matched]:
            matched += 1
        if matched >= max(best, 2):
            best, place = matched, end
    if place == 0:
        return 0, []
    said = values[place:]
    while len(said) < WIDTH:
        said = said + said
    return best, said[:WIDTH]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.lists(st.integers(1, 60), max_size=4))
def test_own_text_equals_brute_force_however_it_was_read(values: list[int], stops: list[int]) -> None:
    index = OwnText(1)
    text = np.zeros(60, np.int32)
    text[: len(values)] = values
    for stop in sorted(s for s in stops if s < len(values)):
        index.read(text[None], ROWS, np.array([stop], np.int32))
    drafts = Drafts.allocate(1, WIDTH)
    lengths = np.array([len(values)], np.int32)
    index.read(text[None], ROWS, lengths)
    index.offer(text[None], ROWS, lengths, drafts, DraftParts.allocate(1, 3))
    matched, said = brute_force(values)
    assert (int(drafts.matched[0]), drafts.tokens[0, : drafts.lengths[0]].tolist()) == (matched, said)


def test_a_new_request_in_a_row_finds_nothing_of_the_one_before() -> None:
    index = OwnText(1)
    text = np.array([5, 6, 7, 8, 5, 6], np.int32)
    assert offer(index, text).lengths[0] == WIDTH
    index.begin(0)
    assert offer(index, np.array([7, 8, 9, 5, 6], np.int32)).lengths[0] == 0


def test_a_draft_of_a_match_as_long_stays() -> None:
    drafts = Drafts.allocate(1, WIDTH)
    drafts.matched[0], drafts.lengths[0], drafts.sources[0] = 2, 3, Source.DRAM
    offer(OwnText(1), np.array([5, 6, 7, 8, 5, 6], np.int32), drafts)
    assert drafts.sources[0] == Source.DRAM
    drafts.matched[0] = 1
    offer(OwnText(1), np.array([5, 6, 7, 8, 5, 6], np.int32), drafts)
    assert drafts.sources[0] == Source.OWN


def test_a_long_text_is_walked_a_bounded_way() -> None:
    """The only long match is older than `WALK` places with the same bigram: a shorter one is taken."""
    head = [1, 2, 3, 4, 5, 9]
    text = np.array(head + [4, 5, 8] * own_text.WALK + [1, 2, 3, 4, 5], np.int32)
    drafts = offer(OwnText(1), text)
    assert drafts.matched[0] == 2
    assert drafts.tokens[0, 0] == 8


def test_rows_may_grow_wider() -> None:
    index = OwnText(1)
    short = np.array([5, 6, 7, 8, 5], np.int32)
    index.read(short[None], ROWS, np.array([5], np.int32))
    long = np.concatenate([short, [6], np.zeros(100, np.int32)]).astype(np.int32)
    drafts = Drafts.allocate(1, WIDTH)
    lengths = np.array([6], np.int32)
    index.read(long[None], ROWS, lengths)
    index.offer(long[None], ROWS, lengths, drafts, DraftParts.allocate(1, 3))
    assert drafts.tokens[0].tolist() == [7, 8, 5, 6, 7, 8]
