"""Every error a user can meet, and nothing else.

    FlashnestError                 what, why, what to do; exit code 2
    |-- ConfigError                a config file, key, value or override is wrong
    |-- PolicyError                a policy text is wrong; carries diagnostics with positions
    |-- StoreError                 a table or file cannot do what is asked
    |   |-- StoreFullError         a tier's budget cannot hold even one record
    |   |-- StoreCorruptError      a file on disk is damaged or not ours
    |   `-- StoreClosedError       used after close
    |-- ModelError                 weights or tokenizer cannot be loaded, or this architecture cannot roll back
    `-- WorkloadError              prompts cannot be read or made

A message is three short lines: what is wrong, why, what to do. The CLI prints them without a traceback unless
`--debug` is given. This module never imports anything from flashnest.
"""

from __future__ import annotations


class FlashnestError(Exception):
    """A user-facing error: one line `what`, one line `why`, one line `fix`.

    `why` and `fix` may be empty where `what` says it all. `str()` joins the lines that are there.
    """

    exit_code = 2
    has_heading = False
    """Whether `str()` already opens with a heading such as `error[T101]`, so that a CLI adds none."""

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        self.what = what
        self.why = why
        self.fix = fix
        super().__init__("\n".join(line for line in (what, why, fix) if line))


class ConfigError(FlashnestError):
    """A configuration file, key, value or override is wrong."""


class PolicyError(FlashnestError):
    """A policy text is wrong."""


class StoreError(FlashnestError):
    """A table or file cannot do what is asked."""


class StoreFullError(StoreError):
    """A tier's byte budget cannot hold even one record."""


class StoreCorruptError(StoreError):
    """A file on disk is damaged or was not written by flashnest."""


class StoreClosedError(StoreError):
    """A store was used after `close()`."""


class ModelError(FlashnestError):
    """Weights or tokenizer cannot be loaded, or the architecture cannot be served."""


class WorkloadError(FlashnestError):
    """Prompts cannot be read or generated."""
