"""The wiring: the only package that names concrete classes of every layer. `run` is what both command lines call."""

from __future__ import annotations

from flashnest.app.loop import run

__all__ = ["run"]
