"""The emulation's tokenizer is stable, keeps repeats, and stays clear of reserved ids."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashnest.workload.text import load_corpus
from flashnest.workload.tokens import RESERVED_IDS, PieceTokenizer


def test_ids_are_the_same_in_every_process() -> None:
    """The value is pinned: a table on disk from an earlier run must still match."""
    assert PieceTokenizer(151_936).encode("The cat.").tolist() == [142799, 114859, 151891]


def test_equal_text_gives_equal_tokens_wherever_it_stands() -> None:
    tokenizer = PieceTokenizer(50_000)
    phrase, whole = tokenizer.encode(" a repeated phrase"), tokenizer.encode("Before a repeated phrase, after.")
    assert phrase.dtype == np.int32
    assert whole[1 : 1 + len(phrase)].tolist() == phrase.tolist()


def test_density_is_that_of_a_trained_tokenizer() -> None:
    text = "\n".join(load_corpus(min_words=5_000).fragments(48))
    pieces = len(PieceTokenizer(50_000).encode(text))
    assert 1.25 < pieces / len(text.split()) < 1.55


@given(st.text())
def test_any_text_encodes_within_the_vocabulary(text: str) -> None:
    ids = PieceTokenizer(1_000).encode(text)
    assert len(ids) >= bool(text)
    assert all(RESERVED_IDS <= i < 1_000 for i in ids)


def test_no_character_is_lost() -> None:
    tokenizer = PieceTokenizer(50_000)
    texts = ["a b", "a  b", "a_b", "a.b", "ab", "a\nb", "a b.", "aB"]
    assert len({tuple(tokenizer.encode(text).tolist()) for text in texts}) == len(texts)


def test_eos_is_never_an_id_of_text() -> None:
    tokenizer = PieceTokenizer.for_model(20, (6, 7))
    ids = set(tokenizer.encode(" ".join(f"word{i}" for i in range(500))).tolist())
    assert ids == set(range(5, 20)) - {6, 7}


def test_vocabulary_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves no id"):
        PieceTokenizer(RESERVED_IDS)
