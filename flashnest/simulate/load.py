"""Opens a trace file of any kind that is read here; what it holds decides, not its name. Simulates nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from flashnest.errors import WorkloadError
from flashnest.record import record_bytes
from flashnest.simulate.decoding import STEP_MS, Serving, decode
from flashnest.simulate.mooncake import mooncake_trace
from flashnest.simulate.prompt_lines import read_dialogues
from flashnest.simulate.recorded import recorded_trace
from flashnest.simulate.texts import (
    DEFAULT_CONCURRENCY,
    DEFAULT_LENGTHS,
    DEFAULT_OUTPUT_TOKENS,
    spoken_dialogues,
    spoken_passages,
)
from flashnest.simulate.tokenizing import open_tokenizer
from flashnest.simulate.trace import Trace
from flashnest.telemetry.access_trace import is_access_trace

KINDS: Final = "a flashnest access trace, Mooncake JSON lines, JSON lines of prompts, or a plain text"


def load_trace(
    path: Path | str,
    *,
    lengths: tuple[int, ...] = DEFAULT_LENGTHS,
    concurrency: int = DEFAULT_CONCURRENCY,
    output_tokens: int = DEFAULT_OUTPUT_TOKENS,
    tokenizer: Path | str | None = None,
    chunks: bool = True,
    step_ms: float = STEP_MS,
    nbytes: int = record_bytes(),
    limit: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Trace:
    """Read a trace: one that a run recorded (`trace.path=`), Mooncake's JSON lines, JSON lines of prompts, or any text.

    limit: the first so many lines of a file of lines, steps of a recorded trace, passages of a text. The options from
    `lengths` to `step_ms` are for prompts and text, see `text_trace`; a recorded trace and Mooncake's lines say
    themselves what was asked and when. nbytes: of a record, where the file does not say. progress: called with the
    share that is done. Raises WorkloadError for a file that is missing, empty, broken (with the line) or of no kind.
    """
    file = Path(path)
    serving = Serving(lengths, concurrency, step_ms=step_ms, chunks=chunks, nbytes=nbytes)
    serving.check()
    if limit is not None and limit < 1:
        raise WorkloadError(
            f"limit is {limit}", why="a trace needs at least one line, step or passage", fix="--limit 1"
        )
    if is_access_trace(_head(file)):
        return recorded_trace(file, limit=limit)
    text = _text(file)
    first = _first_object(text)
    if first is not None and "hash_ids" in first:
        return mooncake_trace(_lines(text), source=str(file), name=file.stem, nbytes=nbytes, limit=limit)
    if first is None and file.suffix not in (".jsonl", ".json", ".ndjson"):
        encode, how = open_tokenizer(tokenizer)
        spoken = spoken_passages(encode(text), output_tokens)[:limit]
    else:
        dialogues = read_dialogues(_lines(text), source=str(file), output_tokens=output_tokens, limit=limit)
        encode, how = open_tokenizer(tokenizer)
        spoken = spoken_dialogues(dialogues, encode, output_tokens, progress)
    source = f"{file}, {len(spoken)} requests, tokens by {how}"
    return decode(spoken, serving, name=file.stem, source=source)


def _head(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(16)
    except OSError as error:
        raise WorkloadError(
            f"cannot read the trace {file}", why=error.strerror or str(error), fix="check the path"
        ) from None


def _text(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise WorkloadError(
            f"cannot read the trace {file}", why=error.strerror or str(error), fix="check the path"
        ) from None
    except UnicodeDecodeError as error:
        raise WorkloadError(
            f"{file} is no trace", why=f"it is not UTF-8 text: {error.reason}", fix=f"give {KINDS}, unpacked"
        ) from None
    if not text.strip():
        raise WorkloadError(f"{file} is empty", why="a trace needs at least one request", fix=f"give {KINDS}")
    if "\0" in text:
        raise WorkloadError(f"{file} is no trace", why="it holds zero bytes, so it is no text", fix=f"give {KINDS}")
    return text


def _first_object(text: str) -> dict[str, object] | None:
    """Return the first line that is not blank as a JSON object, None where it is none."""
    _, line = next(_lines(text))
    try:
        row: object = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank with their numbers, from 1."""
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())
