"""The command lines: `flash-nest` for people (here and `commands`), `python -m flashnest` for Hydra users (`run`).

Nothing is imported here, so that neither pays for the other's libraries.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run `flash-nest` and return its exit code: 0 done, 1 a bug or failed check, 2 a user error, 130 interrupted."""
    from flashnest.cli.commands import flash_nest

    return flash_nest(argv)
