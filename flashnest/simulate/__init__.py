"""A trace of accesses through a policy, without a model: who hits where, what moves, what is written, what it costs.

Reading order: `trace` (what was asked), `load` (from files), `engine` (the simulation), `result` (what it found). Needs
no torch. Opens no store: records are dense numbers here, tiers are budgets of bytes.

The names below load on first use, so that importing the package costs neither numba nor lark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flashnest.simulate.engine import simulate
    from flashnest.simulate.load import load_trace
    from flashnest.simulate.result import Quantiles, Series, Simulation
    from flashnest.simulate.texts import generated_trace, text_trace
    from flashnest.simulate.tier_options import TierOptions
    from flashnest.simulate.trace import INSERT, LOOKUP, Trace

_HOME = {
    "INSERT": "trace",
    "LOOKUP": "trace",
    "Quantiles": "result",
    "Series": "result",
    "Simulation": "result",
    "TierOptions": "tier_options",
    "Trace": "trace",
    "generated_trace": "texts",
    "load_trace": "load",
    "simulate": "engine",
    "text_trace": "texts",
}

__all__ = [
    "INSERT",
    "LOOKUP",
    "Quantiles",
    "Series",
    "Simulation",
    "TierOptions",
    "Trace",
    "generated_trace",
    "load_trace",
    "simulate",
    "text_trace",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
