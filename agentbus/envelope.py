"""The envelope: what a message is once the ledger has accepted it. Pure; no I/O, no clock.

An envelope is encoded exactly once, in the ledger; the same bytes go to SQLite, to Redis and to
every subscriber. Its size limit counts these bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

from agentbus.encoding import encode
from agentbus.errors import TooLargeError
from agentbus.identity import SenderBinding
from agentbus.ids import AgentId, MessageId, Sequence, SessionId
from agentbus.limits import KIB

ChannelKind = Literal["ordinary", "memory", "inbox"]
"""An inbox holds what was sent directly to one agent: not to be subscribed to or sent to."""

PeerKind = Literal["info", "request", "response", "ack"]
"""Of a direct message; it is the `type` of its envelope."""

ReferenceKind = Literal["url", "unix_path", "windows_path"]


@dataclass(frozen=True, slots=True)
class Reference:
    """A pointer kept byte for byte; the bus never fetches or resolves it."""

    kind: ReferenceKind
    value: str


@dataclass(frozen=True, slots=True)
class Recipient:
    """Whom a direct message is for: an agent, or one session of it."""

    agent: str
    agent_id: AgentId
    session_id: SessionId | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """The part of an envelope that the sender decides.

    `recipients`: of a direct message, which only these and its sender may see. `capability`: what a
    request asks of them.
    """

    content: str
    type: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    thread: str | None = None
    metadata: dict[str, Any] | None = None
    references: tuple[Reference, ...] = ()
    tags: tuple[str, ...] = ()
    depth: int = 0
    recipients: tuple[Recipient, ...] = ()
    capability: str | None = None


def rfc3339(time_us: int) -> str:
    """Microseconds since the epoch as RFC 3339 UTC with milliseconds."""
    return f"{_whole_second(time_us // 1_000_000)}.{time_us // 1000 % 1000:03d}Z"


@lru_cache(maxsize=64)  # the messages of one second share most of the work
def _whole_second(time_s: int) -> str:
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%dT%H:%M:%S}"


def encode_envelope(
    *,
    message_id: MessageId,
    revision: int,
    sequence: Sequence,
    channel: str,
    channel_kind: ChannelKind,
    sender: SenderBinding,
    sent_at_us: int,
    body: Body,
) -> bytes:
    """The one encoding of a message. Absent optional fields are left out, not null."""
    sender_data: dict[str, Any] = {
        "agent": sender.agent,
        "agent_id": sender.agent_id,
        "session_id": sender.session_id,
        "application": sender.application,
        "display_name": sender.display_name,
    }
    if sender.child is not None:
        sender_data["child"] = sender.child
    if sender.repository is not None:
        sender_data["repository"] = sender.repository
    data: dict[str, Any] = {
        "message_id": message_id,
        "revision": revision,
        "sequence": sequence,
        "channel": channel,
        "channel_kind": channel_kind,
        "sender": sender_data,
        "sent_at": rfc3339(sent_at_us),
        "content": body.content,
        "depth": body.depth,
    }
    for key in ("type", "subject", "reply_to", "thread", "metadata", "capability"):
        value = getattr(body, key)
        if value is not None:
            data[key] = value
    if body.references:
        data["references"] = [{"kind": ref.kind, "value": ref.value} for ref in body.references]
    if body.tags:
        data["tags"] = list(body.tags)
    if body.recipients:
        data["to"] = [_recipient_data(recipient) for recipient in body.recipients]
    return encode(data)


def _recipient_data(recipient: Recipient) -> dict[str, Any]:
    data = {"agent": recipient.agent, "agent_id": recipient.agent_id}
    if recipient.session_id is not None:
        data["session_id"] = recipient.session_id
    return data


def body_of(envelope: dict[str, Any]) -> Body:
    """What the sender decided, out of a decoded envelope."""
    return Body(
        content=envelope["content"],
        type=envelope.get("type"),
        subject=envelope.get("subject"),
        reply_to=envelope.get("reply_to"),
        thread=envelope.get("thread"),
        metadata=envelope.get("metadata"),
        references=tuple(Reference(**reference) for reference in envelope.get("references", ())),
        tags=tuple(envelope.get("tags", ())),
        depth=envelope["depth"],
        recipients=tuple(
            Recipient(one["agent"], AgentId(one["agent_id"]), one.get("session_id"))
            for one in envelope.get("to", ())
        ),
        capability=envelope.get("capability"),
    )


def check_size(encoded: bytes, max_message_kib: int) -> None:
    """Refuse an envelope over the configured limit, saying both numbers."""
    limit_bytes = max_message_kib * KIB
    if len(encoded) > limit_bytes:
        raise TooLargeError(
            f"the message takes {len(encoded)} bytes with its envelope, the limit is {limit_bytes} "
            "(max_message_kib); shorten it, or put the text in a file and send a reference"
        )
