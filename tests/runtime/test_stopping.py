"""Where a request ends inside a committed draft: EOS, stop strings, the limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashnest.runtime.request import Finish, SamplingParams
from flashnest.runtime.stopping import Ending, StopScanner

EOS = 0
WORDS = {1: "Hello", 2: " wor", 3: "ld", 4: "!\n\nUs", 5: "er:", 6: " a", 7: "b"}
BYTES = {10: b"\xc3", 11: b"\xa9", 12: b"\xe2\x82", 13: b"\xac"}


def detokenise(tokens: list[int]) -> str:
    """Join the pieces as a byte-level tokenizer does: broken UTF-8 becomes U+FFFD."""
    return b"".join(BYTES.get(token) or WORDS[token].encode() for token in tokens).decode(errors="replace")


def scanner(*, max_tokens: int = 100, stop: tuple[str, ...] = (), ignore_eos: bool = False) -> StopScanner:
    sampling = SamplingParams(max_tokens=max_tokens, stop=stop, ignore_eos=ignore_eos)
    return StopScanner(sampling, (EOS,), detokenise)


def push(scan: StopScanner, *tokens: int) -> Ending | None:
    return scan.push(list(tokens))


def test_eos_inside_a_draft_cuts_it_and_what_follows() -> None:
    scan = scanner()
    assert push(scan, 1, 2) is None
    assert push(scan, 3, EOS, 1, 2) == Ending(Finish.EOS, 3, None)


def test_eos_first_of_all_leaves_no_output() -> None:
    assert push(scanner(), EOS) == Ending(Finish.EOS, 0, None)


def test_ignore_eos_counts_it_as_any_token() -> None:
    scan = scanner(max_tokens=4, ignore_eos=True)
    assert push(scan, 1, EOS, 2) is None
    assert push(scan, EOS, 3) == Ending(Finish.LENGTH, 4, None)


def test_the_limit_inside_a_draft_cuts_it() -> None:
    assert push(scanner(max_tokens=2), 1, 2, 3) == Ending(Finish.LENGTH, 2, None)


def test_eos_past_the_limit_does_not_count() -> None:
    assert push(scanner(max_tokens=2), 1, 2, EOS) == Ending(Finish.LENGTH, 2, None)


def test_eos_within_the_limit_wins_over_it() -> None:
    assert push(scanner(max_tokens=2), 1, EOS) == Ending(Finish.EOS, 1, None)


def test_a_stop_string_across_tokens_and_pushes_is_cut_from_text_and_tokens() -> None:
    """'User:' starts inside token 4 and ends with token 5, a push later; token 4 cannot be split."""
    scan = scanner(stop=("User:",))
    assert push(scan, 1, 4) is None
    assert push(scan, 5, 6) == Ending(Finish.STOP, 1, "Hello!\n\n")


def test_a_stop_string_on_token_borders_keeps_all_tokens_before_it() -> None:
    assert push(scanner(stop=(" world",)), 1, 2, 3, 1) == Ending(Finish.STOP, 1, "Hello")


def test_a_stop_string_inside_one_token_ends_there() -> None:
    assert push(scanner(stop=("ell",)), 1, 2) == Ending(Finish.STOP, 0, "H")


def test_the_first_stop_string_in_the_text_wins() -> None:
    assert push(scanner(stop=("rld", "wor")), 1, 2, 3) == Ending(Finish.STOP, 1, "Hello ")


def test_a_stop_string_and_the_limit_in_the_same_token_is_a_stop() -> None:
    assert push(scanner(stop=("wor",), max_tokens=2), 1, 2) == Ending(Finish.STOP, 1, "Hello ")


def test_a_stop_string_is_found_in_characters_split_over_tokens() -> None:
    """The euro sign comes in two tokens; half of it is no text yet, and belongs to the stop string when it is whole."""
    scan = scanner(stop=("€",))
    assert push(scan, 1, 10, 11, 12) is None
    assert push(scan, 13) == Ending(Finish.STOP, 3, "Helloé")


def test_eos_after_half_a_character_still_ends() -> None:
    assert push(scanner(stop=("x",)), 1, 12, EOS) == Ending(Finish.EOS, 2, None)


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    with pytest.raises(ValueError, match="need a tokenizer"):
        StopScanner(SamplingParams(stop=("x",)), (EOS,))


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        scanner(stop=("",))


@given(
    st.lists(st.sampled_from([*WORDS, *BYTES, EOS]), max_size=30),
    st.lists(st.sampled_from(["world", "User:", "o", "ab", "é", "€ a", "!\n"]), max_size=2),
    st.integers(1, 20),
    st.lists(st.integers(1, 5), min_size=30, max_size=30),
)
def test_the_way_tokens_are_cut_into_drafts_does_not_matter(
    tokens: list[int], stop: list[str], limit: int, lengths: list[int]
) -> None:
    whole = push(scanner(stop=tuple(stop), max_tokens=limit), *tokens)
    scan, at, ending = scanner(stop=tuple(stop), max_tokens=limit), 0, None
    for length in lengths:
        if ending is None and at < len(tokens):
            ending = push(scan, *tokens[at : at + length])
            at += length
    assert ending == whole
    if whole is not None and whole.text is not None:
        assert not any(s in whole.text for s in stop)
        assert whole.text.startswith(detokenise(tokens[: whole.output_tokens]))
