"""The door from Hydra: a composed DictConfig in, a frozen RunConfig out, or one clear ConfigError.

The error names the key, the file and line (or the override) it came from, why it is refused and what to write
instead. Nothing is ever instantiated from config: a `_target_` anywhere is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import psutil
import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue, OmegaConfBaseException
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from flashnest.config import RunConfig, Section
from flashnest.errors import ConfigError

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class Origins:
    """Where the parts of a config came from.

    choices: group -> option; sources: (scheme, path) of every place that Hydra searched, in its order; overrides: the
    command line's; config_name: the primary config.
    """

    choices: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[tuple[str, str], ...] = ()
    overrides: tuple[str, ...] = ()
    config_name: str = "config"

    @classmethod
    def of(cls, hydra: DictConfig) -> Origins:
        """Read the origins from a composed config's `hydra` node."""
        runtime = hydra.runtime
        return cls(
            choices={str(k): str(v) for k, v in runtime.choices.items() if v is not None},
            sources=tuple((str(s.schema), str(s.path)) for s in runtime.config_sources),
            overrides=tuple(str(o) for o in hydra.overrides.task),
            config_name=str(hydra.job.config_name),
        )

    def describe(self, keys: Sequence[str]) -> str:
        """Return the override, or the file and line, that set the key path `keys`; "" where it cannot be told."""
        dotted = ".".join(keys)
        for override in self.overrides:
            name = override.lstrip("+~").partition("=")[0]
            if name not in self.choices and (name == dotted or dotted.startswith(name + ".")):
                return f"override {override!r}"
        group = keys[0] if keys else ""
        option = self.choices.get(group)
        inner = keys[1:] if option is not None else keys
        found = self._read(f"{group}/{option}" if option is not None else self.config_name)
        if found is None:
            return ""
        path, text = found
        line = line_of_key(text, inner)
        return f"{path}:{line}" if line else path

    def _read(self, name: str) -> tuple[str, str] | None:
        for scheme, where in self.sources:
            root = resources.files(where.replace("/", ".")) if scheme == "pkg" and where else Path(where)
            file = root.joinpath(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
            if scheme in ("pkg", "file") and file.is_file():
                return str(file), file.read_text(encoding="utf-8")
        return None


def line_of_key(text: str, keys: Sequence[str]) -> int:
    """Return the 1-based line on which the key path `keys` stands in a YAML text, 0 where it does not."""
    node = yaml.compose(text, yaml.SafeLoader)
    line = 0
    for key in keys:
        if not isinstance(node, yaml.MappingNode):
            return line
        match = next((pair for pair in node.value if pair[0].value == key), None)
        if match is None:
            return 0
        line, node = match[0].start_mark.line + 1, match[1]
    return line


def load_run(cfg: DictConfig, origins: Origins | None = None) -> RunConfig:
    """Check a composed config, without its `hydra` node, and return it frozen. Raises ConfigError."""
    origins = origins or Origins()
    values = _resolved(cfg, origins)
    refuse_targets(values, origins)
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
    near = difflib.get_close_matches(word, list(options), n=1, cutoff=0.5)
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


def detect_dram_bytes() -> str:
    """Return this machine's memory as text with its unit: physical, or the cgroup's limit where that is less."""
    total = psutil.virtual_memory().total
    limit = _CGROUP_LIMIT.read_text().strip() if _CGROUP_LIMIT.is_file() else "max"
    return f"{min(total, int(limit)) if limit.isdigit() else total}B"


def _detect(what: str) -> str:
    if what != "dram":
        raise ConfigError(f"${{detect:{what}}}: nothing to detect by that name", fix="use ${detect:dram}")
    return detect_dram_bytes()


OmegaConf.register_new_resolver("detect", _detect, replace=True)


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
    return shown, reason, "correct the value"
