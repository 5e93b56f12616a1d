"""A store's own directory and the lock on it: one store of one process at a time. Knows no file inside but its lock."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from flashnest.errors import StoreError

LOCK = "flashnest.lock"
_open_paths: dict[str, int] = {}


class LockedDirectory:
    """A directory held by one store of one process from construction to `release`."""

    one_owner = "a store has one owner at a time"
    """Why it cannot be opened twice in a process."""

    def __init__(self, path: Path) -> None:
        """Create the directory (mode 0700) where it is missing and take its lock.

        Raises StoreError where it cannot be created or another store has it.
        """
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._real = str(path.resolve())
            self._lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"cannot use {path} as a store", why=str(error), fix="name a directory that this user may write"
            ) from error
        try:
            self._take()
        except BaseException:
            os.close(self._lock)
            raise
        _open_paths[self._real] = os.getpid()

    def _take(self) -> None:
        if _open_paths.get(self._real) == os.getpid():
            raise StoreError(
                f"{self.path} is already open in this process",
                why=self.one_owner,
                fix="share the open store, or close it first",
            )
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreError(
                f"{self.path} is in use by another process",
                why="a store has one owner at a time",
                fix="stop the other flashnest, or give this one its own path",
            ) from error

    def foreign(self, why: str) -> StoreError:
        """Return the error for a directory that was made for something else."""
        return StoreError(
            f"{self.path} belongs to another setup", why=why, fix=f"name another path, or move {self.path} away"
        )

    def release(self) -> None:
        """Let others open the directory."""
        if _open_paths.get(self._real) == os.getpid():
            del _open_paths[self._real]
        os.close(self._lock)
