"""Many rows in few statements.

Every statement gives up the interpreter lock and has to get it back from threads that compute; for
a batch that goes row by row this, not the disk, is what the time goes to. Statements take rows by
the chunk, in a few fixed sizes, so that SQLite's prepared statements are found again.
Runs on the ledger's thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from collections.abc import Sequence as Rows
from typing import Any, Final, TypeAlias

from peewee import SQL

from agentbus.store.schema import PLACE, Receipt, Table, text

CHUNKS: Final = (64, 16, 4, 1)
"""Rows per statement; the largest times the widest table stays far below SQLite's 32,766 values."""

Row: TypeAlias = tuple[object, ...]


class BulkInsert:
    """INSERT of whole rows of one table, columns in the order of their declaration."""

    def __init__(self, table: Table) -> None:
        row = dict.fromkeys(table._meta.sorted_fields, PLACE)
        self._texts = {size: text(table.insert_many([row] * size)) for size in CHUNKS}

    def execute(self, connection: sqlite3.Connection, rows: Rows[Row]) -> None:
        """Insert all rows, in order."""
        for chunk in _chunks(rows):
            connection.execute(self._texts[len(chunk)], _values(chunk))


class ReceiptLookup:
    """The receipts of many (session, operation id) at once."""

    def __init__(self) -> None:
        # A join, because SQLite answers `(session, operation_id) IN (VALUES ...)` by a scan.
        on = (Receipt.session == SQL("k.column1")) & (Receipt.operation_id == SQL("k.column2"))
        self._texts = {
            size: text(
                Receipt.select(
                    Receipt.session,
                    Receipt.operation_id,
                    Receipt.fingerprint,
                    Receipt.result,
                    Receipt.accepted_at_us,
                    Receipt.expires_at_us,
                )
                .from_(SQL(f"(VALUES {', '.join(['(?, ?)'] * size)}) AS k"), Receipt)
                .where(on)
            )
            for size in CHUNKS
        }

    def execute(self, connection: sqlite3.Connection, keys: Rows[Row]) -> dict[Row, Row | None]:
        """Key -> the other columns of its receipt, or None."""
        found: dict[Row, Row | None] = dict.fromkeys(keys)
        for chunk in _chunks(keys):
            for session, operation_id, *columns in connection.execute(
                self._texts[len(chunk)], _values(chunk)
            ).fetchall():
                found[session, operation_id] = tuple(columns)
        return found


def _chunks(rows: Rows[Row]) -> Iterator[Rows[Row]]:
    """The rows in order, in pieces of the fixed sizes, as few as possible."""
    start = 0
    for size in CHUNKS:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size


def _values(rows: Rows[Row]) -> list[Any]:
    return [value for row in rows for value in row]
