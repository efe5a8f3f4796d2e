"""From a message to what the search index holds of it, the same way for every engine.

Owns which parts of a message are searched as text and which are matched exactly. Never writes to an
index. Pure; runs on the threads of the ledger and the projector.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from agentbus.encoding import decode_trusted
from agentbus.envelope import Body
from agentbus.ids import SessionId
from agentbus.limits import INBOX_PREFIX
from agentbus.rules.terms import encode_term, indexed

DOCUMENT_VERSION = f"2 {unicodedata.unidata_version}"
"""Raise the number with any change to documents or terms: an index of another version is made anew.
Python's own tables decide about letters too."""

code = lru_cache(maxsize=4096)(encode_term)  # the same few senders and channels all the time
"""The code of a value that is matched exactly."""


@dataclass(frozen=True, slots=True)
class SearchDocument:
    """The indexed form of one message, without its sequence.

    All text is terms of `[a-z0-9]`: space separated in `text` and `whole`, one per value elsewhere
    (comma separated in `tags` and `channel`, as a direct message to several is in the inbox of
    each). Empty: the message has no such field.
    """

    text: str
    whole: str
    channel: str
    sender: str
    session: str
    thread: str
    reply_to: str
    type: str
    tags: str
    sent_at_ms: int


def document_of(
    *,
    channels: Iterable[str],
    sender: str,
    session_id: SessionId,
    sent_at_ms: int,
    content: str,
    subject: str | None = None,
    references: Iterable[str] = (),
    thread: str | None = None,
    reply_to: str | None = None,
    type_: str | None = None,
    tags: Iterable[str] = (),
) -> SearchDocument:
    """Subject, content and the values of references are one text; the other fields match exactly.

    `channels` are names; `sender` is the agent's name.
    """
    text, whole = indexed("\n".join([subject or "", content, *references]))
    return SearchDocument(
        text=text,
        whole=whole,
        channel=",".join(code(channel) for channel in channels),
        sender=code(sender),
        session=code(session_id),
        thread=code(thread or ""),
        reply_to=code(reply_to or ""),
        type=code(type_ or ""),
        tags=",".join(code(tag) for tag in tags),
        sent_at_ms=sent_at_ms,
    )


def document_of_message(
    body: Body, *, channel: str, sender: str, session_id: SessionId, sent_at_ms: int
) -> SearchDocument:
    """Of a message whose parts are at hand, as they are when it has just been committed."""
    return document_of(
        channels=_channels(channel, [recipient.agent for recipient in body.recipients]),
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
        channels=_channels(data["channel"], [one["agent"] for one in data.get("to", ())]),
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


def _channels(channel: str, recipients: list[str]) -> list[str]:
    """Where a message is found: of a direct one the inbox of each recipient."""
    return list(dict.fromkeys(INBOX_PREFIX + name for name in recipients)) or [channel]
