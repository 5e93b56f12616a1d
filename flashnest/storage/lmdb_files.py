"""What surrounds an LMDB file: its directory, who may open it, whether it is sound. Never opens LMDB in this process.

LMDB maps the file and trusts it: a damaged page kills the process. So a file that was not closed cleanly, or that was
changed since, is examined by another process first. `clean` holds the size and mtime that the file had when it was
closed well; it is removed as long as the store is open.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Final

from flashnest.errors import StoreCorruptError, StoreError
from flashnest.storage.store_directory import LockedDirectory

DATA: Final = "data.mdb"
_CLEAN: Final = "clean"

AUDIT_BYTES: Final = 256 << 20
"""Up to this size `python -m lmdb verify` examines every invariant (pure Python, about 30 MB/s); above, every leaf page
is read through LMDB in another process (disk speed)."""

_PROBE = """
import sys, lmdb
env = lmdb.open(sys.argv[1], readonly=True, lock=False, readahead=True, max_dbs=4)
with env.begin() as txn:
    names = [bytes(name) for name in txn.cursor().iternext(keys=True, values=False)]
for name in names:
    db = env.open_db(name, create=False)
    with env.begin(db=db) as txn:
        if sum(1 for _ in txn.cursor().iternext(keys=True, values=True)) != txn.stat(db)["entries"]:
            sys.exit("entries are missing")
"""


class StoreDirectory(LockedDirectory):
    """The directory of an LMDB store."""

    one_owner = "LMDB allows one environment a file in a process"

    @property
    def data(self) -> Path:
        """The LMDB file."""
        return self.path / DATA

    def data_bytes(self) -> int:
        """Return the file's size, 0 where there is none."""
        try:
            return self.data.stat().st_size
        except FileNotFoundError:
            return 0

    def make_sure_it_is_sound(self, timeout_s: float) -> None:
        """Have an existing file examined by another process, unless it is as a clean close left it.

        Raises StoreCorruptError where the file is damaged, StoreError where `timeout_s` was too short to tell.
        """
        if self.data_bytes() and not self._is_as_closed():
            self._examine(timeout_s)

    def _examine(self, timeout_s: float) -> None:
        audit = self.data_bytes() <= AUDIT_BYTES
        how = ["-m", "lmdb", "-e", str(self.path), "verify"] if audit else ["-c", _PROBE, str(self.path)]
        try:
            run = subprocess.run([sys.executable, *how], capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired as error:
            raise StoreError(
                f"{self.data} could not be examined within {timeout_s:g} s",
                why="it was not closed cleanly, and a damaged file would kill this process",
                fix=f"allow more time, or move {self.path} away to start empty",
            ) from error
        if run.returncode != 0:
            lines = (run.stdout + run.stderr).strip().splitlines()
            reason = lines[0] if lines else f"the examining process ended with {run.returncode}"
            raise StoreCorruptError(
                f"{self.data} is damaged", why=reason, fix=f"move {self.path} away to start empty, or restore a copy"
            )

    def _fingerprint(self) -> str:
        data = self.data.stat()
        return f"{data.st_size} {data.st_mtime_ns}"

    def _is_as_closed(self) -> bool:
        try:
            return (self.path / _CLEAN).read_text() == self._fingerprint()
        except FileNotFoundError:
            return False

    def mark_open(self) -> None:
        """Note that the file may change from now on."""
        (self.path / _CLEAN).unlink(missing_ok=True)

    def mark_clean(self) -> None:
        """Note that the file is closed and whole. A disk that cannot take the note only costs an examination later."""
        with contextlib.suppress(OSError):
            (self.path / _CLEAN).write_text(self._fingerprint())
