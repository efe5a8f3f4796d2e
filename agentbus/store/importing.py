"""Read an export into an empty bus, in one transaction: all of it or nothing.

Owns what an export must be to become a bus: every line is checked by itself (export_format.py) and
against those before it (import_check.py). Whoever imports holds the bus's locks. The new bus has an
id of its own, as an export may be read twice and the two go on differently; sessions, cursors,
message ids, sequences and receipts are what they were. Runs on the main thread of a command.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from peewee import SQL, fn

from agentbus.errors import ValidationError
from agentbus.failpoints import reach
from agentbus.ids import BusId, Generation, Sequence
from agentbus.store.connection import Synchronous, commit_whole, unusable
from agentbus.store.creation import insert_meta
from agentbus.store.export_format import (
    LINE_BYTES,
    TRAILER,
    checked_header,
    checked_record,
    checked_trailer,
    decode_line,
)
from agentbus.store.export_kinds import KINDS
from agentbus.store.import_check import Records
from agentbus.store.opening import close_bus, open_bus
from agentbus.store.reset import empty_tables
from agentbus.store.schema import (
    DATA_TABLES,
    Channel,
    Message,
    insert_text,
    text,
)
from agentbus.store.work import load_bus_id, load_committed

_INSERTS = {kind.name: insert_text(kind.table) for kind in KINDS}
_COUNTS = {table._meta.table_name: text(table.select(fn.COUNT(SQL("*")))) for table in DATA_TABLES}
_RETAINED = text(
    Channel.update(
        {
            Channel.retained: Message.select(fn.COUNT(SQL("*"))).where(
                (Message.channel == Channel.id) & Message.tombstoned_at_us.is_null()
            )
        }
    )
)


class ImportRefused(Exception):
    """Nothing was imported; the text says which line is why, or what is in the way."""


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """The bus that is there now, and how many records of each kind it was made of."""

    bus_id: BusId
    counts: dict[str, int]
    last_sequence: Sequence


def import_bus(
    path: Path, synchronous: Synchronous, lines: IO[bytes], now_us: int
) -> ImportSummary:
    """Fill the empty bus at `path`, or one that is made there.

    Raises ImportRefused or DatabaseUnusable, and then nothing was imported; or CommitUncertain.
    """
    reading = _Lines(lines)
    header = reading.header()  # before a file is made for what is no export
    connection = open_bus(path, synchronous, now_us)
    in_order = False
    try:
        _require_empty(connection, path)
        connection.execute("BEGIN IMMEDIATE")
        before = load_committed(connection).counters
        empty_tables(connection)
        counts = _insert_all(connection, reading, Records(header))
        connection.execute(_RETAINED)
        # An empty bus may have had messages; its numbers never come again either.
        last_sequence = Sequence(max(header["last_sequence"], before.last_sequence))
        last_generation = Generation(max(header["last_generation"], before.last_generation))
        insert_meta(connection, last_sequence, last_generation, header["purged_through"])
        reach("during_import")
        commit_whole(
            connection, path, "it was imported", "import again: a bus that has it is refused"
        )
        in_order = True
        return ImportSummary(load_bus_id(connection), counts, last_sequence)
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    finally:
        close_bus(connection, in_order=in_order)


def _require_empty(connection: sqlite3.Connection, path: Path) -> None:
    counts = {name: connection.execute(sql).fetchone()[0] for name, sql in _COUNTS.items()}
    counts["channels"] -= 1  # general
    there = [f"{count} {name}" for name, count in counts.items() if count]
    if there:
        raise ImportRefused(
            f"{path}: not empty ({', '.join(there)}), and an import never mixes two buses; "
            "run agentbus reset first, or import into another data_directory"
        )


class _Lines:
    """The lines of the file with their numbers and the checksum of those read."""

    def __init__(self, lines: IO[bytes]) -> None:
        self._lines = lines
        self._digest = hashlib.sha256()
        self.number = 0

    def refuse(self, problem: str, number: int | None = None) -> ImportRefused:
        name = getattr(self._lines, "name", "the export")
        line = self.number if number is None else number
        return ImportRefused(f"{name}, line {line}: {problem}; nothing was imported")

    def header(self) -> dict[str, Any]:
        try:
            return checked_header(self._next())
        except ValidationError as error:
            raise self.refuse(error.message) from None

    def records(self) -> Iterator[tuple[str, Any]]:
        """Name and content of every record; at the end the trailer has been checked."""
        counts = {kind.plural: 0 for kind in KINDS}
        plurals = {kind.name: kind.plural for kind in KINDS}
        while True:
            digest = self._digest.hexdigest()
            value = self._next()
            if len(value) != 1:
                raise self.refuse("must be an object of exactly one member, named by its kind")
            ((name, content),) = value.items()
            if name == TRAILER:
                break
            if name not in plurals:
                raise self.refuse(f"{name!r} is no kind of record; known: {', '.join(plurals)}")
            counts[plurals[name]] += 1
            yield name, content
        try:
            trailer = checked_trailer(content)
        except ValidationError as error:
            raise self.refuse(f"{TRAILER}: {error.message}") from None
        if {**dict.fromkeys(counts, 0), **trailer["counts"]} != counts:  # an older one has fewer
            raise self.refuse(f"counts {trailer['counts']}, but the file has {counts}")
        if trailer["sha256"] != digest:
            raise self.refuse("the checksum does not fit: the file was changed or damaged")
        if self._lines.read(1):
            raise self.refuse("something follows the last line of the export")

    def _next(self) -> dict[str, Any]:
        line = self._lines.readline(LINE_BYTES + 1)
        self.number += 1
        if len(line) > LINE_BYTES:
            raise self.refuse(f"is longer than {LINE_BYTES} bytes")
        if not line.endswith(b"\n"):
            raise self.refuse("the file ends here, without the last line of an export: it was cut")
        self._digest.update(line)
        try:
            return decode_line(line)
        except ValidationError as error:
            raise self.refuse(error.message) from None


def _insert_all(connection: sqlite3.Connection, lines: _Lines, records: Records) -> dict[str, int]:
    counts = {kind.plural: 0 for kind in KINDS}
    kinds = {kind.name: (index, kind) for index, kind in enumerate(KINDS)}
    reached = 0
    for name, content in lines.records():
        index, kind = kinds[name]
        if index < reached:
            raise lines.refuse(f"a {name} after a {KINDS[reached].name}: the order is fixed")
        reached = index
        try:
            row = records.row(kind, checked_record(kind, content), lines.number)
        except ValidationError as error:
            raise lines.refuse(f"{name}: {error.message}") from None
        try:
            connection.execute(_INSERTS[name], row)
        except sqlite3.IntegrityError as error:
            raise lines.refuse(f"{name}: repeats an earlier one ({error})") from None
        counts[kind.plural] += 1
    missing = records.end()
    if missing is not None:
        raise lines.refuse(*missing)
    return counts
