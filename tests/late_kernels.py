"""Prints the kernels that a small emulated run loads after its parts were built. Run by test_main_job in a process."""

from __future__ import annotations

import sys
from pathlib import Path

from numba.core.dispatcher import Dispatcher

from flashnest.app.build import build
from flashnest.cli.arguments import parse_command
from flashnest.cli.compose import Composer
from flashnest.cli.run import run_from


def loaded() -> set[tuple[str, str]]:
    """Return (kernel, signature) of everything that numba has loaded for this package."""
    modules = [m for name, m in list(sys.modules.items()) if name.startswith("flashnest")]
    kernels = {o for m in modules for o in vars(m).values() if isinstance(o, Dispatcher)}
    return {(f"{k.py_func.__module__}.{k.py_func.__name__}", str(s)) for k in kernels for s in k.signatures}


def main(folder: Path, arguments: list[str]) -> None:
    """Build a run, answer its prompts, print what was loaded meanwhile."""
    composer = Composer(parse_command(arguments))
    app = build(run_from(composer.compose(composer.complete())), folder)
    before = loaded()
    for prompt in app.prompts:
        app.compute.admit(app.engine.submit(prompt))
    while not app.engine.idle:
        app.engine.step()
    app.router.flush()
    print(*sorted(kernel for kernel, _ in loaded() - before), sep="\n", end="")
    app.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
