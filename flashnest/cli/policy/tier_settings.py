"""What two tiering files set differently for their tiers, defaults counted as the values that they are.

Needs `flashnest.config` (pydantic, 0.3 s), so only `policy diff` asks. A plain policy text sets nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flashnest.policy.tiering_file import TieringFile

Settings = Mapping[str, Mapping[str, Any]]
_NO_TIER: Final = "no such tier"
_ANY_SIZE: Final = "1GiB"
"""Stands for capacities while the other settings are read: those may point at the platform."""


def settings_changed(old: TieringFile, new: TieringFile) -> tuple[tuple[str, str, str], ...]:
    """Return (setting, old, new) as text; nothing where one of the two is a plain policy text. Raises ConfigError."""
    if old.settings is None or new.settings is None:
        return ()
    changed: list[tuple[str, str, str]] = []
    for tier in dict.fromkeys((*old.settings, *new.settings)):
        if tier not in old.settings or tier not in new.settings:
            words = [_NO_TIER if tier not in side else _shown(side[tier]) for side in (old.settings, new.settings)]
            changed.append((f"tiers.{tier}", words[0], words[1]))
            continue
        changed += _within(tier, old, new, old.settings[tier], new.settings[tier])
    return tuple(changed)


def _within(
    tier: str, old: TieringFile, new: TieringFile, before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[tuple[str, str, str]]:
    read = _read(tier, before, old), _read(tier, after, new)
    keys = [key for key in read[0] if read[0][key] != read[1][key]]
    return [(f"tiers.{tier}.{key}", _word(before, key, read[0][key]), _word(after, key, read[1][key])) for key in keys]


def _read(tier: str, given: Mapping[str, Any], file: TieringFile) -> dict[str, object]:
    """Return every setting of a tier by its YAML key, defaults filled in, quantities in base units."""
    from pydantic import ValidationError

    from flashnest.config.tiering import TiersConfig
    from flashnest.errors import ConfigError, FlashnestError
    from flashnest.units import parse_bytes

    try:
        tiers = TiersConfig.model_validate({tier: {**given, "capacity": _ANY_SIZE}})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{file.path}: tiers.{key}: {first['msg']}") from error
    values: dict[str, object] = getattr(tiers, tier).model_dump(by_alias=True)
    capacity = str(given.get("capacity", ""))
    try:
        values["capacity"] = parse_bytes(capacity)
    except FlashnestError:
        values["capacity"] = capacity  # it points at the platform, or is wrong, which a run says
    return values


def _word(given: Mapping[str, Any], key: str, value: object) -> str:
    if key not in given:
        return f"{_plain(value)} (default)"
    return _plain(given[key])


def _plain(value: object) -> str:
    return "null" if value is None else str(value)


def _shown(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_plain(value)}" for key, value in given.items()) or "all defaults"
