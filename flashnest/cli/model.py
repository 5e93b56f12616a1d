"""`flash-nest model prepare | check`: a model's first start done in advance, and what its cheaper forms cost.

Shows what `app` does; loads nothing itself. Torch is imported by the work, after the options are known to be good.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from flashnest.app.model_check import FormFigures
    from flashnest.config import ModelConfig, RunConfig

WORST_RATIO: Final = 1.02
"""A form whose perplexity is more than 2 % above the plain one's fails the check."""

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)

Source = Annotated[
    str, typer.Argument(help="An option of conf/model such as smollm2_135m, a folder, a .gguf file or a hub id.")
]
Dtype = Annotated[
    str | None, typer.Option(help="auto, float32, bfloat16 or float16; not given: the option's, or auto.")
]
Adapter = Annotated[str | None, typer.Option(help="A LoRA folder of PEFT, merged into the weights.")]


@app.command()
def prepare(
    context: typer.Context,
    source: Source,
    dtype: Dtype = None,
    adapter: Adapter = None,
    quant: Annotated[str | None, typer.Option(help="none or w8a8; not given: the option's, or none.")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")] = None,
) -> None:
    """Convert a model's files, load and pack its weights, compile the kernels and try them: its next start is quick.

    Everything works without it; then the first run does this, and its user waits.
    """
    from flashnest.app.model_prepare import Preparation

    run = _run_config(source, dtype=dtype, adapter=adapter, quant=quant, kv_dtype=kv_dtype, debug=bool(context.obj))
    with tempfile.TemporaryDirectory(prefix="flashnest-") as folder, _status() as show:
        for stage in Preparation(run, Path(folder)).stages(show):
            typer.echo(f"{stage.name:8} {stage.seconds:7.1f} s  {stage.result}")


@app.command()
def check(
    context: typer.Context,
    source: Source,
    dtype: Dtype = None,
    adapter: Adapter = None,
    quant: Annotated[str, typer.Option(help="Form to compare: w8a8, or none to leave it out.")] = "w8a8",
    kv_dtype: Annotated[str, typer.Option(help="Form to compare: float16 ..., or auto to leave it out.")] = "float16",
    tokens: Annotated[int, typer.Option(min=256, help="Tokens of bundled text that each form reads.")] = 4096,
) -> None:
    """Measure a model's perplexity and speed as it is, with KV in another dtype, and quantised.

    Ends with 1 where a form's perplexity is more than 2 % above the plain one's.
    """
    debug = bool(context.obj)
    run = _run_config(source, dtype=dtype, adapter=adapter, quant=quant, kv_dtype=kv_dtype, debug=debug)
    from flashnest.app.model_check import FORWARDS, Form, open_check

    forms = [Form("none", "auto")]
    forms += [Form("none", kv_dtype)] if kv_dtype != "auto" else []
    forms += [Form(quant, "auto")] if quant != "none" else []
    plain: FormFigures | None = None
    worst = 0.0
    with _status() as show:
        show("weights")
        opened = open_check(run.model, tokens=tokens, debug=debug)
        typer.echo(
            f"{source}: {opened.text.size} tokens of the {opened.source}; ms of a forward, sequences x new tokens"
        )
        typer.echo(f"{'form':24}{'weights':>10}{'KV/token':>10}{'perplexity':>12}{'':>9}" + _cells(FORWARDS))
        show("forms")
        for figures in opened.figures(tuple(forms)):
            plain = plain or figures
            ratio = figures.perplexity / plain.perplexity
            worst = max(worst, ratio)
            typer.echo(_line(figures, ratio))
    if worst > WORST_RATIO:
        typer.echo(
            f"perplexity rises by {100 * (worst - 1):.1f} %, more than {100 * (WORST_RATIO - 1):.0f} %", err=True
        )
        raise typer.Exit(1)


def _line(figures: FormFigures, ratio: float) -> str:
    from flashnest.report.figures import bytes_text

    spec, form = figures.spec, figures.form
    name = spec.dtype if form.kv_dtype == "auto" else f"{spec.dtype}, KV {form.kv_dtype}"
    sizes = f"{bytes_text(figures.weight_bytes):>10}{bytes_text(spec.kv_bytes_per_token):>10}"
    return f"{name:24}{sizes}{figures.perplexity:12.3f}{ratio:8.4f}x" + _cells(
        f"{ms:.1f}" for ms in figures.forward_ms.values()
    )


def _cells(texts: Iterable[str]) -> str:
    return "".join(f"{text:>10}" for text in texts)


def _run_config(source: str, *, debug: bool, **options: str | None) -> RunConfig:
    """Return a short run of the model on this machine. Raises ConfigError."""
    from flashnest.cli.arguments import parse_command
    from flashnest.cli.compose import Composer
    from flashnest.cli.run import run_from

    overrides = ["+platform=local", "+tiering=hotcold", "workload=smoke", "progress=false"]
    if source in _options():
        overrides.append(f"model={source}")
    else:
        overrides += ["model=smollm2_135m", f"model.source={_quoted(source)}", "model.dtype=auto"]
    overrides += [f"model.{key}={_quoted(value)}" for key, value in options.items() if value is not None]
    composer = Composer(parse_command([*overrides, *(["--debug"] if debug else [])]))
    run = run_from(composer.compose(composer.complete()))
    return run if source in _options() else run.model_copy(update={"model": _named(run.model, source)})


def _options() -> set[str]:
    return {path.name.removesuffix(".yaml") for path in (resources.files("flashnest") / "conf" / "model").iterdir()}


def _named(model: ModelConfig, name: str) -> ModelConfig:
    return model.model_copy(update={"name": name})


def _quoted(value: str) -> str:
    return "'{}'".format(value.replace("\\", "\\\\").replace("'", "\\'"))


@contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """Show what runs beside a spinner, where standard error is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield status.update
