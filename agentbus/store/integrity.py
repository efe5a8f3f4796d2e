"""Is the database that was opened whole? Answered before anything is read out of it or written.

Owns the checks at the start and the mark in the file that says how the last user of it has ended.
Never repairs: a database that is not whole is refused, with the way to restore it. Runs on the
thread of whoever opens the database. (That whole pages were cut off SQLite sees by itself.)

SQLite keeps no checksums of pages: what is checked is that all pages, rows and indexes fit together
(`integrity_check`), not that the text of a message is what it was. On 100,000 messages (129 MiB,
read from memory) `quick_check` takes 0.15 s and `integrity_check` 0.24 s; since the second one also
compares the indexes with the rows, it is the one that is used.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from pathlib import Path
from typing import Final, Literal

from agentbus.limits import MIB
from agentbus.store.connection import damaged
from agentbus.store.schema import DATA_TABLES, PLACE, SCHEMA_VERSION, Meta, insert_text, text

_log = logging.getLogger(__name__)

ALWAYS_CHECKED_BYTES: Final = 64 * MIB
"""A file up to this is checked whole at every start (an eighth of a second), a larger one only when
its last user did not end in order."""

CHECK_SECONDS: Final = 5.0
"""A file that is too large to be checked in this time is used unchecked, and the log says so."""

CACHE_KIB: Final = 16 * 1024
"""For the check only: each entry of an index has its row looked up, all over the file."""

_PROGRESS_STEPS: Final = 10_000
_PROBLEMS: Final = 3

_MARK: Final = "in_use"
Mark = Literal["open", "check", "closed"]
"""How the last user ended: `open`, it did not say; `check`, it met trouble; `closed`, in order."""

_SELECT_META = text(Meta.select(Meta.value).where(Meta.key == PLACE))
_SET_META = insert_text(Meta, replace=True)
_ALL_COLUMNS: Final = tuple(text(table.select().limit(PLACE)) for table in (*DATA_TABLES, Meta))
_COUNTERS: Final = {
    "bus_id": str,
    "last_sequence": int,
    "last_generation": int,
    "logical_bytes": int,
    "purged_through": int,
}
_SINCE_VERSION_2: Final = "purged_through"


def read_mark(connection: sqlite3.Connection) -> Mark | None:
    """None for a database from before there were marks, or one that a reset has just emptied."""
    row = connection.execute(_SELECT_META, (_MARK,)).fetchone()
    return None if row is None else row[0]


def write_mark(connection: sqlite3.Connection, mark: Mark) -> None:
    """Committed; whoever relies on it folds the log, which may be what gets lost."""
    connection.execute(_SET_META, (_MARK, mark))


def check_whole(
    connection: sqlite3.Connection, path: Path, version: int, *, ended_in_order: bool
) -> None:
    """Raises DatabaseUnusable for a file that is damaged; what SQLite raises says the same."""
    size_bytes = os.stat(path).st_size
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    if ended_in_order and size_bytes % page_bytes:
        raise damaged(path, f"cut off in the middle of a page, at {size_bytes} bytes")
    if not ended_in_order or size_bytes <= ALWAYS_CHECKED_BYTES:
        check_pages(connection, path)
    if version == SCHEMA_VERSION:
        for statement in _ALL_COLUMNS:
            connection.execute(statement, (0,))  # refused by SQLite where one is missing
    _check_counters(connection, path, version)


def check_pages(connection: sqlite3.Connection, path: Path) -> None:
    """Read the whole file. Raises DatabaseUnusable."""
    begun_s = time.monotonic()
    deadline_s = begun_s + CHECK_SECONDS
    connection.execute(f"PRAGMA cache_size = {-CACHE_KIB}")
    connection.set_progress_handler(lambda: time.monotonic() > deadline_s, _PROGRESS_STEPS)
    try:
        rows = connection.execute(f"PRAGMA integrity_check({_PROBLEMS})").fetchall()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        _log.warning("%s: not checked whole, that takes more than %g s", path, CHECK_SECONDS)
        return
    finally:
        connection.set_progress_handler(None, 0)
    if rows != [("ok",)]:
        raise damaged(path, "; ".join(" ".join(str(row[0]).split()) for row in rows))
    _log.info("%s: whole, checked in %.2f s", path, time.monotonic() - begun_s)


def _check_counters(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """A counter that went back would give out sequences and generations a second time."""
    values = {}
    for key, kind in _COUNTERS.items():
        if version < 2 and key == _SINCE_VERSION_2:
            continue
        row = connection.execute(_SELECT_META, (key,)).fetchone()
        if row is None:
            raise damaged(path, f"its counter {key} is missing")
        if not isinstance(row[0], kind):  # a column of SQLite takes anything
            raise damaged(path, f"its counter {key} is {row[0]!r:.40}")
        values[key] = row[0]
    for key, table, column in (
        ("last_sequence", "messages", "sequence"),
        ("last_generation", "sessions", "generation"),
    ):
        (newest,) = connection.execute(f'SELECT MAX("{column}") FROM "{table}"').fetchone()
        if newest is not None and newest > values[key]:
            raise damaged(path, f"its counter {key} is {values[key]}, below a row's {newest}")
