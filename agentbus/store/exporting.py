"""Write a whole bus as lines of JSON, from one snapshot.

Owns the reading side of an export. Changes nothing and needs no lock: a daemon may go on accepting
meanwhile, and what it commits after the beginning is not in the export. The snapshot keeps the
write-ahead log from being emptied, so `write` must be quick: a local file, never a pipe. Runs on
the main thread of a command.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peewee import SQL

from agentbus.encoding import encode_line, raw
from agentbus.envelope import rfc3339
from agentbus.ids import BusId
from agentbus.store.connection import not_read
from agentbus.store.export_format import FORMAT_VERSION, HEADER, TRAILER
from agentbus.store.export_kinds import KINDS, Kind
from agentbus.store.opening import open_snapshot
from agentbus.store.schema import SCHEMA_VERSION, Meta, text

_SELECT_META = text(Meta.select(Meta.key, Meta.value))
_SELECTS = {
    kind.name: text(
        kind.table.select(*(getattr(kind.table, name) for name in kind.fields)).order_by(
            SQL(kind.order)
        )
    )
    for kind in KINDS
}
_IN_HEADER = ("bus_id", "last_sequence", "last_generation", "purged_through")


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """What was written. `counts` by the plural names of the records."""

    bus_id: BusId
    counts: dict[str, int]
    size_bytes: int


def export_bus(path: Path, write: Callable[[bytes], Any], now_us: int) -> ExportSummary:
    """Write every line. Raises DatabaseUnusable, a BusError when a row cannot be read, and
    whatever `write` raises."""
    digest = hashlib.sha256()
    size_bytes = 0
    counts = {}

    def put(record: dict[str, Any]) -> None:
        nonlocal size_bytes
        line = encode_line(record)
        digest.update(line)
        size_bytes += len(line)
        write(line)

    with closing(open_snapshot(path)) as connection:
        try:
            connection.execute("BEGIN")
            meta = dict(connection.execute(_SELECT_META).fetchall())
            put(
                {
                    HEADER: FORMAT_VERSION,
                    "schema": SCHEMA_VERSION,
                    "exported_at": rfc3339(now_us),
                    **{key: meta[key] for key in _IN_HEADER},
                }
            )
            for kind in KINDS:
                counts[kind.plural] = 0
                for record in _records(connection, kind):
                    put({kind.name: record})
                    counts[kind.plural] += 1
        except sqlite3.Error as error:
            raise not_read(error) from error
    put({TRAILER: {"counts": counts, "sha256": digest.hexdigest()}})
    return ExportSummary(meta["bus_id"], counts, size_bytes)


def _records(connection: sqlite3.Connection, kind: Kind) -> Iterator[dict[str, Any]]:
    names = tuple(kind.fields)
    for row in connection.execute(_SELECTS[kind.name]):
        yield {name: _as_json(name, value) for name, value in zip(names, row, strict=True)}


def _as_json(name: str, value: Any) -> Any:
    match name:
        case "envelope" | "result":
            return raw(value)
        case "capabilities" | "detail":
            return raw(value.encode())
        case "told":
            return bool(value)
        case "fingerprint":
            return value.hex()
        case _:
            return value
