"""What SQLite and Redis hold of the same bus, compared."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from agentbus.ids import Sequence
from agentbus.limits import MIB
from agentbus.projection.connection import connect
from agentbus.projection.streams import StreamReader, StreamWriter
from agentbus.store.reader import Reader

ALL = 1_000_000


def both_stores(database: Path, redis_socket: Path) -> list[int]:
    """Ordinary sequences that are retained. AssertionError unless both have the same ones, and the
    same marks of what was removed."""
    kept: list[int] = []
    with closing(Reader(database)) as store, closing(connect(redis_socket)) as client:
        streams = StreamReader(client)
        removed = StreamWriter(client, search=False).removed()
        for row in store.channels():
            if row.kind == "memory":
                continue
            found = streams.read(row.channel_id, Sequence(0), ALL, 256 * MIB).entries
            retained = store.scan_channel(row.channel_id, Sequence(0), ALL)
            assert [entry.sequence for entry in found] == [row.sequence for row in retained]
            assert removed.get(row.channel_id, 0) == row.removed_through
            kept += [int(message.sequence) for message in retained]
    return sorted(kept)
