"""`python -m flashnest`: the Hydra app. Composes and checks the config, then hands each run to `flashnest.app`.

A config is composed and checked once before Hydra starts, so that a mistake is one line and leaves no folder behind;
then `hydra.main` does what Hydra users know (--cfg, --multirun, --info, completion). Decides nothing about the run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, open_dict

from flashnest import __version__
from flashnest.cli.arguments import Command, parse_command
from flashnest.cli.compose import CONFIG_NAME, CONFIG_PATH, VERSION_BASE, Composer, plain_errors
from flashnest.cli.failure import INTERRUPTED, USER_ERROR, guarded
from flashnest.config import RunConfig
from flashnest.config.load import load_run
from flashnest.config.origins import Origins


def main(argv: Sequence[str] | None = None) -> int:
    """Run the app and return its exit code: 0 done, 1 a bug, 2 a user error, 130 interrupted."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    return guarded(lambda: _main(arguments), debug="--debug" in arguments)


def run_from(cfg: DictConfig) -> RunConfig:
    """Return the checked run of a composed config that still has its `hydra` node. Raises ConfigError."""
    origins = Origins.of(cfg.hydra)
    job = cfg.copy()
    with open_dict(job):
        del job["hydra"]
    return load_run(job, origins)


def _main(arguments: Sequence[str]) -> int:
    command = parse_command(arguments)
    if command.version:
        print(f"flashnest {__version__}")
        return 0
    if not (command.shell_completion or command.hydra_help):
        composer = Composer(command)
        command = composer.complete()
        cfg = composer.compose(command)
        if command.runs and not command.multirun:
            run_from(cfg)
    return _hydra(command)


def _hydra(command: Command) -> int:
    """Let Hydra carry the command out; return the worst exit code of its jobs."""
    codes: list[int] = []

    def job(cfg: DictConfig) -> None:
        codes.append(guarded(lambda: _job(cfg, command), debug=command.debug or cfg.get("debug") is True))
        if codes[-1] == INTERRUPTED and command.multirun:
            raise KeyboardInterrupt  # Ctrl-C means the sweep, not only this run

    start = hydra.main(version_base=VERSION_BASE, config_path=CONFIG_PATH, config_name=CONFIG_NAME)(job)
    with _as_hydra_expects(command.hydra_argv()):
        try:
            with plain_errors():
                start()
        except SystemExit as end:  # Hydra has said on stderr what it refuses
            codes.append(USER_ERROR if end.code else 0)
    return max(codes, default=0)


def _job(cfg: DictConfig, command: Command) -> int:
    from flashnest import app  # torch and numba load here, after the config is known to be good

    config = HydraConfig.get()
    if command.multirun:
        print(f"run {config.job.num}: {' '.join(config.overrides.task)}", flush=True)
    run = load_run(cfg, Origins.of(cast(DictConfig, config)))
    return app.run(run, Path(config.runtime.output_dir))


@contextmanager
def _as_hydra_expects(argv: list[str]) -> Iterator[None]:
    """Give Hydra its arguments, and have it raise errors instead of printing them and leaving."""
    before, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [before[0], *argv]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = before
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error
