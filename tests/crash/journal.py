"""Every state that a delivery was ever committed in, in the order of the commits.

SQLite itself writes it, by triggers that the checker adds to the database of a bus under test: an
entry is in the same transaction as the change, so no kill can part the two.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import NamedTuple

_TABLE = "crash_journal"
_WRITES_WITHIN_S = 10.0


class Entry(NamedTuple):
    """A delivery after a change. `state` is `gone` once its row is removed."""

    delivery_id: str
    message_id: str
    sequence: int
    kind: str
    reply_to: str | None
    sender_session: str
    recipient_agent: str
    recipient_session: str | None
    state: str
    holder: str | None
    holder_generation: int | None
    token: str | None
    attempt: int
    extensions: int
    reply_state: str | None
    reply_message_id: str | None
    late_reply_message_id: str | None


_COLUMNS = ("id", *Entry._fields[1:])


def keep(database: Path) -> None:
    """Begin, before there is any delivery. A daemon may have it open."""
    kept = ", ".join(Entry._fields)
    with contextlib.closing(sqlite3.connect(database, timeout=_WRITES_WITHIN_S)) as connection:
        connection.execute(f"CREATE TABLE {_TABLE} (number INTEGER PRIMARY KEY, {kept})")
        for event, row in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
            values = [f"{row}.{column}" for column in _COLUMNS]
            if event == "DELETE":
                values[_COLUMNS.index("state")] = "'gone'"
            connection.execute(
                f"CREATE TRIGGER {_TABLE}_{event} AFTER {event} ON deliveries BEGIN "
                f"INSERT INTO {_TABLE} ({kept}) VALUES ({', '.join(values)}); END"
            )
        connection.commit()


def read(connection: sqlite3.Connection) -> list[Entry]:
    """All of it; nothing where none was kept."""
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (_TABLE,)).fetchone()
    if found is None:
        return []
    kept = ", ".join(Entry._fields)
    return [
        Entry(*row) for row in connection.execute(f"SELECT {kept} FROM {_TABLE} ORDER BY number")
    ]
