"""From a message to its search document, the same way for a new message and for a rebuild."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from agentbus.encoding import decode_trusted
from agentbus.envelope import Body
from agentbus.ids import SessionId
from agentbus.projection.search import SearchDocument, document_of


def document_of_message(
    body: Body, *, channel: str, sender: str, session_id: SessionId, sent_at_ms: int
) -> SearchDocument:
    """Of a message whose parts are at hand, as they are when it has just been committed."""
    return document_of(
        channel=channel,
        sender=sender,
        session_id=session_id,
        sent_at_ms=sent_at_ms,
        content=body.content,
        subject=body.subject,
        references=[reference.value for reference in body.references],
        thread=body.thread,
        reply_to=body.reply_to,
        type_=body.type,
        tags=body.tags,
    )


def document_of_envelope(envelope: bytes) -> SearchDocument:
    """Of a stored message. Reads the envelope; absent optional fields stay absent."""
    data: dict[str, Any] = decode_trusted(envelope)
    sender = data["sender"]
    return document_of(
        channel=data["channel"],
        sender=sender["agent"],
        session_id=SessionId(sender["session_id"]),
        sent_at_ms=round(datetime.fromisoformat(data["sent_at"]).timestamp() * 1000),
        content=data["content"],
        subject=data.get("subject"),
        references=[reference["value"] for reference in data.get("references", ())],
        thread=data.get("thread"),
        reply_to=data.get("reply_to"),
        type_=data.get("type"),
        tags=data.get("tags", ()),
    )
