"""What an empty database holds: tables, meta rows, the channel `general`.

Owns the first rows of a bus, on a new file and after a reset. Runs on the thread of whoever opens
the database.
"""

from __future__ import annotations

import sqlite3

from agentbus.ids import Generation, Sequence, new_id
from agentbus.limits import DEFAULT_CHANNEL
from agentbus.store.accounting import recount
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


def create(connection: sqlite3.Connection, now_us: int) -> None:
    """Make the schema and the first rows, all or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in create_statements():
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        insert_first_rows(connection, now_us, Sequence(0), Generation(0))
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


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
    connection.executemany(
        _INSERT_META,
        [
            ("schema_version", SCHEMA_VERSION),
            ("bus_id", new_id()),
            ("last_sequence", last_sequence),
            ("last_generation", last_generation),
            ("purged_through", 0),
            ("logical_bytes", recount(connection)),
        ],
    )
