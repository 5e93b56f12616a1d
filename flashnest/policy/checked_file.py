"""What `policy check` found in one file: the policy's size, its findings, or why it could not be read."""

from __future__ import annotations

from dataclasses import dataclass

from flashnest.errors import FlashnestError
from flashnest.policy.diagnostics import Diagnostic, Severity


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """One file after its check. `rules`, `moves` and `tests` count them and are 0 where the policy does not compile."""

    path: str
    diagnostics: tuple[Diagnostic, ...] = ()
    rules: int = 0
    moves: int = 0
    tests: int = 0
    failure: FlashnestError | None = None
    """Why the file could not be read or has the wrong shape; then there are no diagnostics."""

    @property
    def errors(self) -> int:
        """How many findings are errors, a file that cannot be read among them."""
        return sum(one.severity is Severity.ERROR for one in self.diagnostics) + (self.failure is not None)

    @property
    def warnings(self) -> int:
        """How many findings are warnings."""
        return sum(one.severity is Severity.WARNING for one in self.diagnostics)

    def exit_code(self, *, strict: bool = False) -> int:
        """Return 2 with an error, 1 where `strict` meets a warning, else 0."""
        return 2 if self.errors else int(strict and self.warnings > 0)
