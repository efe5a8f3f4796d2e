"""Empty a bus: all messages, identities and cursors go, in one transaction.

Owns what survives: the last sequence and generation go on rising, so that no adapter, report or
Redis entry from before can be mistaken for one from after. The daemon must not be running on the
file. Runs on the thread of the command that asked for it.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from agentbus.failpoints import reach
from agentbus.ids import BusId, Generation, Sequence
from agentbus.store.connection import Synchronous, commit_whole, unusable
from agentbus.store.creation import insert_first_rows
from agentbus.store.fts import DROP_TEXT_INDEX
from agentbus.store.opening import close_bus, open_bus
from agentbus.store.schema import DATA_TABLES, Meta, text
from agentbus.store.work import load_bus_id, load_committed

_EMPTY = (*(text(table.delete()) for table in (*DATA_TABLES, Meta)), DROP_TEXT_INDEX)


@dataclass(frozen=True, slots=True)
class ResetResult:
    """The bus that is there now."""

    bus_id: BusId
    last_sequence: Sequence
    last_generation: Generation


def reset_database(path: Path, synchronous: Synchronous, now_us: int) -> ResetResult:
    """Make the bus empty, with a new bus id.

    Raises DatabaseUnusable, and then nothing was deleted; or CommitUncertain.
    """
    connection = open_bus(path, synchronous, now_us)
    in_order = False
    try:
        _reset(connection, path, now_us)
        reach("after_reset")
        counters = load_committed(connection).counters
        result = ResetResult(
            load_bus_id(connection), counters.last_sequence, counters.last_generation
        )
        in_order = True
        return result
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    finally:
        # Deleted text is still in the log; this writes it out and cuts the log to nothing.
        close_bus(connection, in_order=in_order)


def empty_tables(connection: sqlite3.Connection) -> None:
    """Within the caller's transaction: nothing is left but the tables themselves."""
    for statement in _EMPTY:
        connection.execute(statement)


def _reset(connection: sqlite3.Connection, path: Path, now_us: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        counters = load_committed(connection).counters
        empty_tables(connection)
        reach("during_reset")
        insert_first_rows(connection, now_us, counters.last_sequence, counters.last_generation)
        commit_whole(connection, path, "the bus was emptied", "run agentbus reset again")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
