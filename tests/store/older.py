"""A database as an older version of the program has left it, from the text in `files`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from agentbus.store.schema import APPLICATION_ID

FILES = Path(__file__).parent / "files"

END_US = 1_800_604_800_000_000
"""When the stored bus was last used, by the clock that stands still."""


def make_schema_1(path: Path) -> None:
    """A bus of schema version 1. Written by that version's own code, then dumped as SQL:

    Sam's three oldest messages of `general` are removed by age, "hello" is there; two messages of
    `builds`, of which Kim (conversation c2) has read and confirmed the first; a memory in `plans`
    that Kim has not seen; receipts build-1, build-2, plan and hello.
    """
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = wal")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.executescript((FILES / "schema-1.sql").read_text(encoding="utf-8"))
