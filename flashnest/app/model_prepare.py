"""Does once what a model's first run would do before its first token: files, weights, kernels, a trial.

Nothing else needs it: a run that finds nothing prepared does the same, in front of whoever waits for it. Prints
nothing; the caller shows which stage runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flashnest.app.build import App, build
from flashnest.app.weights import TINY_SOURCE
from flashnest.config import RunConfig
from flashnest.report.figures import bytes_text


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage that is done: its name, what it took, what came of it."""

    name: str
    seconds: float
    result: str


@dataclass(slots=True)
class Preparation:
    """The stages, in order. `folder` is for what the trial's tiers write; the caller deletes it."""

    run: RunConfig
    folder: Path
    _app: App | None = field(init=False, default=None)

    def stages(self, started: Callable[[str], None]) -> Iterator[Stage]:
        """Run each stage and yield it; `started` is called with its name before. Raises FlashnestError."""
        work = {"files": self._files, "weights": self._weights, "kernels": self._serve, "trial": self._trial}
        try:
            for name, act in work.items():
                started(name)
                before = time.perf_counter()
                result = act()
                yield Stage(name, time.perf_counter() - before, result)
        finally:
            if self._app is not None:
                self._app.close()

    def _files(self) -> str:
        source = self.run.model.source
        if source == TINY_SOURCE:
            return "made in memory"
        from flashnest.runtime.model_source import is_local, resolve

        place = resolve(source, debug=self.run.debug)
        return place if is_local(place) else f"{place} of the Hugging Face hub, downloaded where it is not here yet"

    def _weights(self) -> str:
        self._app = build(self.run, self.folder)
        spec = self._app.compute.model.spec
        return f"{spec.dtype}, {bytes_text(spec.kv_bytes_per_token)} of KV a token, context {spec.max_context_tokens}"

    def _serve(self) -> str:
        tokens = self._answer()
        return f"{tokens} tokens said, which compiled what was not compiled before"

    def _trial(self) -> str:
        before = time.perf_counter()
        tokens = self._answer()
        return f"{tokens} tokens said again, {tokens / (time.perf_counter() - before):.0f} tok/s"

    def _answer(self) -> int:
        """Serve the run's prompts, all at once; returns how many tokens were said."""
        app = self._app
        assert app is not None, "weights come before kernels"
        for prompt in app.prompts:
            app.compute.admit(app.engine.submit(prompt))
        said = 0
        while not app.engine.idle:
            event = app.engine.step()
            said += event.committed
            for request in event.finished:
                app.compute.forget(request)
        return said
