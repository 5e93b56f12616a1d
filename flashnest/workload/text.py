"""Real text at hand on any machine, or a user's own file, as documents of plain prose.

The built-in text is the prose that ships with Python: the language reference in `pydoc_data.topics` (466 K characters
in 3.11, parsed in 30 ms), then the standard library's docstrings in path order (1.8 M characters, 6 s for all) as far
as they are needed. So it is the same for one Python version, and needs no network. Nothing is imported or run: sources
are parsed with `ast`. This module never makes prompts.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final

from flashnest.errors import WorkloadError

BUILTIN_WORDS: Final = 50_000
"""Words of built-in text unless more are asked for: about 350 KB, enough for 200 prompts without a repeat."""

_SKIPPED: Final = frozenset(
    {"test", "tests", "idlelib", "idle_test", "site-packages", "dist-packages", "lib2to3", "ensurepip", "turtledemo"}
)
_TOPICS: Final = Path("pydoc_data") / "topics.py"
_MIN_PARAGRAPH_WORDS: Final = 10
_MIN_LETTER_SHARE: Final = 0.72
"""Letters among all characters: English prose has 0.78-0.83, code, grammar and tables less."""
_SUFFIXES: Final = (".txt", ".md", ".jsonl")


@dataclass(frozen=True)
class Corpus:
    """Documents of text, in a fixed order. `source` says where they come from, for the report."""

    source: str
    documents: tuple[str, ...]

    @cached_property
    def word_count(self) -> int:
        """Words in all documents."""
        return sum(len(document.split()) for document in self.documents)

    def fragments(self, words: int) -> list[str]:
        """Cut every document into whole fragments of `words` words; none crosses a document, exact repeats go."""
        found: dict[str, None] = {}
        for document in self.documents:
            split = document.split()
            for start in range(0, len(split) - words + 1, words):
                found[" ".join(split[start : start + words])] = None
        return list(found)

    def sentences(self) -> list[str]:
        """Return the distinct sentences of all documents, in order."""
        return list(dict.fromkeys(s for document in self.documents for s in split_sentences(document)))


def split_sentences(text: str) -> list[str]:
    """Split text after a full stop, question or exclamation mark; white space within becomes one space."""
    return [" ".join(part.split()) for part in re.split(r"(?<=[.!?])\s+", text) if part.strip()]


def load_corpus(path: str | Path | None = None, *, min_words: int = BUILTIN_WORDS) -> Corpus:
    """Return the built-in text, or the text of a `.txt`, `.md` or `.jsonl` file.

    A `.jsonl` line is an object with `turns` (a list, as in Spec-Bench), `prompt` or `text`; each string is a document.
    `min_words` says how much built-in text is wanted and is no demand on a file: the caller knows how much it needs.
    Raises WorkloadError where the file is missing, of another kind, not UTF-8, badly formed or empty.
    """
    return _builtin_corpus(min_words) if path is None else _file_corpus(Path(path))


# --- the built-in text -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _builtin_corpus(min_words: int) -> Corpus:
    root = Path(sysconfig.get_paths()["stdlib"])
    documents: list[str] = []
    words = 0
    for strings in _library_strings(root):
        prose = " ".join(paragraph for text in strings for paragraph in _prose(text))
        if not prose:
            continue
        documents.append(prose)
        words += len(prose.split())
        if words >= min_words:
            break
    if not documents:
        raise WorkloadError(
            "the built-in text is not available",
            why=f"no Python sources with documentation were found in {root}",
            fix="give a text file of your own: workload.text=FILE.txt",
        )
    return Corpus("documentation of the Python standard library", tuple(documents))


def _library_strings(root: Path) -> Iterator[list[str]]:
    """Yield lists of documentation strings: the language reference's topics one by one, then one list per module."""
    topics = _parse(root / _TOPICS)
    if topics is not None:
        yield from ([text] for text in _long_strings(topics))
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if relative == _TOPICS or _SKIPPED.intersection(relative.parts):
            continue
        tree = _parse(path)
        if tree is not None:
            yield list(_docstrings(tree))


def _parse(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


def _long_strings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) > 100:
            yield node.value


def _docstrings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield text


def _prose(text: str) -> Iterator[str]:
    """Yield the paragraphs that read as prose, each on one line: no doctests, code, grammar or tables."""
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        paragraph = " ".join(block.split()).removeprefix("* ")
        letters = sum(c.isalpha() for c in paragraph)
        long_enough = len(paragraph.split()) >= _MIN_PARAGRAPH_WORDS
        if long_enough and ">>>" not in paragraph and letters >= _MIN_LETTER_SHARE * len(paragraph):
            yield paragraph


# --- a user's file ---------------------------------------------------------------------------------------------------


def _file_corpus(path: Path) -> Corpus:
    text = _read(path)
    documents = _jsonl_documents(path, text) if path.suffix == ".jsonl" else [" ".join(text.split())]
    documents = [document for document in documents if document.strip()]
    if not documents:
        raise WorkloadError(f"{path} holds no text", why="the file is empty", fix="give a file with prose in it")
    return Corpus(str(path), tuple(documents))


def _read(path: Path) -> str:
    if path.suffix not in _SUFFIXES:
        raise WorkloadError(
            f"{path} is not a kind of text file that is read here",
            why=f"its name ends in {path.suffix or 'nothing'!r}",
            fix=f"use one of {', '.join(_SUFFIXES)}",
        )
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path} is not UTF-8 text", why=str(error), fix="convert it with iconv -t utf-8") from None
    except OSError as error:
        raise WorkloadError(
            f"cannot read the workload's text {path}", why=error.strerror or str(error), fix="check the path"
        ) from None


def _jsonl_documents(path: Path, text: str) -> list[str]:
    documents: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            documents += _line_strings(f"{path}:{number}", line)
    return documents


def _line_strings(where: str, line: str) -> list[str]:
    try:
        row: object = json.loads(line)
    except json.JSONDecodeError as error:
        raise WorkloadError(f"{where} is not JSON", why=str(error), fix="write one JSON object a line") from None
    if isinstance(row, dict):
        for field in ("turns", "prompt", "text"):
            value = row.get(field)
            strings = [value] if isinstance(value, str) else value
            if isinstance(strings, list) and all(isinstance(s, str) for s in strings):
                return [str(s) for s in strings]
    raise WorkloadError(
        f"{where} holds no prompt",
        why="it has none of the fields turns (a list of strings), prompt and text",
        fix='write lines such as {"prompt": "..."}',
    )
