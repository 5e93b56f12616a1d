"""flashnest: an n-gram table whose records live in GPU memory, DRAM or NVMe by a policy written as text.

Reading order: `record` (the words every layer shares), `policy` (text to checked placement), `storage` (where
records live), `runtime` (the decode loop), `app` (the wiring), `report` (what a run prints). Nothing heavy is
imported here: `flash-nest policy check` must end within 0.6 s.

The names below are the library, `docs/library.md`. They load on first use, and none of them needs torch;
`flashnest.simulate` is the package of that name, with `simulate` in it. Their types are in `__init__.pyi`: an import
for types alone would still be one for the import rows, from every module that asks for the version.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "Policy": "policy.compile",
    "PolicyCheckError": "policy.diagnostics",
    "RecordFacts": "policy.facts",
    "TieringFile": "policy.tiering_file",
    "compile_policy": "policy.compile",
    "load_tiering_file": "policy.tiering_file",
    "load_trace": "simulate",
}

__all__ = [
    "Policy",
    "PolicyCheckError",
    "RecordFacts",
    "TieringFile",
    "__version__",
    "compile_policy",
    "load_tiering_file",
    "load_trace",
    "simulate",
]


def __getattr__(name: str) -> object:
    if name == "simulate":
        return import_module(f"{__name__}.simulate")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
