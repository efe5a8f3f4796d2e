"""What agents are shown of deliveries and of direct messages.

Owns the shapes of `delivery`, its `envelope` and a notice. Reads nothing and decides nothing; any
thread.
"""

from __future__ import annotations

from typing import Any

from agentbus.encoding import decode_trusted
from agentbus.envelope import rfc3339
from agentbus.store.peer.deliveries import DeliveryRow
from agentbus.store.peer.interventions import InterventionRow, resume_context

HUMAN_DECISION = "caura_human_decision"
"""The part of an envelope that only the bus adds; its name is that of the other buses."""


def envelope_data(envelope: bytes, sent_at_us: int) -> dict[str, Any]:
    """A stored direct message as `wait`, `recent` and `status` show it; `ts` in milliseconds."""
    stored: dict[str, Any] = decode_trusted(envelope)
    kind, reply_to = stored["type"], stored.get("reply_to")
    data = {
        "id": stored["message_id"],
        "from": {
            key: stored["sender"][key]
            for key in ("agent", "agent_id", "session_id", "display_name")
        },
        "to": stored["to"],
        "kind": kind,
        "thread_id": stored["thread"],
        "ts": sent_at_us // 1000,
        "body": stored["content"],
        "parts": [],
        # A request begins what its answers belong to, whatever it was itself said in answer to.
        "correlation_id": stored["message_id"] if kind == "request" or not reply_to else reply_to,
        "depth": stored["depth"],
    }
    if reply_to is not None:
        data["reply_to"] = reply_to
    if "capability" in stored:
        data["capability"] = stored["capability"]
    return data


def delivery_data(
    row: DeliveryRow, envelope: dict[str, Any], intervention: InterventionRow | None
) -> dict[str, Any]:
    """A claimed delivery. Instructions that have not been followed yet come with it."""
    data: dict[str, Any] = {
        "delivery_id": row.id,
        "lease_expires_at": _time(row.lease_expires_us),
        "attempt": row.attempt,
        "state": row.state,
        "processing_deadline": _time(row.deadline_us),
        "extension_count": row.extensions,
    }
    if intervention is not None:
        data["intervention"] = {
            "intervention_id": intervention.id,
            "source": intervention.source,
            "reason": intervention.reason,
            "action": intervention.action,
        }
        if intervention.untold:
            context = resume_context(intervention)
            data["resume_context"] = context
            envelope["parts"] = [{"type": HUMAN_DECISION, **context}]
    data["envelope"] = envelope
    return data


def notice_data(row: DeliveryRow, recipient: str) -> dict[str, Any]:
    """That the reply to a request of one's own is late, or will not come."""
    return {
        "delivery_id": row.id,
        "message_id": row.message_id,
        "thread_id": row.thread,
        "recipient": {"agent": recipient, "agent_id": row.recipient_agent}
        | ({"session_id": row.recipient_session} if row.recipient_session is not None else {}),
        "reply_state": row.reply_state,
        "reply_due_at": _time(row.reply_due_us),
        "cause": row.cause,
    }


def _time(time_us: int | None) -> str | None:
    return rfc3339(time_us) if time_us is not None else None
