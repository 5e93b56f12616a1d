"""The built-in text is there and reads as prose; a user's file gives its text or one clear error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flashnest.errors import WorkloadError
from flashnest.workload.text import Corpus, load_corpus, split_sentences


def test_builtin_text_is_long_enough_and_the_same_each_time() -> None:
    first = load_corpus(min_words=5_000)
    again = load_corpus(min_words=5_000)
    assert first.word_count >= 5_000
    assert first.documents == again.documents


def test_builtin_text_grows_by_whole_documents_when_more_is_asked() -> None:
    small, large = load_corpus(min_words=2_000), load_corpus(min_words=8_000)
    assert small.word_count < 8_000 <= large.word_count
    assert large.documents[: len(small.documents)] == small.documents


def test_builtin_text_is_prose() -> None:
    text = " ".join(load_corpus(min_words=5_000).documents)
    assert ">>>" not in text
    assert sum(c.isalpha() or c == " " for c in text) / len(text) > 0.85


def test_fragments_have_the_asked_length_and_no_exact_repeats() -> None:
    corpus = Corpus("test", ("a b c d e f g", "a b c x y z"))
    assert corpus.fragments(3) == ["a b c", "d e f", "x y z"]


def test_sentences_are_distinct_and_in_order() -> None:
    assert Corpus("test", ("One two. Three?  Four!", "One two.")).sentences() == ["One two.", "Three?", "Four!"]
    assert split_sentences("No stop\nat the end") == ["No stop at the end"]


@pytest.mark.parametrize("suffix", [".txt", ".md"])
def test_text_file_is_one_document(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"mine{suffix}"
    path.write_text("First line\n\nsecond line.\n")
    corpus = load_corpus(path)
    assert corpus.documents == ("First line second line.",)
    assert corpus.source == str(path)


def test_jsonl_gives_turns_prompts_and_texts(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    rows: list[dict[str, object]] = [{"turns": ["one", "two"]}, {"prompt": "three"}, {"text": "four", "id": 1}]
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    assert load_corpus(path).documents == ("one", "two", "three", "four")


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("empty.txt", b" \n", "holds no text"),
        ("empty.jsonl", b"", "holds no text"),
        ("bad.jsonl", b'{"prompt": "a"}\n{"prompt"', "bad.jsonl:2 is not JSON"),
        ("other.jsonl", b'{"question": "a"}\n', "other.jsonl:1 holds no prompt"),
        ("list.jsonl", b'{"turns": [1]}\n', "list.jsonl:1 holds no prompt"),
        ("latin.txt", "caf\u00e9".encode("latin-1"), "is not UTF-8"),
        ("table.csv", b"a,b", "not a kind of text file"),
    ],
)
def test_bad_file_is_one_clear_error(tmp_path: Path, name: str, content: bytes, what: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(WorkloadError) as caught:
        load_corpus(path)
    assert what in caught.value.what
    assert caught.value.why
    assert caught.value.fix


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError) as caught:
        load_corpus(tmp_path / "none.txt")
    assert "none.txt" in caught.value.what
    assert "No such file" in caught.value.why
