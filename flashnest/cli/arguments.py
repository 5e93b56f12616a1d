"""The command line of the Hydra app, read once: its flags, and its overrides as given. Composes nothing.

Hydra's own flags keep their names and meaning. `--debug` is ours; `--experimental-rerun` is left out because it
unpickles a file.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from flashnest.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Command:
    """What the user typed. `config_path` and `config_dir` are absolute, or a `pkg://` address."""

    overrides: tuple[str, ...]
    help: bool
    hydra_help: bool
    version: bool
    cfg: str | None
    resolve: bool
    package: str | None
    run: bool
    multirun: bool
    shell_completion: bool
    config_path: str | None
    config_name: str | None
    config_dir: str | None
    info: str | None
    debug: bool

    @property
    def runs(self) -> bool:
        """Whether it runs something, rather than showing help, config or completions."""
        return not (self.help or self.hydra_help or self.shell_completion or self.cfg or self.info)

    def hydra_argv(self) -> list[str]:
        """Return the arguments for Hydra's own parser."""
        flags = {
            "--help": self.help,
            "--hydra-help": self.hydra_help,
            "--resolve": self.resolve,
            "--run": self.run,
            "--multirun": self.multirun,
            "--shell-completion": self.shell_completion,
        }
        valued = {
            "--cfg": self.cfg,
            "--package": self.package,
            "--config-path": self.config_path,
            "--config-name": self.config_name,
            "--config-dir": self.config_dir,
            "--info": self.info,
        }
        given = [flag for flag, on in flags.items() if on]
        given += [f"{flag}={value}" for flag, value in valued.items() if value is not None]
        return [*given, *self.overrides]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, fix="see --help")


def parse_command(argv: Sequence[str]) -> Command:
    """Read the arguments. Raises ConfigError where a flag is unknown, lacks its value or contradicts another."""
    given = _parser().parse_args(list(argv))
    for name in ("config_path", "config_dir"):
        value = getattr(given, name)
        if value is not None and "://" not in value:
            setattr(given, name, os.path.abspath(value))
    if given.config_dir is not None and not os.path.isdir(given.config_dir):
        raise ConfigError(f"--config-dir {given.config_dir}: no such folder")
    modes = ("run", "multirun", "cfg", "info", "shell_completion")
    chosen = [f"--{name.replace('_', '-')}" for name in modes if getattr(given, name)]
    if len(chosen) > 1:
        raise ConfigError(f"only one of {' and '.join(chosen)} can be given")
    if given.resolve and not (given.cfg or given.help):
        raise ConfigError("--resolve goes with --cfg or --help only")
    return Command(**{**vars(given), "overrides": tuple(given.overrides)})


def _parser() -> _Parser:
    parser = _Parser(prog="flashnest", add_help=False)
    add = parser.add_argument
    add("overrides", nargs="*")
    for flags in (("--help", "-h"), ("--hydra-help",), ("--version",), ("--resolve",), ("--run", "-r")):
        add(*flags, action="store_true")
    for flags in (("--multirun", "-m"), ("--shell-completion", "-sc"), ("--debug",)):
        add(*flags, action="store_true")
    add("--cfg", "-c", choices=["job", "hydra", "all"])
    for flags in (("--package", "-p"), ("--config-path", "-cp"), ("--config-name", "-cn"), ("--config-dir", "-cd")):
        add(*flags)
    topics = ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
    add("--info", "-i", nargs="?", const="all", choices=topics)
    return parser
