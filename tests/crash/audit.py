"""What a bus holds at the end: asked of the daemon in every way there is, then read from the file.

Looks only; the judge compares.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

from agentbus.encoding import decode_trusted
from agentbus.errors import NotFoundError
from agentbus.store import accounting
from tests.bus_fixture import BusSession, ThrowAwayBus
from tests.crash import journal
from tests.crash.clients import CHANNELS
from tests.crash.history import COMMON_WORD, mark_of
from tests.crash.truth import Removed, Stored, Truth
from tests.eventually import eventually

PAGE = 200


def ask(bus: ThrowAwayBus) -> Truth:
    """Streams, history and search of a running bus; the rows come later."""
    with contextlib.closing(bus.attach("Auditor")) as auditor:
        return Truth(
            rows=[],
            streams={channel: _streamed(auditor, channel) for channel in CHANNELS},
            history={channel: _listed(auditor, channel) for channel in CHANNELS},
            found=_found(auditor),
        )


def read(database: Path, truth: Truth) -> None:
    """Add what the database of a bus that has ended says, and what is wrong inside it."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        names = dict(connection.execute("SELECT id, name FROM channels"))
        inboxes = {
            name for (name,) in connection.execute("SELECT name FROM channels WHERE kind = 'inbox'")
        }
        for row in connection.execute(
            "SELECT sequence, message_id, channel, revision, position, memory, tombstoned_at_us, "
            "envelope FROM messages ORDER BY sequence"
        ):
            rows = truth.direct if names[row[2]] in inboxes else truth.rows
            rows.append(
                Stored(
                    sequence=row[0],
                    message_id=row[1],
                    channel=names[row[2]],
                    mark=mark_of(decode_trusted(row[7])["content"]),
                    revision=row[3],
                    position=row[4],
                    memory=bool(row[5]),
                    live=row[6] is None,
                )
            )
        truth.removed += [
            Removed(names[channel], first, last, cause)
            for channel, first, last, cause in connection.execute(
                "SELECT channel, from_sequence, to_sequence, cause FROM removed_ranges"
            )
        ]
        truth.journal += journal.read(connection)
        truth.sessions |= dict(connection.execute("SELECT id, conversation FROM sessions"))
        truth.agents |= dict(connection.execute("SELECT id, name FROM agents"))
        truth.complaints += _complaints(connection, truth.rows + truth.direct)


def _complaints(connection: sqlite3.Connection, rows: list[Stored]) -> list[str]:
    complaints = [
        f"integrity: {line}"
        for (line,) in connection.execute("PRAGMA integrity_check")
        if line != "ok"
    ]
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    counted_bytes = accounting.recount(connection)
    if counted_bytes != meta["logical_bytes"]:
        complaints.append(f"{meta['logical_bytes']} bytes on record, {counted_bytes} in the rows")
    newest = max((row.sequence for row in rows), default=0)
    if meta["last_sequence"] < newest:
        complaints.append(f"the newest row is {newest}, the counter {meta['last_sequence']}")
    for name, retained in connection.execute("SELECT name, retained FROM channels"):
        counted = sum(row.live and row.channel == name for row in rows)
        if counted != retained:
            complaints.append(f"{name}: {retained} retained on record, {counted} in the rows")
    return complaints


def _streamed(auditor: BusSession, channel: str) -> list[str]:
    """All that a new subscriber is given from Redis, which is where delivery reads."""
    with contextlib.suppress(NotFoundError):
        auditor.call("unsubscribe", channel=channel)  # everybody has the default one already
    opened = auditor.call("subscribe", channel=channel, **{"from": "oldest"})
    subscription, after = opened["subscription_id"], opened["from_sequence"] - 1
    ids: list[str] = []

    def pulled() -> Any:
        return auditor.pull({subscription: after}, count=PAGE, include_own=True)

    while deliveries := pulled():
        (delivery,) = deliveries
        ids += [record["message_id"] for _, record in delivery["records"]]
        after = delivery["through"]
    return ids


def _listed(auditor: BusSession, channel: str) -> list[str]:
    ids: list[str] = []
    after = 0
    while True:
        page = auditor.call("history", channel=channel, after=after, count=PAGE, max_kib=4096)
        ids += [message["message_id"] for message in page["messages"]]
        if not page["more"]:
            return ids
        after = page["messages"][-1]["sequence"]


def _found(auditor: BusSession) -> list[str]:
    """By the word that all have; a search index may lag behind for a moment."""
    ids: list[str] = []

    def is_complete() -> bool:
        ids[:] = _pages(auditor)
        shown = sum(len(_listed(auditor, channel)) for channel in CHANNELS)
        return len(ids) == shown

    with contextlib.suppress(AssertionError):
        eventually(is_complete)
    return ids


def _pages(auditor: BusSession) -> list[str]:
    ids: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = auditor.call("search", text=COMMON_WORD, count=PAGE, max_kib=4096, **cursor)
        ids += [message["message_id"] for message in page["messages"]]
        if not page.get("cursor"):
            return ids
        cursor = {"cursor": page["cursor"]}
