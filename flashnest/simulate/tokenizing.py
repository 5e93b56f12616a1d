"""The two ways from text to token ids for a trace: pieces hashed without any file, or a real `tokenizer.json`.

Neither needs torch or transformers; `tokenizers` is imported only where a file is given.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from flashnest.errors import WorkloadError
from flashnest.record import I32Array
from flashnest.workload.tokens import PieceTokenizer

Encode = Callable[[str], I32Array]
"""Text to ids, int32 (n,)."""

VOCABULARY: Final = 151_936
"""Ids that hashed pieces fall on: Qwen3's vocabulary, so that pieces share an id as rarely as in an emulated run."""


def open_tokenizer(path: Path | str | None) -> tuple[Encode, str]:
    """Return an encoder and its name: of the `tokenizer.json` (or the folder that holds one), without one of pieces.

    Raises WorkloadError where the file cannot be read or `tokenizers` is not installed.
    """
    if path is None:
        return PieceTokenizer(VOCABULARY).encode, "pieces"
    file = Path(path)
    if file.is_dir():
        file = file / "tokenizer.json"
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise WorkloadError(
            "a tokenizer file needs the package tokenizers",
            why="it is not installed here",
            fix="pip install tokenizers, or leave --tokenizer out and use the built-in pieces",
        ) from None
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # whatever the library raises: it has no class of its own
        raise WorkloadError(
            f"cannot read the tokenizer {file}",
            why=str(error),
            fix="give a tokenizer.json, as Hugging Face models carry one, or the folder that holds it",
        ) from None

    def encode(text: str) -> I32Array:
        return np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    return encode, file.parent.name or file.name
