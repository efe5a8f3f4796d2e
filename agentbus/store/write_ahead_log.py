"""The write-ahead log: emptied in time, and somebody named when that cannot be.

SQLite appends to its log until a moment comes at which everything is copied into the database file
and nobody reads from the log; then it begins at its start again. The daemon's own reads are single,
bounded statements, but with enough readers there is always one: so from `EMPTY_BYTES` on the ledger
waits for them, which takes no longer than the longest of them.

Another process that keeps a read transaction open cannot be waited for, and what it sees cannot be
given up. Then the log grows with every commit: a warning names that process, and at `FULL_BYTES`
nothing more is stored until it has gone. Owns the sizes and the checkpoints that SQLite does not do
by itself. Never reads or writes a row. Runs on the ledger's thread.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from pathlib import Path

from agentbus.limits import MIB
from agentbus.store.connection import BUSY_SECONDS, WAL_CHECKPOINT_PAGES
from agentbus.store.log_check import log_path

_log = logging.getLogger(__name__)

EMPTY_BYTES = 32 * MIB
"""Twice what SQLite's own checkpoints leave it at when nobody reads."""

HELD_BYTES = 64 * MIB
"""No reader of the daemon's makes it so large."""

FULL_BYTES = 1024 * MIB
"""A forgotten shell shall not stop the bus at once, and not fill the disk either."""

PATIENCE_MS = 1500
"""Longer than the longest read of the daemon's own, a search of `SEARCH_SECONDS`. Waited at every
step up to `HELD_BYTES`; who reads on then is not ours, and is waited for at every doubling."""

STEP_BYTES = 16 * MIB
RETRY_S = 1.0
"""After a failure: try again when it has grown by so much, or after so long."""

_READ_MARKS = range(123, 128)
"""Bytes of the -shm file that a reader locks, by SQLite's file format."""


class WriteAheadLog:
    """Attend to it after every commit; do not commit while it is full."""

    def __init__(self, connection: sqlite3.Connection, database: Path) -> None:
        self._connection = connection
        self._database = database
        self._path = log_path(database)
        self._committed_bytes = 0  # its size after the last commit: only commits make it grow
        self._tried_at_s: float | None = None  # None: the last try succeeded, or there was none
        self._next_try_bytes = EMPTY_BYTES
        self._next_wait_bytes = EMPTY_BYTES
        self.obstacle: str | None = None
        """Why it cannot be emptied, once it is beyond `HELD_BYTES`."""

    @property
    def size_bytes(self) -> int:
        """Of the file; any thread may ask."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def attend(self) -> None:
        """Empty the log if it is too large. Waits for readers of the daemon's, at most."""
        size_bytes = self._committed_bytes = self.size_bytes
        if size_bytes < EMPTY_BYTES or not self._is_time_to_try(size_bytes):
            return
        patient = size_bytes >= self._next_wait_bytes
        obstacle = self._empty(PATIENCE_MS if patient else 0)
        if obstacle is None:
            self._emptied(size_bytes)
        else:
            self._failed(size_bytes, patient, obstacle)

    def is_full(self) -> bool:
        """Whether it is too large for another commit, after a try to empty it."""
        if self._committed_bytes < FULL_BYTES:
            return False
        self.attend()
        return self._committed_bytes >= FULL_BYTES

    def close(self) -> None:
        """Fold all of it into the database, whose last connection may not be ours."""
        obstacle = self._empty(PATIENCE_MS)
        if obstacle is not None:
            _log.warning("the write-ahead log stays beside the database, because %s", obstacle)

    def _is_time_to_try(self, size_bytes: int) -> bool:
        return (
            self._tried_at_s is None
            or size_bytes >= self._next_try_bytes
            or time.monotonic() - self._tried_at_s >= RETRY_S
        )

    def _empty(self, patience_ms: int) -> str | None:
        """None when it is empty now; else why not."""
        execute = self._connection.execute
        try:
            execute(f"PRAGMA busy_timeout = {patience_ms}").fetchall()
            try:
                (busy, *_) = execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}").fetchall()
        except sqlite3.Error as error:
            return f"it could not be folded into the database ({error})"
        if busy:
            return f"{_reader_outside(self._database)} keeps reading the database as it was"
        return None

    def _emptied(self, size_bytes: int) -> None:
        if self._tried_at_s is not None:
            self._checkpoint_every(WAL_CHECKPOINT_PAGES)
        if self.obstacle is not None:
            _log.info("the write-ahead log of %d MiB is empty again", size_bytes // MIB)
        self._tried_at_s = self.obstacle = None
        self._committed_bytes = 0
        self._next_try_bytes = self._next_wait_bytes = EMPTY_BYTES

    def _failed(self, size_bytes: int, patient: bool, obstacle: str) -> None:
        if self._tried_at_s is None:
            # By itself SQLite would look through all of the log at every commit.
            self._checkpoint_every(0)
        self._tried_at_s = time.monotonic()
        self._next_try_bytes = size_bytes + STEP_BYTES
        if patient:
            self._next_wait_bytes = min(self._next_try_bytes, HELD_BYTES)
            if size_bytes >= HELD_BYTES:
                self._next_wait_bytes = 2 * size_bytes
        if size_bytes >= HELD_BYTES:
            if self.obstacle is None:
                _log.warning(
                    "the write-ahead log has grown to %d MiB, because %s; unless that ends, "
                    "nothing more can be stored at %d MiB",
                    *(size_bytes // MIB, obstacle, FULL_BYTES // MIB),
                )
            self.obstacle = obstacle

    def _checkpoint_every(self, pages: int) -> None:
        self._connection.execute(f"PRAGMA wal_autocheckpoint = {pages}").fetchall()


def _reader_outside(database: Path) -> str:
    """The other process that is in a read transaction, where the system tells: Linux does."""
    try:
        inode = os.stat(f"{database}-shm").st_ino
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return "another process"
    for line in locks:
        _, _, _, _, pid, file, first, _ = line.replace("-> ", "").split()
        if (
            file.rpartition(":")[2] == str(inode)
            and int(first) in _READ_MARKS
            and int(pid) not in (0, os.getpid())
        ):
            return _name_of(int(pid))
    return "another process"


def _name_of(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return f"process {pid}"
    return f"process {pid} ({name})"
