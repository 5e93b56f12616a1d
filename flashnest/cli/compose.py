"""Composing before Hydra runs: the two open groups are filled in, and every mistake becomes one clear ConfigError.

`platform` and `tiering` are not in the defaults list, so that `+platform=... +tiering=...` works as the report
writes it. Where they are left out, `+platform=local` and `+tiering=dram_only` are added here; where the `+` was
forgotten, or not needed because an ops repo's primary config has the group, it is put right.

This is the only module that touches Hydra's internals (two names, below): its public compose API cannot search
`--config-dir`. Runs nothing and writes nothing.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import yaml
from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.config_source import ConfigLoadError
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from flashnest.cli.arguments import Command
from flashnest.config.load import did_you_mean, keys_of, refuse_targets, section_at
from flashnest.config.origins import Origins
from flashnest.errors import ConfigError

VERSION_BASE = "1.3"
CONFIG_PATH = "pkg://flashnest.conf"
CONFIG_NAME = "config"
OPEN_GROUPS = {"platform": "local", "tiering": "dram_only"}

_HYDRA_PLUGINS = ("sweeper", "launcher")
"""Nodes whose `_target_` Hydra itself resolves, and only to a plugin class."""


class Composer:
    """Composes configs the way Hydra will for one command."""

    def __init__(self, command: Command) -> None:
        version.setbase(VERSION_BASE)
        path = create_config_search_path(command.config_path or CONFIG_PATH)
        if command.config_dir is not None:
            path.prepend("command-line", f"file://{command.config_dir}", SearchPathQuery(provider="schema"))
        self._loader = ConfigLoaderImpl(path)
        self._command = command

    def complete(self) -> Command:
        """Return the command with the open groups filled in and their `+` put right. Raises ConfigError."""
        command = self._command
        with plain_errors(), missing_places():
            given = OverridesParser.create().parse_overrides(list(command.overrides))
            listed = self._listed_groups(given)
        overrides = [_sign_put_right(o, listed) for o in given]
        named = {o.key_or_group for o in given} | listed
        overrides += [f"+{group}={option}" for group, option in OPEN_GROUPS.items() if group not in named]
        if command.debug:
            overrides.append("++debug=true")
        multirun = command.multirun or (command.runs and any(_asks_for_multirun(o) for o in given))
        return replace(command, overrides=tuple(overrides), multirun=multirun)

    def compose(self, completed: Command) -> DictConfig:
        """Return the whole config of a completed command, `hydra` node included. Raises ConfigError."""
        mode = RunMode.MULTIRUN if completed.multirun else RunMode.RUN
        with plain_errors(), missing_places():
            cfg = self._loader.load_configuration(self._name, list(completed.overrides), mode)
        refuse_hydra_targets(cfg.hydra)
        return cfg

    @property
    def _name(self) -> str:
        return self._command.config_name or CONFIG_NAME

    def _listed_groups(self, given: Sequence[Override]) -> frozenset[str]:
        """Return the open groups that the primary config has in its own defaults list; ours has none."""
        if self._command.config_name is None and self._command.config_path is None:
            return frozenset()
        paths = [str(o.input_line) for o in given if o.key_or_group == "hydra.searchpath"]
        cfg = self._loader.load_configuration(self._name, paths, RunMode.MULTIRUN)  # MULTIRUN lets `platform: ???` pass
        return frozenset(OPEN_GROUPS) & frozenset(str(key) for key in cfg.hydra.runtime.choices)


def refuse_hydra_targets(hydra: DictConfig) -> None:
    """Raise ConfigError where Hydra's own node would call code: callbacks, and classes in a logging config."""
    node = OmegaConf.to_container(hydra, resolve=False)
    assert isinstance(node, dict)
    node = {str(key): value for key, value in node.items() if key not in _HYDRA_PLUGINS}
    refuse_targets(node, Origins.of(hydra), ("hydra",))
    for log in ("job_logging", "hydra_logging"):
        for name, handler in ((node.get(log) or {}).get("handlers") or {}).items():
            if not str(handler.get("class", "logging.")).startswith("logging."):
                raise ConfigError(f"hydra.{log}.handlers.{name}.class: refused", why="only logging.* handlers are used")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn what Hydra, OmegaConf and the YAML reader raise into ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except yaml.MarkedYAMLError as error:
        raise _yaml_error(error) from error
    except (HydraException, OmegaConfBaseException, ConfigLoadError, ValueError) as error:
        raise hydra_error(error) from error


