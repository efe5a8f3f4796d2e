"""From an envelope to its search document, the same way for a new message and for a rebuild."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from agentbus.encoding import decode_trusted
from agentbus.ids import SessionId
from agentbus.projection.search import SearchDocument, document_of


def document_of_envelope(envelope: bytes) -> SearchDocument:
    """Reads the envelope that the ledger encoded; absent optional fields stay absent."""
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
