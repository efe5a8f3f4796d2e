"""Opening the database file: one writer, any number of readers, and the pragmas of each.

Owns how a connection is set up and what a file that cannot be used is told apart by. Never reads or
writes a row of the bus; what else must be true before that is in opening.py. A connection is used
by one thread at a time and nothing is shared between two of them: Peewee makes the SQL (schema.py);
its own hidden connections per thread are not used.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from agentbus.errors import BusError, InternalError, UnavailableError
from agentbus.limits import MIB
from agentbus.store.schema import APPLICATION_ID, SCHEMA_VERSION

Synchronous = Literal["full", "normal"]

BUSY_SECONDS = 5.0
"""Wait for another process's lock: only a reset or somebody's sqlite3 shell can hold it."""

WAL_CHECKPOINT_PAGES = 4000
"""16 MiB of 4 KiB pages: rare enough to cost sends little, small enough to read back at start."""

WAL_KEPT_BYTES = 16 * MIB
"""A WAL that readers made larger is cut to this when it begins anew (see write_ahead_log.py)."""

FILE_MODE = 0o600

Pragmas = list[tuple[str, str | int]]
_READING: Pragmas = [("query_only", 1), ("cache_size", -2 * 1024)]  # KiB


class DatabaseUnusable(Exception):
    """The database file cannot be opened; the text says which, why, and what to do."""


class FilesGone(Exception):
    """The database's files were removed or replaced while it is open: what is committed now would
    be in files that nobody finds again."""


class CommitUncertain(Exception):
    """COMMIT itself raised: its changes may or may not be on disk, only reopening tells."""


def open_writer(path: Path, synchronous: Synchronous) -> sqlite3.Connection:
    """Open for reading and writing; makes an empty file where there is none.

    Raises DatabaseUnusable, and leaves a file of another program untouched. There may be one writer
    per file (the daemon's lock sees to it).
    """
    try:
        make_private(path)
    except OSError as error:
        raise DatabaseUnusable(
            f"{path}: cannot be opened for writing ({error.strerror}); repair the folder's "
            "permissions, or set data_directory to a writable local folder"
        ) from None
    pragmas: Pragmas = [
        ("journal_mode", "wal"),
        ("synchronous", synchronous),
        ("wal_autocheckpoint", WAL_CHECKPOINT_PAGES),
        ("journal_size_limit", WAL_KEPT_BYTES),
        ("cache_size", -16 * 1024),  # KiB
        ("temp_store", "memory"),
    ]
    if sys.platform == "darwin":  # fsync there leaves the data in the drive's cache
        pragmas += [("fullfsync", 1), ("checkpoint_fullfsync", 1)]
    return _connect(path, _uri(path, "rw"), pragmas)[0]


def open_reader(path: Path) -> sqlite3.Connection:
    """Open an existing database; no statement can change anything. Raises DatabaseUnusable."""
    connection, version = _connect(path, _uri(path, "ro"), _READING)
    if version == SCHEMA_VERSION:
        return connection
    connection.close()
    if version is None:
        raise DatabaseUnusable(f"{path}: holds no bus yet; start the daemon once to create it")
    raise DatabaseUnusable(
        f"{path}: has schema version {version}, this program reads {SCHEMA_VERSION}; start the "
        "daemon once: it brings an older one up to date and says what to do with a newer one"
    )


def open_to_check(path: Path, *, has_log: bool) -> tuple[sqlite3.Connection, object]:
    """Like `open_reader`, but with whatever schema version is there; it is told too.

    Such a connection does not fold the log into the file, and makes none where there is none.
    """
    return _connect(path, _uri(path, "ro", immutable=not has_log), _READING)


def _connect(path: Path, uri: str, pragmas: Pragmas) -> tuple[sqlite3.Connection, object]:
    """The connection, and the schema version of what is in the file."""
    try:
        connection = sqlite3.connect(
            uri,
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,  # transactions begin and end where the code says so
            # Opened by whoever composes the daemon, then used by one actor's thread only.
            check_same_thread=False,
            cached_statements=256,
        )
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    try:
        version = _version(connection, path)  # before a pragma could change a foreign file
        for name, value in pragmas:
            connection.execute(f"PRAGMA {name} = {value}").fetchall()
        return connection, version
    except sqlite3.Error as error:
        connection.close()
        raise unusable(path, error) from error
    except BaseException:
        connection.close()
        raise


def _version(connection: sqlite3.Connection, path: Path) -> object:
    """Whatever stands for the version of our schema, None for an empty file.

    Raises DatabaseUnusable for the database of another program.
    """
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    if not tables and application_id in (0, APPLICATION_ID):
        return None
    if application_id != APPLICATION_ID:
        raise DatabaseUnusable(
            f"{path}: a SQLite database, but not one of agentbus; "
            "move it away, or set data_directory to another folder"
        )
    try:
        row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    except sqlite3.OperationalError as error:
        raise damaged(path, str(error)) from None
    return "(none)" if row is None else row[0]


class OpenFiles:
    """Which files an open database consists of: SQLite itself never looks again.

    The locks are in `-shm`: another process that made it anew would not see that we write.
    """

    def __init__(self, path: Path) -> None:
        self._paths = (path, *(path.with_name(f"{path.name}-{part}") for part in ("wal", "shm")))
        self._inodes = [_inode(file) for file in self._paths]

    def check(self) -> None:
        """Raises FilesGone. Three system calls, next to the sync of every commit."""
        for file, inode in zip(self._paths, self._inodes, strict=True):
            if _inode(file) != inode:
                raise FilesGone(f"{file} was removed or replaced while the bus uses it")


def _inode(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


def wrote_nothing(error: Exception) -> bool:
    """Did COMMIT fail in a way that leaves no doubt?

    SQLITE_FULL is raised when a page could not be appended to the WAL. The frame that makes a
    transaction valid is the last one appended, so it is not there, and SQLite has rolled back.
    Every other failure may come from the sync after that frame.
    """
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def commit_whole(connection: sqlite3.Connection, path: Path, done: str, advice: str) -> None:
    """COMMIT of what concerns the whole bus, and which no receipt remembers.

    Raises sqlite3.Error when certainly nothing was stored, else CommitUncertain: its text says that
    nobody knows whether it is `done`, and what to do.
    """
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if wrote_nothing(error):
            raise
        raise CommitUncertain(
            f"{path}: the disk did not say whether {done} ({error}); repair it, then {advice}"
        ) from error


def is_damage(error: Exception) -> bool:
    """Does SQLite say that the file is not what it wrote?"""
    name = getattr(error, "sqlite_errorname", "")
    return name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT"))


def _does_not_know(error: sqlite3.Error) -> bool:
    """Does it miss a table or a column that every bus has, or find one that none has?"""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR


def damaged(path: Path, how: str) -> DatabaseUnusable:
    """The one text about a file that is not whole, and the ways out."""
    return DatabaseUnusable(
        f"{path}: damaged ({how}); nothing was changed. Move it and its -wal file away, then put a "
        "copy of both back, or restore an export: agentbus-admin import FILE; with neither, the "
        "next start begins an empty bus"
    )


def unusable(path: Path, error: sqlite3.Error) -> DatabaseUnusable:
    """Say what SQLite's complaint about a file means."""
    if is_damage(error) or _does_not_know(error):
        return damaged(path, str(error))
    return DatabaseUnusable(
        f"{path}: cannot be opened ({error}); check that the folder exists, is on a local disk "
        "with free space and may be written"
    )


def not_read(error: sqlite3.Error) -> BusError:
    """What a caller hears whose question the database could not answer."""
    if is_damage(error):
        return _damage_met(error)
    return UnavailableError(
        f"the database could not be read ({error}); see the daemon's log and its disk"
    )


def not_written(error: Exception) -> BusError:
    """What a caller hears whose change was not stored."""
    if is_damage(error):
        return _damage_met(error)
    return UnavailableError(
        f"the database could not be written ({error}), nothing was stored; make room on its "
        "disk or repair it, then try again with the same operation id"
    )


def _damage_met(error: Exception) -> InternalError:
    """Not retryable: no later call goes better, until a person has restored the file."""
    return InternalError(
        f"the database is damaged ({error}), nothing was stored; run agentbus stop, then agentbus "
        "daemon, which checks the file and says how to restore it"
    )


def sync_folder(path: Path) -> None:
    """Make the name of a file that was just made or renamed survive a power loss."""
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_private(path: Path) -> None:
    """The file holds everybody's messages; SQLite gives its -wal and -shm the same mode."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != FILE_MODE:
            os.fchmod(descriptor, FILE_MODE)
    finally:
        os.close(descriptor)


def _uri(path: Path, mode: Literal["rw", "ro"], *, immutable: bool = False) -> str:
    return f"file:{quote(os.path.abspath(path))}?mode={mode}{'&immutable=1' if immutable else ''}"
