"""Logical bytes of retained rows: what counts against `sqlite_budget_mib`.

Owns the one definition of a row's size, in Python for what is written and in SQL for what is
removed or recounted: a text or blob counts its bytes (text as UTF-8), everything else, NULL
included, counts 8. File, index and WAL sizes are not part of it. Used by the ledger's thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from peewee import SQL, BlobField, TextField, fn

from agentbus.store.schema import DATA_TABLES, Table, text

FIXED_BYTES = 8
"""Of a number or NULL, whatever SQLite makes of it on disk."""


def row_bytes(row: Iterable[object]) -> int:
    """Size of a row about to be written."""
    total = 0
    for value in row:
        if isinstance(value, str):
            total += len(value) if value.isascii() else len(value.encode())
        elif isinstance(value, bytes):
            total += len(value)
        else:
            total += FIXED_BYTES
    return total


def row_bytes_sql(table: Table) -> SQL:
    """The same size as an SQL expression over a stored row of `table`."""
    fixed = 0
    terms = []
    for field in table._meta.sorted_fields:
        name = f'"{field.column_name}"'
        if isinstance(field, BlobField):
            size = f"LENGTH({name})"  # known from the row's header, the blob is not read
        elif isinstance(field, TextField):
            size = f"LENGTH(CAST({name} AS BLOB))"  # LENGTH of a text counts characters
        else:
            fixed += FIXED_BYTES
            continue
        terms.append(f"COALESCE({size}, {FIXED_BYTES})" if field.null else size)
    return SQL(" + ".join((str(fixed), *terms)))


_RECOUNTS = tuple(
    text(table.select(fn.COALESCE(fn.SUM(row_bytes_sql(table)), SQL("0")))) for table in DATA_TABLES
)


def recount(connection: sqlite3.Connection) -> int:
    """The size of all rows, by reading every one of them."""
    return sum(int(connection.execute(sql).fetchone()[0]) for sql in _RECOUNTS)
