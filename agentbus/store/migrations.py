"""From an older schema to this one: numbered steps, each in one transaction with its new version.

Owns how a database of an older version becomes one of the current version. A step is written once
and never changed: it names tables as they were then, so it uses its own SQL and nothing of
schema.py. Before the first step the old file is copied beside the new one, because a step cannot be
taken back by the older program. Interrupted anywhere, the database is of the version before the
step or after it, and the next start goes on. Runs on the thread of whoever opens the database.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

from agentbus.failpoints import reach
from agentbus.store.connection import FILE_MODE, DatabaseUnusable
from agentbus.store.schema import SCHEMA_VERSION

_log = logging.getLogger(__name__)

Step = Callable[[sqlite3.Connection], None]


def _to_2(connection: sqlite3.Connection) -> None:
    """Memories have revisions: where one stands, and which commit has ended it.

    The table is made anew, since `ALTER TABLE` would put the columns behind the envelope, on
    another page than the rest of a long row.
    """
    for statement in (
        'CREATE TABLE "messages_2" ("sequence" INTEGER NOT NULL PRIMARY KEY, '
        '"message_id" TEXT NOT NULL, "revision" INTEGER NOT NULL, "channel" INTEGER NOT NULL, '
        '"position" INTEGER NOT NULL, "session" TEXT NOT NULL, "sent_at_us" INTEGER NOT NULL, '
        '"thread" TEXT, "reply_to" TEXT, "memory" INTEGER NOT NULL, "tombstoned_at_us" INTEGER, '
        '"ended_sequence" INTEGER, "envelope" BLOB NOT NULL)',
        "INSERT INTO messages_2 SELECT sequence, message_id, revision, channel, sequence, session, "
        "sent_at_us, thread, reply_to, memory, tombstoned_at_us, NULL, envelope "
        "FROM messages ORDER BY sequence",
        "DROP TABLE messages",
        "ALTER TABLE messages_2 RENAME TO messages",
        'CREATE INDEX "messages_channel" ON "messages" ("channel")',
        'CREATE UNIQUE INDEX "messages_message_id_revision" '
        'ON "messages" ("message_id", "revision")',
        'CREATE INDEX "message_live_memory" ON "messages" ("channel", "position") '
        'WHERE "memory" = 1 AND "tombstoned_at_us" IS NULL',
        'CREATE INDEX "message_tombstone" ON "messages" ("tombstoned_at_us") '
        'WHERE "tombstoned_at_us" IS NOT NULL',
        "INSERT INTO meta (key, value) VALUES ('purged_through', 0)",
        # Two numbers more in each row, of 8 bytes in the accounting.
        "UPDATE meta SET value = value + 16 * (SELECT COUNT(*) FROM messages) "
        "WHERE key = 'logical_bytes'",
    ):
        connection.execute(statement)


def _to_3(connection: sqlite3.Connection) -> None:
    """What a session has seen of memories is a sequence, as the clock may have been set back.

    Where the old sessions stood is not known: each is told once of all that it may have missed.
    """
    for statement in (
        'CREATE TABLE "sessions_3" ("id" TEXT NOT NULL PRIMARY KEY, "agent" TEXT NOT NULL, '
        '"application" TEXT NOT NULL, "conversation" TEXT NOT NULL, "child" TEXT NOT NULL, '
        '"parent" TEXT, "role" TEXT, "display_name" TEXT NOT NULL, "repository" TEXT, '
        '"generation" INTEGER NOT NULL, "created_at_us" INTEGER NOT NULL, '
        '"last_seen_us" INTEGER NOT NULL, "used_sequence" INTEGER NOT NULL, '
        '"seen_sequence" INTEGER NOT NULL)',
        "INSERT INTO sessions_3 SELECT id, agent, application, conversation, child, parent, role, "
        "display_name, repository, generation, created_at_us, last_seen_us, 0, 0 "
        "FROM sessions ORDER BY rowid",
        "DROP TABLE sessions",
        "ALTER TABLE sessions_3 RENAME TO sessions",
        'CREATE UNIQUE INDEX "sessions_agent_application_conversation_child" '
        'ON "sessions" ("agent", "application", "conversation", "child")',
        # Two numbers more in each row, of 8 bytes in the accounting.
        "UPDATE meta SET value = value + 16 * (SELECT COUNT(*) FROM sessions) "
        "WHERE key = 'logical_bytes'",
    ):
        connection.execute(statement)


def _to_4(connection: sqlite3.Connection) -> None:
    """Direct messages: deliveries and what belongs to them; agents say what they know."""
    for statement in (
        'CREATE TABLE "agents_4" ("id" TEXT NOT NULL PRIMARY KEY, "name" TEXT NOT NULL, '
        '"created_at_us" INTEGER NOT NULL, "description" TEXT, "capabilities" TEXT NOT NULL)',
        "INSERT INTO agents_4 SELECT id, name, created_at_us, NULL, '[]' FROM agents "
        "ORDER BY rowid",
        "DROP TABLE agents",
        "ALTER TABLE agents_4 RENAME TO agents",
        'CREATE UNIQUE INDEX "agents_name" ON "agents" ("name")',
        'CREATE TABLE "deliveries" ("id" TEXT NOT NULL PRIMARY KEY, "message_id" TEXT NOT NULL, '
        '"sequence" INTEGER NOT NULL, "kind" TEXT NOT NULL, "thread" TEXT NOT NULL, '
        '"reply_to" TEXT, "depth" INTEGER NOT NULL, "parent" TEXT, "sender_agent" TEXT NOT NULL, '
        '"sender_session" TEXT NOT NULL, "recipient_agent" TEXT NOT NULL, '
        '"recipient_session" TEXT, "reassigned_from" TEXT, "created_at_us" INTEGER NOT NULL, '
        '"changed_at_us" INTEGER NOT NULL, "state" TEXT NOT NULL, "holder" TEXT, '
        '"holder_generation" INTEGER, "token" TEXT, "attempt" INTEGER NOT NULL, '
        '"lease_expires_us" INTEGER, "deadline_us" INTEGER, "extensions" INTEGER NOT NULL, '
        '"progressed_at_us" INTEGER, "intervention" TEXT, "reply_state" TEXT, '
        '"reply_due_us" INTEGER, "unanswered_us" INTEGER, "reply_message_id" TEXT, '
        '"late_reply_message_id" TEXT, "cause" TEXT, "cancelled_reason" TEXT)',
        'CREATE INDEX "deliveries_message_id" ON "deliveries" ("message_id")',
        'CREATE INDEX "delivery_open" ON "deliveries" ("recipient_agent", "state", "sequence") '
        "WHERE \"state\" IN ('queued', 'leased', 'paused')",
        'CREATE INDEX "delivery_held" ON "deliveries" ("holder") '
        "WHERE \"holder\" IS NOT NULL AND \"state\" IN ('queued', 'leased', 'paused')",
        'CREATE INDEX "delivery_unanswered" '
        'ON "deliveries" ("sender_agent", "reply_state", "sequence") '
        "WHERE \"reply_state\" IN ('awaiting', 'overdue', 'unanswered')",
        'CREATE INDEX "deliveries_sequence" ON "deliveries" ("sequence")',
        'CREATE INDEX "deliveries_recipient_agent_sequence" '
        'ON "deliveries" ("recipient_agent", "sequence")',
        'CREATE INDEX "deliveries_sender_agent_sequence" '
        'ON "deliveries" ("sender_agent", "sequence")',
        'CREATE INDEX "deliveries_reply_to" ON "deliveries" ("reply_to")',
        'CREATE TABLE "interventions" ("id" TEXT NOT NULL PRIMARY KEY, "delivery" TEXT NOT NULL, '
        '"source" TEXT NOT NULL, "reason" TEXT NOT NULL, "detail" TEXT NOT NULL, '
        '"version" INTEGER NOT NULL, "stop_status" TEXT NOT NULL, '
        '"created_at_us" INTEGER NOT NULL, "action" TEXT, "instructions" TEXT, '
        '"decided_by" TEXT, "decided_at_us" INTEGER, "told" INTEGER NOT NULL)',
        'CREATE INDEX "interventions_delivery" ON "interventions" ("delivery")',
        'CREATE TABLE "presented" ("session" TEXT NOT NULL, "message_id" TEXT NOT NULL, '
        'PRIMARY KEY ("message_id", "session")) WITHOUT ROWID',
        'CREATE TABLE "notices_shown" ("session" TEXT NOT NULL, "delivery" TEXT NOT NULL, '
        '"reply_state" TEXT NOT NULL, PRIMARY KEY ("delivery", "session", "reply_state")) '
        "WITHOUT ROWID",
        'CREATE TABLE "consultations" ("session" TEXT NOT NULL, "delivery" TEXT NOT NULL, '
        '"requests" INTEGER NOT NULL, "started_at_us" INTEGER NOT NULL, '
        'PRIMARY KEY ("delivery", "session")) WITHOUT ROWID',
        # A NULL and two characters more in each row of an agent.
        "UPDATE meta SET value = value + 10 * (SELECT COUNT(*) FROM agents) "
        "WHERE key = 'logical_bytes'",
    ):
        connection.execute(statement)


STEPS: Final[dict[int, Step]] = {2: _to_2, 3: _to_3, 4: _to_4}
"""By the version that a step leads to; each begins at the one below."""

OLDEST_VERSION: Final = min(STEPS) - 1


def check_version(path: Path, version: object) -> int:
    """The version, if it is the current one or can become it. Raises DatabaseUnusable."""
    if isinstance(version, int) and OLDEST_VERSION <= version <= SCHEMA_VERSION:
        return version
    told = f"{path}: has schema version {version}, this program knows {SCHEMA_VERSION}"
    if isinstance(version, int) and version > SCHEMA_VERSION:
        advice = "a newer agentbus has used it: install that one again"
    else:
        advice = "it cannot be brought up to date: run the agentbus that last used it"
    raise DatabaseUnusable(f"{told}; {advice}, or set data_directory to another folder")


def migrate(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Bring a database of an older version up to date.

    Raises sqlite3.Error or OSError; then the database is of one version, whole.
    """
    copy = _copy(connection, path, version)
    _log.warning("%s: schema %d becomes %d; the old one is %s", path, version, SCHEMA_VERSION, copy)
    for target in range(version + 1, SCHEMA_VERSION + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            STEPS[target](connection)
            connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (target,))
            reach("during_migration")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        reach("after_migration")


def _copy(connection: sqlite3.Connection, path: Path, version: int) -> Path:
    """A whole copy of the database under another name, there at once or not at all."""
    copy = path.with_name(f"{path.name}.before-v{SCHEMA_VERSION}")
    draft = copy.with_name(f"{copy.name}.new")
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    connection.execute("VACUUM INTO ?", (str(draft),))  # into an empty file, which keeps its mode
    draft.replace(copy)
    reach("before_migration")
    return copy
