"""The door from Hydra: a composed DictConfig in, a frozen RunConfig out, or one clear ConfigError.

The error names the key, the file and line (or the override) it came from, why it is refused and what to write
instead. Nothing is ever instantiated from config: a `_target_` anywhere is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue, OmegaConfBaseException
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from flashnest.config import detect  # noqa: F401  registers the resolver
from flashnest.config.origins import Origins
from flashnest.config.run import RunConfig
from flashnest.config.section import Section
from flashnest.errors import ConfigError


def load_run(cfg: DictConfig, origins: Origins | None = None) -> RunConfig:
    """Check a composed config, without its `hydra` node, and return it frozen. Raises ConfigError."""
    origins = origins or Origins()
    values = _resolved(cfg, origins)
    refuse_targets(values, origins)
    _fill_names(values, origins)
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise _config_error(error, values, origins) from error


def refuse_targets(values: object, origins: Origins, at: tuple[str, ...] = ()) -> None:
    """Raise ConfigError where a mapping below `values` has a `_target_` or another instantiation key."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            if key in ("_target_", "_partial_", "_args_", "()"):
                raise ConfigError(
                    f"{'.'.join((*at, key))}: refused{_place(origins, (*at, key))}",
                    why="flashnest never calls code that a config names",
                    fix=f"remove {key}",
                )
            refuse_targets(value, origins, (*at, str(key)))
    elif isinstance(values, list | tuple):
        for index, value in enumerate(values):
            refuse_targets(value, origins, (*at, str(index)))


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return `did you mean 'x'?` for the nearest option, or ""."""
    near = difflib.get_close_matches(word, list(options), n=3, cutoff=0.6)
    near.sort(key=lambda option: sorted(option) != sorted(word))  # swapped letters first: topk_ is top_k, not top_p
    return f"did you mean {near[0]!r}?" if near else ""


def section_at(keys: Sequence[str]) -> type[Section] | None:
    """Return the config class that the key path `keys` leads to, None where it leads to none."""
    section: type[Section] = RunConfig
    for key in keys:
        found = next((info for name, info in section.model_fields.items() if key in (name, info.alias)), None)
        inner = found and _section_of(found)
        if not inner:
            return None
        section = inner
    return section


def keys_of(section: type[Section]) -> list[str]:
    """Return the YAML keys of a config class."""
    return [info.alias or name for name, info in section.model_fields.items()]


def _section_of(info: FieldInfo) -> type[Section] | None:
    candidates = (info.annotation, *get_args(info.annotation))
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, Section)), None)


def _resolved(cfg: DictConfig, origins: Origins) -> dict[str, Any]:
    try:
        values = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        keys = str(error.full_key or "").split(".")
        raise ConfigError(f"{'.'.join(keys)}: no value given{_place(origins, keys)}", fix="replace ???") from error
    except InterpolationResolutionError as error:
        keys = str(error.full_key or "").split(".")
        raise ConfigError(
            f"{'.'.join(keys)}: cannot be filled in{_place(origins, keys)}",
            why=str(error.msg or error).splitlines()[0],
            fix="check the name inside ${...}",
        ) from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"the config cannot be read: {str(error).splitlines()[0]}") from error
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _fill_names(values: Mapping[str, Any], origins: Origins) -> None:
    """Name each group's part after its option, unless it names itself, and say where the policy text came from."""
    for group in ("platform", "tiering", "workload", "model"):
        if isinstance(values.get(group), dict):
            values[group].setdefault("name", origins.choices.get(group, "unnamed"))
    if isinstance(values.get("tiering"), dict):
        values["tiering"].setdefault("source", origins.file_of("tiering"))


def _place(origins: Origins, keys: Sequence[str]) -> str:
    place = origins.describe(keys)
    return f" ({place})" if place else ""


def _config_error(error: ValidationError, values: Mapping[str, Any], origins: Origins) -> ConfigError:
    """Turn pydantic's list into one error about its most telling entry: a misspelt key before what it left missing."""
    rank = {"extra_forbidden": 0, "missing": 2}
    details = sorted(error.errors(include_url=False), key=lambda d: rank.get(d["type"], 1))
    first = details[0]
    keys = _yaml_path(first, values)
    what, why, fix = _explain(first, keys)
    name = f"{'.'.join(keys)}: " if keys else ""
    more = f"; {len(details) - 1} more after this one" if len(details) > 1 else ""
    return ConfigError(f"{name}{what}{_place(origins, keys)}", why=why + (more if why else ""), fix=fix)


def _yaml_path(detail: ErrorDetails, values: object) -> list[str]:
    """Return the key path of an error without pydantic's union tags, which name no key."""
    keys: list[str] = []
    for part in detail["loc"]:
        inside = isinstance(values, Mapping) and part in values
        listed = isinstance(values, list) and isinstance(part, int) and part < len(values)
        if not (inside or listed):
            return [*keys, str(part)] if detail["type"] == "missing" and isinstance(values, Mapping) else keys
        keys.append(str(part))
        values = values[part]  # type: ignore[index]
    return keys


def _explain(detail: ErrorDetails, keys: Sequence[str]) -> tuple[str, str, str]:
    parent = section_at(keys[:-1]) or RunConfig
    where = ".".join(keys[:-1]) or "the config"
    context = detail.get("ctx", {})
    if detail["type"] == "extra_forbidden":
        known = keys_of(parent)
        hint = did_you_mean(keys[-1], known)
        return "unknown key", f"{where} has no key of that name", " ".join([hint, f"keys: {', '.join(known)}"]).strip()
    if detail["type"] == "missing":
        return "not given", f"{where} needs it", f"add `{keys[-1]}:` with a value"
    if detail["type"] == "flashnest":
        return str(context["what"]), str(context["why"]), str(context["fix"])
    given = detail["input"]
    shown = f"{given!r} is refused" if isinstance(given, str | int | float | bool) or given is None else "wrong shape"
    reason = detail["msg"][0].lower() + detail["msg"][1:]
    if detail["type"] == "literal_error" and isinstance(given, str):
        hint = did_you_mean(
            given, [word.strip("'") for word in str(context["expected"]).replace(" or ", ", ").split(", ")]
        )
        return shown, reason, hint
    return shown, reason, ""
