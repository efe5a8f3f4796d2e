"""Questions about direct messages take as long on a full bus as on an empty one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentbus.store.peer import deliveries, directory, reading, retention
from tests.store.bus import Bus

_OPEN, _UNANSWERED = "delivery_open (recipient_agent=? AND state=?)", "delivery_unanswered"
_REPLIES = "deliveries_reply_to (reply_to=?)"


@pytest.mark.parametrize(
    ("sql", "index"),
    [
        (deliveries._SELECT_CLAIMED, _OPEN),
        (deliveries._SELECT_NEXT, _OPEN),
        (deliveries._SELECT_NEXT_OF_SESSION, _OPEN),
        (deliveries._SELECT_OPEN_OF_AGENT, _OPEN),
        (deliveries._SELECT_OPEN_OF_AGENT, _UNANSWERED),
        (deliveries._SELECT_HELD, "delivery_held"),
        (deliveries._SELECT_UNTOLD, _UNANSWERED),
        (directory._OPEN_OF_AGENT, _OPEN),
        (directory._IN_WORK, _OPEN),
        (directory._NEXT_AGENTS, "agents_name (name>?)"),
        (directory._NEXT_OF_THESE, "sqlite_autoindex_agents_1 (id=?)"),
        (directory._IN_INBOXES, _UNANSWERED),
        (reading._HELD_DEADLINE, "delivery_held"),
        (reading._REQUESTS, _UNANSWERED),
        (reading._ALL_REQUESTS, "deliveries_sender_agent_sequence (sender_agent=?)"),
        (reading._RESPONSES, _REPLIES),
        (reading._RECENT_REPLIES[0], _REPLIES),
        (reading._RECENT_REPLIES[1], _REPLIES),
        (retention._SELECT_GONE, "deliveries_sequence (sequence<?)"),
        *(
            (sql, f"({column}=?)")
            for removals, column in (
                (retention._OF_MESSAGES, "message_id"),
                (retention._OF_DELIVERIES, "delivery"),
            )
            for removal in removals
            for sql in (removal._size, removal._delete)
        ),
    ],
)
def test_a_question_about_open_work_does_not_walk_over_what_is_finished(
    tmp_path: Path, sql: str, index: str
) -> None:
    Bus(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "bus.sqlite3")) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {sql}", [None] * sql.count("?")).fetchall()
    assert any(index in step for *_, step in plan), plan
