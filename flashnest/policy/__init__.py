"""The policy language: text in, a checked and compiled placement out. Only `tiering_file` reads files.

Reading order: `grammar.lark`, `syntax` (the tree), `parse`, `check` (names and units), `cells`, `coverage` (gaps and
unreachable rules), `conflicts` (moves), `overlaps`, `redundant` and `constant` (what changes nothing), `placement` (the
tables), `goals` (flush, require, levels), `compile` (all of it). Never imports torch, numba or storage.

The names below load on first use: pytest imports this package through its plugin in every run, also in projects that
have no policy, and must not pay for lark and numpy (0.25 s) there.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flashnest.policy.compile import Policy, compile_policy
    from flashnest.policy.diagnostics import Diagnostic, PolicyCheckError, Severity
    from flashnest.policy.facts import RecordFacts
    from flashnest.policy.goals import Flush, Level, Requirement
    from flashnest.policy.placement import Placement
    from flashnest.policy.resolved import Rule
    from flashnest.policy.tiering_file import TieringFile, load_tiering_file

_HOME = {
    "Diagnostic": "diagnostics",
    "Flush": "goals",
    "Level": "goals",
    "Placement": "placement",
    "Policy": "compile",
    "PolicyCheckError": "diagnostics",
    "RecordFacts": "facts",
    "Requirement": "goals",
    "Rule": "resolved",
    "Severity": "diagnostics",
    "TieringFile": "tiering_file",
    "compile_policy": "compile",
    "load_tiering_file": "tiering_file",
}

__all__ = [
    "Diagnostic",
    "Flush",
    "Level",
    "Placement",
    "Policy",
    "PolicyCheckError",
    "RecordFacts",
    "Requirement",
    "Rule",
    "Severity",
    "TieringFile",
    "compile_policy",
    "load_tiering_file",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
