"""What an empty database holds: tables, meta rows, the channel `general`.

Owns the first rows of a bus, on a new file and after a reset. A new file is made under another name
and then renamed: so a file of zero bytes is never one that was only begun. Runs on the thread of
whoever opens the database.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from agentbus.ids import Generation, Sequence, new_id
from agentbus.limits import DEFAULT_CHANNEL
from agentbus.store.accounting import recount
from agentbus.store.connection import Synchronous, open_writer, sync_folder
from agentbus.store.log_check import log_path
from agentbus.store.schema import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    Channel,
    Meta,
    create_statements,
    insert_text,
)

_INSERT_META = insert_text(Meta)
_INSERT_CHANNEL = insert_text(Channel)


def create_database(path: Path, synchronous: Synchronous, now_us: int) -> None:
    """Make the file with an empty bus in it, there at once or not at all.

    Raises DatabaseUnusable, sqlite3.Error or OSError.
    """
    draft = path.with_name(f"{path.name}.new")
    for left in (draft, log_path(draft), draft.with_name(f"{draft.name}-shm")):
        left.unlink(missing_ok=True)
    connection = open_writer(draft, synchronous)
    try:
        connection.execute("BEGIN IMMEDIATE")
        for statement in create_statements():
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        insert_first_rows(connection, now_us, Sequence(0), Generation(0))
        connection.execute("COMMIT")
    finally:
        connection.close()  # the last one: folds the log into the file and removes it
    draft.replace(path)
    sync_folder(path)


def insert_first_rows(
    connection: sqlite3.Connection,
    now_us: int,
    last_sequence: Sequence,
    last_generation: Generation,
) -> None:
    """Into empty tables, within the caller's transaction: a new bus id, and `general`."""
    connection.execute(
        _INSERT_CHANNEL, (None, DEFAULT_CHANNEL, "ordinary", now_us, last_sequence, 0, 0, 0)
    )
    insert_meta(connection, last_sequence, last_generation, Sequence(0))


def insert_meta(
    connection: sqlite3.Connection,
    last_sequence: Sequence,
    last_generation: Generation,
    purged_through: Sequence,
) -> None:
    """What is said about the bus as a whole, when its rows are there: also its new id."""
    connection.executemany(
        _INSERT_META,
        [
            ("schema_version", SCHEMA_VERSION),
            ("bus_id", new_id()),
            ("last_sequence", last_sequence),
            ("last_generation", last_generation),
            ("purged_through", purged_through),
            ("logical_bytes", recount(connection)),
        ],
    )
