"""A database as an older version of the program has left it, from the text in `files`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from agentbus.store.schema import APPLICATION_ID

FILES = Path(__file__).parent / "files"

END_US = 1_800_604_800_000_000
"""When the stored bus was last used, by the clock that stands still."""


def make_older(path: Path, version: int) -> None:
    """A bus of that schema version. Written by the version's own code, then dumped as SQL.

    1: Sam's three oldest messages of `general` are removed by age, "hello" is there; two messages
    of `builds`, of which Kim (conversation c2) has read and confirmed the first; a memory in
    `plans` that Kim has not seen; receipts build-1, build-2, plan and hello.

    2: Sam's memories port, host and gone of `plans`, all handed to Kim (conversation c2) and
    confirmed; a second later port is edited and gone deleted; "hello" in `general`; receipts of
    all that, named port, host, gone, edit, delete and hello.
    """
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = wal")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.executescript((FILES / f"schema-{version}.sql").read_text(encoding="utf-8"))
