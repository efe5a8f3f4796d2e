"""From a path to a bus that may be written: what has to be true before the first change.

Owns the order: look at the files, open, check that the database is whole, bring its schema up to
date, mark it as in use; and the end of that use. Never reads or writes a message. Whoever opens a
bus holds its locks; runs on their thread.

What is refused is left as it is. Both files matter: a log without its database, or a database
without the log of a user who did not end, has lost what was accepted last, and SQLite would begin
anew without a word.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from agentbus.store.connection import (
    DatabaseUnusable,
    Synchronous,
    damaged,
    make_private,
    open_reader,
    open_to_check,
    open_writer,
    unusable,
)
from agentbus.store.creation import create_database
from agentbus.store.integrity import check_whole, read_mark, write_mark
from agentbus.store.log_check import LogDamaged, LogState, log_path, look_at_log
from agentbus.store.migrations import check_version, migrate
from agentbus.store.schema import SCHEMA_VERSION

_log = logging.getLogger(__name__)


def open_bus(path: Path, synchronous: Synchronous, now_us: int) -> sqlite3.Connection:
    """A connection to a whole bus of the current schema; made if there is none.

    Raises DatabaseUnusable.
    """
    log = _look_at_files(path, synchronous)
    try:
        if not path.exists():
            create_database(path, synchronous, now_us)
        make_private(path)  # before the first connection: its log and index get the same mode
        version = _check(path, log)
        connection = open_writer(path, synchronous)
    except (sqlite3.Error, OSError) as error:
        raise _cannot_open(path, error) from error
    try:
        if version != SCHEMA_VERSION:
            write_mark(connection, "check")
            fold_log(connection)  # so that the log is not missed, whatever becomes of the steps
            migrate(connection, path, version)
        _mark_open(connection, path)
    except (sqlite3.Error, OSError) as error:
        connection.close()
        raise _cannot_open(path, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def open_snapshot(path: Path) -> sqlite3.Connection:
    """To read all of a bus, whether a daemon runs or not. Raises DatabaseUnusable."""
    if path.exists() and not log_path(path).exists():
        # A reader makes an empty log, after which nobody could tell that one is missing.
        connection, version = open_to_check(path, has_log=False)
        with closing(connection):
            if version == SCHEMA_VERSION and read_mark(connection) == "open":
                raise _log_missing(path)
    return open_reader(path)


def close_bus(
    connection: sqlite3.Connection, *, in_order: bool, fold: Callable[[], None] | None = None
) -> None:
    """Fold the log into the file and let go of it.

    SQLite folds by itself only when the last connection goes, and readers may go later.
    """
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        write_mark(connection, "closed" if in_order else "check")
        if fold is None:
            fold_log(connection)
        else:
            fold()
    except sqlite3.Error as error:
        _log.warning("the write-ahead log stays beside the database: %s", error)
    connection.close()


def fold_log(connection: sqlite3.Connection) -> None:
    """Write the log into the file and cut it to nothing, unless somebody reads from it."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _look_at_files(path: Path, synchronous: Synchronous) -> LogState:
    if path.is_dir():
        raise _cannot_open(path, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
    try:
        log = look_at_log(path, every_commit_synced=synchronous == "full")
        size_bytes = path.stat().st_size if path.exists() else None
    except LogDamaged as error:
        raise _log_damaged(path, str(error)) from None
    except OSError as error:
        raise _cannot_open(path, error) from error
    if log.torn:
        _log.warning("%s: its last write is incomplete and is left out", log_path(path))
    if size_bytes is None and log.size_bytes:
        raise DatabaseUnusable(
            f"{path}: missing, but its log {log_path(path).name} is there with what was accepted "
            "last; put the database back beside it, or move the log away too for an empty bus"
        )
    if size_bytes == 0:
        raise damaged(path, "it has no bytes")
    return log


def _check(path: Path, log: LogState) -> int:
    """The schema version of what is there, which is whole. Changes nothing, whatever it finds."""
    connection, version = open_to_check(path, has_log=log.present)
    with closing(connection):
        if version is None:
            raise damaged(path, "it holds no tables")
        known = check_version(path, version)
        mark = read_mark(connection)
        if mark == "open" and not log.present:
            raise _log_missing(path)
        in_order = mark == "closed" and not log.size_bytes
        check_whole(connection, path, known, ended_in_order=in_order)
        return known


def _mark_open(connection: sqlite3.Connection, path: Path) -> None:
    try:
        write_mark(connection, "open")
        fold_log(connection)
    except sqlite3.OperationalError as error:
        # A full disk: reading is still worth something, and nothing can be accepted anyway.
        _log.warning("%s: cannot be marked as in use: %s", path, error)


def _log_missing(path: Path) -> DatabaseUnusable:
    return DatabaseUnusable(
        f"{path}: its log {log_path(path).name} is missing, with what was accepted last, since the "
        "daemon that used both did not end in order. Put it back; or, if another program has "
        f"folded it in or it is lost, go on without it: touch {log_path(path)}"
    )


def _log_damaged(path: Path, how: str) -> DatabaseUnusable:
    log = log_path(path)
    return DatabaseUnusable(
        f"{log}: damaged ({how}), and it holds what was accepted last; nothing was changed. "
        "Restore a copy of it and of the database, or go on without what is behind the damage: "
        f"mv {log} {log}.damaged && touch {log}"
    )


def _cannot_open(path: Path, error: sqlite3.Error | OSError) -> DatabaseUnusable:
    if isinstance(error, sqlite3.Error):
        return unusable(path, error)
    return DatabaseUnusable(
        f"{path}: cannot be opened ({error.strerror or error}); repair the folder's permissions, "
        "make room on its disk, or set data_directory to a writable local folder"
    )