@contextmanager
def missing_places() -> Iterator[None]:
    """Make an error of Hydra's warning that a place on the search path does not exist."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        if found := re.search(r"path=(.+?) is not available", str(warning.message)):
            raise ConfigError(f"hydra.searchpath: {found[1]} does not exist", fix="use file:///FOLDER or pkg://MODULE")


def hydra_error(error: Exception) -> ConfigError:
    """Return the one clear error for what Hydra or OmegaConf raised."""
    text = str(error) or str(error.__cause__ or type(error).__name__)
    if isinstance(error, MissingConfigException):
        return _missing_option(error, text)
    if isinstance(error, OverrideParseException):
        return ConfigError(
            f"override {error.override!r} cannot be read",
            why=_first_line(error.message),
            fix="write key=value; quote values with special characters: 'key=\"a b\"'",
        )
    if found := re.search(r"Could not override '([^']+)'", text):
        return _unknown_key(found[1])
    if found := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '([^']+)'", text):
        return ConfigError(f"{found[1]!r} has several values", fix="add --multirun to run each, or write key=[a,b]")
    if found := re.search(r"Could not append to config\. An item is already at '([^']+)'", text):
        return ConfigError(f"{found[1]} is already in the config", fix=f"write {found[1]}=VALUE without the +")
    cause = error.__cause__ if isinstance(error, ConfigCompositionException) else None
    why = _first_line(str(cause)) if cause is not None and str(error) else ""
    return ConfigError(_first_line(text), why=why, fix="see --help and --cfg job")


def _missing_option(error: MissingConfigException, text: str) -> ConfigError:
    group, _, option = (error.missing_cfg_file or "").rpartition("/")
    if not error.options:
        return ConfigError(_first_line(text), fix="--info searchpath lists the places searched")
    hint = did_you_mean(option, error.options)
    hint = f", {hint}" if hint else ","
    return ConfigError(f"{group} {option!r} not found{hint} options: {', '.join(sorted(error.options))}")


def _unknown_key(key: str) -> ConfigError:
    *parents, last = key.split(".")
    section = section_at(parents)
    known = keys_of(section) if section else []
    if last in known:
        return ConfigError(
            f"{key}: not in the chosen options", why="their files leave it out", fix=f"write +{key}=VALUE"
        )
    hint = did_you_mean(last, known)
    listed = f"keys of {'.'.join(parents) or 'the config'}: {', '.join(known)}" if known else "see --cfg job"
    return ConfigError(f"{key}: unknown key on the command line", why=listed, fix=hint)


def _yaml_error(error: yaml.MarkedYAMLError) -> ConfigError:
    mark = error.problem_mark
    place = f"{mark.name}:{mark.line + 1}" if mark else "a config file"
    return ConfigError(f"{place}: not valid YAML", why=error.problem or "", fix="check the line and the one before it")


def _sign_put_right(override: Override, listed: frozenset[str]) -> str:
    line = str(override.input_line)
    if override.key_or_group not in OPEN_GROUPS or override.is_delete():
        return line
    bare = line.lstrip("+")
    return bare if override.key_or_group in listed else f"+{bare}"


def _asks_for_multirun(override: Override) -> bool:
    return override.key_or_group == "hydra.mode" and str(override.value()).upper().endswith("MULTIRUN")


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
