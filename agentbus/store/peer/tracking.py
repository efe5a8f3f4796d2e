"""What is known about the replies to requests: which are late, and what a session was shown.

Owns the rows of presented responses and shown notices, and the marks of lateness. When a reply is
late is for the inbox to say, by its own clock. Runs on the ledger's thread.
"""

from __future__ import annotations

from peewee import SQL

from agentbus.ids import SessionId
from agentbus.rules.peer import why_no_reply
from agentbus.store.accounting import row_bytes
from agentbus.store.changes import Done, Fact
from agentbus.store.peer import deliveries
from agentbus.store.peer.changes import (
    DeliveryChanged,
    ListOpenDeliveries,
    MarkReplyLate,
    MarkShown,
)
from agentbus.store.peer.leases import STALE, finish
from agentbus.store.schema import PLACE, Delivery, NoticeShown, Presented, Session, text
from agentbus.store.work import Work

_SELECT_AGENT = text(Session.select(Session.agent).where(Session.id == PLACE))
_SELECT_SENT_BY = text(
    Delivery.select(SQL("1")).where((Delivery.id == PLACE) & (Delivery.sender_agent == PLACE))
)
_INSERT_PRESENTED = text(
    Presented.insert({Presented.session: PLACE, Presented.message_id: PLACE}).on_conflict_ignore()
)
_INSERT_NOTICE = text(
    NoticeShown.insert(
        {NoticeShown.session: PLACE, NoticeShown.delivery: PLACE, NoticeShown.reply_state: PLACE}
    ).on_conflict_ignore()
)


def mark_reply_late(work: Work, change: MarkReplyLate) -> Done:
    """First overdue, then given up; the work itself goes on, and so may a late answer come."""
    row = deliveries.load(work, change.delivery_id)
    if row is None or row.reply_state not in ("awaiting", "overdue"):
        return STALE
    if row.reply_state == change.reply_state:
        return STALE
    row = deliveries.change(
        work,
        row,
        reply_state=change.reply_state,
        cause=why_no_reply(
            row.state, row.attempt, row.progressed_at_us is not None, change.reached
        ),
    )
    return Done(True, (DeliveryChanged(deliveries.view(row)),))


def mark_shown(work: Work, change: MarkShown) -> Done:
    """Keep what the session has seen. A response that it would be given is finished by that.

    It is a client's word, so only what its agent has got, or asked for itself, is kept.
    """
    work.require_current(change.attachment)
    session_id = change.attachment.session_id
    (agent_id,) = work.execute(_SELECT_AGENT, (session_id,)).fetchone()
    facts: list[Fact] = []
    for message_id in change.responses:
        mine = [
            row
            for row in deliveries.of_message(work, message_id)
            if row.recipient_agent == agent_id and row.kind == "response"
        ]
        if mine:
            _keep(work, _INSERT_PRESENTED, session_id, message_id)
        for row in mine:
            if row.state == "queued" and row.recipient_session in (None, session_id):
                facts.append(finish(work, row))
    for delivery_id, reply_state in change.notices:
        asked = work.execute(_SELECT_SENT_BY, (delivery_id, agent_id)).fetchone() is not None
        if asked and reply_state in ("overdue", "unanswered"):
            _keep(work, _INSERT_NOTICE, session_id, delivery_id, reply_state)
    return Done(None, tuple(facts))


def list_open(work: Work, change: ListOpenDeliveries) -> Done:
    """What the agent has to do, and what others owe it an answer for."""
    return Done(tuple(map(deliveries.view, deliveries.open_of_agent(work, change.agent_id))))


def _keep(work: Work, sql: str, session_id: SessionId, *rest: str) -> None:
    row = (session_id, *rest)
    if work.execute(sql, row).rowcount == 1:
        work.counters.logical_bytes += row_bytes(row)
