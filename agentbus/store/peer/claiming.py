"""The ledger's answer to a claim: a delivery with a fresh token, or what keeps it back.

Owns which delivery a session gets. At most one is in its hands, and of those addressed to its agent
as a whole one is in the hands of all its sessions. Runs on the ledger's thread.
"""

from __future__ import annotations

from typing import Any

from peewee import SQL

from agentbus.ids import AgentId, SessionId
from agentbus.store.changes import Done, Fact
from agentbus.store.peer import deliveries
from agentbus.store.peer.changes import ClaimDelivery, Claimed, DeliveryChanged
from agentbus.store.peer.deliveries import DeliveryRow
from agentbus.store.peer.interventions import holder_learned, load_intervention
from agentbus.store.peer.leases import finish
from agentbus.store.peer.posting import SECOND_US
from agentbus.store.peer.presenting import delivery_data, envelope_data, notice_data
from agentbus.store.peer.recipients import agent_name
from agentbus.store.schema import PLACE, Delivery, Message, Presented, text
from agentbus.store.work import Work

_SELECT_MESSAGE = text(
    Message.select(Message.envelope, Message.sent_at_us).where(Message.sequence == PLACE)
)
_SELECT_PRESENTED = text(
    Presented.select(SQL("1")).where((Presented.session == PLACE) & (Presented.message_id == PLACE))
)
_SELECT_REQUEST_OF = text(
    Delivery.select(SQL("1"))
    .where(
        (Delivery.message_id == PLACE)
        & (Delivery.sender_agent == PLACE)
        & (Delivery.kind == SQL("'request'"))
    )
    .limit(SQL("1"))
)


def claim_delivery(work: Work, change: ClaimDelivery) -> Done:
    """Lease what the session works on already, or else the next that it may have."""
    work.require_current(change.attachment)
    session_id, agent_id = change.attachment.session_id, change.agent_id
    notices = tuple(
        notice_data(row, agent_name(work, row.recipient_agent))
        for row in deliveries.untold(work, agent_id, session_id)
    )
    facts: list[Fact] = []
    row, blocked = _choose(work, agent_id, session_id, facts)
    if row is None or change.only not in (None, row.id):
        return Done(Claimed(None, None, notices, blocked), tuple(facts))
    row = _lease(work, change, row)
    facts.append(DeliveryChanged(deliveries.view(row)))
    return Done(Claimed(_shown(work, row, session_id), change.token, notices), tuple(facts))


def _choose(
    work: Work, agent_id: AgentId, session_id: SessionId, facts: list[Fact]
) -> tuple[DeliveryRow | None, str | None]:
    held = deliveries.held_by(work, session_id)
    if held is not None and held.state == "leased":
        return held, None
    if held is not None and held.state == "paused":
        holder_learned(work, held, "adapter_stop_confirmed")
        return None, f"delivery {held.id} of this session is paused until a person decides"
    other = deliveries.claimed_of_agent(work, agent_id)
    if held is not None and (other is None or held.recipient_session is not None):
        return held, None  # lapsed in its hands: an answer to it may be under way
    while True:
        row = deliveries.next_queued(work, agent_id, session_id, of_session_only=other is not None)
        if row is None:
            break
        if row.kind != "response" or not _was_presented(work, session_id, row):
            return row, None
        facts.append(finish(work, row))
    if other is None or deliveries.next_queued(work, agent_id, session_id) is None:
        return None, None
    why = "is paused until a person decides" if other.state == "paused" else "is being worked on"
    return None, f"delivery {other.id} of this agent {why}, which keeps later ones back"


def _was_presented(work: Work, session_id: SessionId, row: DeliveryRow) -> bool:
    return work.execute(_SELECT_PRESENTED, (session_id, row.message_id)).fetchone() is not None


def _lease(work: Work, change: ClaimDelivery, row: DeliveryRow) -> DeliveryRow:
    """A fresh token in any case. Only somebody else, or a decision, begins a working period."""
    session_id, generation = change.attachment.session_id, change.attachment.generation
    columns: dict[str, Any] = {}
    goes_on = row.state == "leased" or (
        row.attempt > 0 and (row.holder, row.holder_generation) == (session_id, generation)
    )
    if not goes_on:
        columns["attempt"] = row.attempt + 1
    if not goes_on or row.deadline_us is None:
        columns["deadline_us"] = work.now_us + SECOND_US * work.config.peer_window_seconds
        columns["extensions"] = 0
        columns["progressed_at_us"] = None
    return deliveries.change(
        work,
        row,
        state="leased",
        holder=session_id,
        holder_generation=generation,
        token=change.token,
        lease_expires_us=work.now_us + SECOND_US * work.config.peer_lease_seconds,
        **columns,
    )


def _shown(work: Work, row: DeliveryRow, session_id: SessionId) -> dict[str, Any]:
    """What is given again from the session's own hands keeps its text, as it is not finished; a
    response that the session was shown before, by whatever operation, says so."""
    envelope, sent_at_us = work.execute(_SELECT_MESSAGE, (row.sequence,)).fetchone()
    intervention = (
        load_intervention(work, row.intervention) if row.intervention is not None else None
    )
    data = delivery_data(row, envelope_data(envelope, sent_at_us), intervention)
    if row.kind == "response":
        asked = work.execute(_SELECT_REQUEST_OF, (row.reply_to, row.recipient_agent)).fetchone()
        data["correlation"] = {
            "reply_to": row.reply_to,
            "correlation_id": row.reply_to,
            "matches_sent_request": asked is not None,
        }
        if _was_presented(work, session_id, row):
            data["already_presented"] = True
    return data
