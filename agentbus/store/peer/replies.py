"""Which response answers which request, and what that makes of the request's tracking.

Runs on the ledger's thread.
"""

from __future__ import annotations

from agentbus.ids import MessageId, SessionId
from agentbus.store.peer.changes import DeliveryChanged
from agentbus.store.peer.deliveries import DeliveryRow, change, view
from agentbus.store.work import Work


def answered_row(rows: list[DeliveryRow], session_id: SessionId) -> DeliveryRow | None:
    """Of an agent's deliveries of one request, the one that its session's response answers."""
    tracked = [row for row in rows if row.reply_state is not None]
    return min(
        tracked,
        key=lambda row: (row.holder != session_id, row.recipient_session != session_id),
        default=None,
    )


def record_reply(
    work: Work, row: DeliveryRow, response: MessageId
) -> tuple[DeliveryRow, list[DeliveryChanged]]:
    """The first response counts; one after the due time is also kept as a late one.

    What was given up stays unanswered, and what was cancelled wants no answer any more.
    """
    match row.reply_state:
        case "awaiting":
            row = change(work, row, reply_state="replied", reply_message_id=response, cause=None)
        case "overdue":
            row = change(
                work,
                row,
                reply_state="replied",
                reply_message_id=response,
                late_reply_message_id=response,
                cause=None,
            )
        case "unanswered" if row.late_reply_message_id is None:
            row = change(work, row, late_reply_message_id=response, cause=None)
        case _:
            return row, []
    return row, [DeliveryChanged(view(row))]
