"""Reads platform files for the policy commands, without Hydra and pydantic (0.5 s): only what those commands ask for.

`python -m flashnest` reads the same files through `flashnest.config`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any, Final, TypeVar

from flashnest.errors import ConfigError, FlashnestError
from flashnest.policy.platform_facts import PlatformFacts, tier_capacities
from flashnest.policy.yaml_nodes import YamlShapeError, read_yaml
from flashnest.units import Dimension, parse_bytes, parse_duration_s, parse_rate

T = TypeVar("T")

__all__ = ["PlatformFacts", "platform_facts", "platform_names", "tier_capacities"]

_SUFFIXES: Final = (".yaml", ".yml")
_MOST_PARENTS: Final = 8
_DRIVE_F15: Final = {"random_read_mean": "86us", "random_read_p99": "430us", "iops": 1_400_000}
"""A drive for platforms whose file has none: the 990 PRO of facts F15 and its sheet."""


def platform_names() -> tuple[str, ...]:
    """Return the names of the shipped platforms."""
    return tuple(sorted(path.stem for path in _folder().glob("*.yaml")))


def platform_facts(name_or_path: str) -> PlatformFacts:
    """Read a shipped platform by name, or a platform file by path. Raises ConfigError."""
    path = _platform_path(name_or_path)
    return _Reader(path, _merged(path, 0)).facts()


def _folder() -> Path:
    return Path(str(resources.files("flashnest"))) / "conf" / "platform"


def _platform_path(name: str) -> Path:
    if "/" in name or Path(name).suffix in _SUFFIXES:
        return Path(name)
    if name not in platform_names():
        from flashnest.policy.diagnostics import unknown

        what, fix = unknown(name, "platform", platform_names())
        raise ConfigError(what, why="a bare name is a shipped platform; a file has an ending such as .yaml", fix=fix)
    return _folder() / f"{name}.yaml"


def _merged(path: Path, deep: int) -> dict[str, Any]:
    """Read a platform file over those that its `defaults` name, as Hydra would: later entries win."""
    own = _mapping(path)
    merged: dict[str, Any] = {}
    entries = own.pop("defaults", None)
    for entry in entries if isinstance(entries, list) else ["_self_"]:
        if entry == "_self_":
            merged = _over(merged, own)
        elif isinstance(entry, str):
            merged = _over(merged, _parent(path, entry, deep))
    named_self = isinstance(entries, list) and "_self_" not in entries
    return _over(merged, own) if named_self else merged


def _parent(path: Path, name: str, deep: int) -> dict[str, Any]:
    if deep >= _MOST_PARENTS:
        raise ConfigError(f"{path}: its defaults go round", fix="a platform file cannot build on itself")
    beside = path.parent / f"{Path(name).name}.yaml"
    return _merged(beside if beside.exists() else _platform_path(Path(name).name), deep + 1)


def _mapping(path: Path) -> dict[str, Any]:
    try:
        plain = read_yaml(path.read_text("utf-8-sig")).value()
    except OSError as error:
        raise ConfigError(f"cannot read {path}", why=str(error.strerror)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text", why=f"byte {error.start} is not UTF-8") from error
    except YamlShapeError as error:
        raise ConfigError(f"{path}:{error.line}:{error.column}: {error.what}", fix=error.fix) from error
    if not isinstance(plain, dict):
        raise ConfigError(f"{path} is not a platform file", fix="see flashnest/conf/platform/rtx4090.yaml")
    return plain


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _over(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


class _Reader:
    """One file's values, with errors that name the key."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self._path, self._values = path, values

    def facts(self) -> PlatformFacts:
        unified = self._values.get("unified_memory") is True
        has_drive = self._values.get("nvme") is not None
        if not has_drive:
            self._values["nvme"] = _DRIVE_F15
        endurance, vram = self._bytes("nvme", "endurance"), self._bytes("memory", "vram")
        return PlatformFacts(
            name=str(self._values.get("name", self._path.stem)),
            vram_bytes=self._bytes("table", "vram"),
            dram_bytes=self._needed(self._bytes("table", "dram"), "table.dram"),
            nvme_bytes=self._needed(self._bytes("table", "nvme"), "table.nvme"),
            nvme_read_mean_s=self._seconds("random_read_mean"),
            nvme_read_p99_s=self._seconds("random_read_p99"),
            nvme_iops=self._count("nvme", "iops"),
            nvme_endurance_bytes=endurance,
            concurrency=self._count("load", "concurrency"),
            memory_dram_bytes=self._bytes("memory", "dram"),
            memory_vram_bytes=vram,
            unified_memory=unified,
            nvme_sequential_bytes_per_s=self._rate("sequential_read", 7450e6),
            drive_assumed=not has_drive,
        )

    def _text(self, section: str, key: str) -> str | None:
        """Return a value as text; None where it is not given, null, or for the operating system to say."""
        inside = self._values.get(section)
        value = inside.get(key) if isinstance(inside, dict) else None
        if value is None or isinstance(value, dict | list | bool):
            return None
        return None if str(value).startswith("${detect:") else str(value)

    def _bytes(self, section: str, key: str) -> int | None:
        text = self._text(section, key)
        return None if text is None else self._read(section, key, lambda: parse_bytes(text))

    def _seconds(self, key: str) -> float:
        text = self._needed(self._text("nvme", key), f"nvme.{key}")
        return self._read("nvme", key, lambda: parse_duration_s(text))

    def _count(self, section: str, key: str) -> int:
        text = self._needed(self._text(section, key), f"{section}.{key}")
        if not text.isdigit() or int(text) < 1:
            raise ConfigError(f"{self._path}: {section}.{key} = {text} is not a number of at least 1")
        return int(text)

    def _rate(self, key: str, default: float) -> float:
        text = self._text("nvme", key)
        if text is None:
            return default
        rate = self._read("nvme", key, lambda: parse_rate(text))
        if rate.dimension is not Dimension.BYTE_RATE:
            raise ConfigError(f"{self._path}: nvme.{key} = {text} is not a rate in bytes", fix='like "7450MB/s"')
        return float(rate.value)

    def _needed(self, value: T | None, key: str) -> T:
        if value is None:
            raise ConfigError(f"{self._path}: {key} is not given", fix="see flashnest/conf/platform/rtx4090.yaml")
        return value

    def _read(self, section: str, key: str, parse: Callable[[], T]) -> T:
        try:
            return parse()
        except FlashnestError as error:
            raise ConfigError(f"{self._path}: {section}.{key}: {error.what}", why=error.why, fix=error.fix) from error
