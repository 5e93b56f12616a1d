"""`flash-nest`: commands for people. Flags become Hydra overrides; the work is done elsewhere.

Starts in well under 0.6 s: torch, numba, transformers and Hydra are imported by the command that needs them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from flashnest import __version__
from flashnest.cli.failure import guarded
from flashnest.cli.model import app as model_app
from flashnest.cli.policy import app as policy_app
from flashnest.cli.policy.simulate import simulate

app = typer.Typer(
    name="flash-nest",
    help="An n-gram table for LLM servers whose records live in GPU memory, DRAM or NVMe by a checked policy.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text: rich would take half of the start-up time
)
app.add_typer(policy_app, name="policy", help="Check, test, simulate and tune tiering policies.")
app.add_typer(model_app, name="model", help="Prepare a model's first start; check its cheaper forms.")
app.command()(simulate)


def flash_nest(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. `--debug` may stand anywhere."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    debug = "--debug" in arguments
    rest = [argument for argument in arguments if argument != "--debug"]
    return guarded(lambda: _leave_code(rest, debug=debug), debug=debug)


def _leave_code(arguments: list[str], *, debug: bool) -> int:
    try:
        app(arguments, obj=debug, prog_name="flash-nest")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"flash-nest {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and end.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks for errors; may stand anywhere.")] = False,
) -> None:
    """Hold the options that every command has."""


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    platform: Annotated[str | None, typer.Option(help="Which machine; not given: this one.")] = None,
    tiering: Annotated[str | None, typer.Option(help="Which policy; not given: dram_only.")] = None,
    workload: Annotated[str | None, typer.Option(help="Which load; not given: repeat_50.")] = None,
    model: Annotated[str | None, typer.Option(help="Which model; not given: smollm2_135m, emulated: qwen3_8b.")] = None,
    report: Annotated[str | None, typer.Option(help="Where report.json goes; not given: the run's folder.")] = None,
) -> None:
    """Run the main job: decode a workload with the tiered table, then print the report.

    Everything else is an override such as `workload.requests=64`, or a flag of `python -m flashnest --help`, such as
    `--cfg job`, `--multirun` or `--config-dir DIR`.
    """
    from flashnest.cli.run import main

    options = {"+platform": platform, "+tiering": tiering, "workload": workload, "model": model}
    overrides = [f"{key}={value}" for key, value in options.items() if value is not None]
    if report is not None:
        overrides.append("report.path='{}'".format(report.replace("\\", "\\\\").replace("'", "\\'")))
    raise typer.Exit(main([*overrides, *context.args, *(["--debug"] if context.obj else [])]))
