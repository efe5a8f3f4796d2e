"""The kinds of records of an export: which there are, their fields in order, what a field may be.

Owns what a field may be by itself; how records fit each other is import_check.py's and, of direct
messages, peer/import_check.py's. Touches neither a file nor a database; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from agentbus.envelope import PeerKind
from agentbus.errors import ValidationError
from agentbus.limits import PEER_CAPABILITIES, PEER_ID_CHARACTERS
from agentbus.protocol.fields import (
    ChannelName,
    Check,
    Choice,
    Flag,
    Integer,
    Name,
    Text,
    Texts,
    describe,
)
from agentbus.protocol.people import Decision
from agentbus.rules.receipts import FINGERPRINT_BYTES
from agentbus.store.peer.changes import (
    DeliveryState,
    InterventionSource,
    ReplyCause,
    ReplyState,
    StopStatus,
)
from agentbus.store.schema import (
    Agent,
    Channel,
    Consultation,
    Delivery,
    Intervention,
    Message,
    NoticeShown,
    Presented,
    Receipt,
    RemovedMessages,
    Session,
    Subscription,
    Table,
)

ID: Final = Text(min_bytes=1, max_bytes=1024)
ANY_TEXT: Final = Text()
_COUNT_MAX: Final = 2**53 - 1
"""Of sequences, generations and ids: the bus counts on from them, and every reader of JSON has them
exactly."""

NUMBER: Final = Integer(0, _COUNT_MAX)
COUNTED: Final = Integer(1, _COUNT_MAX)
TIME: Final = Integer(0, 253_402_300_799_999_999)  # the last microsecond that RFC 3339 can name


class _Object:
    """A JSON object; what is in it is checked elsewhere, or was made by this program."""

    def __call__(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValidationError(f"must be an object, not {describe(value)}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "object"}


class _List:
    """A list that is not empty; what is in it is checked elsewhere."""

    def __call__(self, value: Any) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise ValidationError(f"must be a list of one or more, not {describe(value)}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "array"}


class _Fingerprint:
    """Bytes as hexadecimal digits."""

    def __call__(self, value: Any) -> bytes:
        try:
            found = bytes.fromhex(value)
        except (TypeError, ValueError):
            found = b""
        if len(found) != FINGERPRINT_BYTES:
            raise ValidationError(f"must be {2 * FINGERPRINT_BYTES} hexadecimal digits")
        return found

    def schema(self) -> dict[str, Any]:
        return {"type": "string"}


JSON_OBJECT: Final = _Object()
JSON_LIST: Final = _List()
CHANNEL_KIND: Final = Choice(("ordinary", "memory", "inbox"))
PEER_KIND: Final = Choice(get_args(PeerKind))
_REPLY_STATE: Final = Choice(get_args(ReplyState))
_CAPABILITIES: Final = Texts(0, PEER_CAPABILITIES, PEER_ID_CHARACTERS)


@dataclass(frozen=True, slots=True)
class Kind:
    """A record. `plural` names its count in the trailer; a field of `nullable` may be null.

    `later`: fields that exports of an older schema lack, and what they stand for then.
    """

    name: str
    plural: str
    table: Table
    fields: Mapping[str, Check]
    nullable: frozenset[str] = frozenset()
    order: str = "id"
    later: Mapping[str, Any] = field(default_factory=dict)


KINDS: Final = (
    Kind(
        "agent",
        "agents",
        Agent,
        {
            "id": ID,
            "name": Name(),
            "created_at_us": TIME,
            "description": ANY_TEXT,
            "capabilities": _CAPABILITIES,
        },
        frozenset(("description",)),
        later={"description": None, "capabilities": []},
    ),
    Kind(
        "session",
        "sessions",
        Session,
        {
            "id": ID,
            "agent": ID,
            "application": ANY_TEXT,
            "conversation": ANY_TEXT,
            "child": ANY_TEXT,
            "parent": ID,
            "role": ANY_TEXT,
            "display_name": ANY_TEXT,
            "repository": ANY_TEXT,
            "generation": NUMBER,
            "created_at_us": TIME,
            "last_seen_us": TIME,
            "used_sequence": NUMBER,
            "seen_sequence": NUMBER,
        },
        frozenset(("parent", "role", "repository")),
        later={"used_sequence": 0, "seen_sequence": 0},
    ),
    Kind(
        "channel",
        "channels",
        Channel,
        {
            "id": COUNTED,
            "name": ChannelName(),
            "kind": CHANNEL_KIND,
            "created_at_us": TIME,
            "created_sequence": NUMBER,
            "newest": NUMBER,
            "removed_through": NUMBER,
        },
    ),
    Kind(
        "removed",
        "removed",
        RemovedMessages,
        {
            "channel": COUNTED,
            "from_sequence": COUNTED,
            "to_sequence": COUNTED,
            "cause": Choice(("age", "capacity")),
        },
        order="channel, from_sequence",
    ),
    Kind(
        "subscription",
        "subscriptions",
        Subscription,
        {
            "id": COUNTED,
            "session": ID,
            "channel": COUNTED,
            "handed_off": NUMBER,
            "confirmed": NUMBER,
            "last_used_us": TIME,
            "expired_at_us": TIME,
        },
        frozenset(("expired_at_us",)),
    ),
    Kind(
        "message",
        "messages",
        Message,
        {
            "position": COUNTED,
            "session": ID,
            "sent_at_us": TIME,
            "tombstoned_at_us": TIME,
            "ended_sequence": COUNTED,
            "envelope": JSON_OBJECT,
        },
        frozenset(("tombstoned_at_us", "ended_sequence")),
        order="sequence",
    ),
    Kind(
        "receipt",
        "receipts",
        Receipt,
        {
            "session": ID,
            "operation_id": ID,
            "fingerprint": _Fingerprint(),
            "result": JSON_OBJECT,
            "accepted_at_us": TIME,
            "expires_at_us": TIME,
        },
        order="session, operation_id",
    ),
    Kind(
        "delivery",
        "deliveries",
        Delivery,
        {
            "id": ID,
            "message_id": ID,
            "sequence": COUNTED,
            "kind": PEER_KIND,
            "thread": ANY_TEXT,
            "reply_to": ID,
            "depth": NUMBER,
            "parent": ID,
            "sender_agent": ID,
            "sender_session": ID,
            "recipient_agent": ID,
            "recipient_session": ID,
            "reassigned_from": ID,
            "created_at_us": TIME,
            "changed_at_us": TIME,
            "state": Choice(get_args(DeliveryState)),
            "holder": ID,
            "holder_generation": NUMBER,
            "token": ID,
            "attempt": NUMBER,
            "lease_expires_us": TIME,
            "deadline_us": TIME,
            "extensions": NUMBER,
            "progressed_at_us": TIME,
            "intervention": ID,
            "reply_state": _REPLY_STATE,
            "reply_due_us": TIME,
            "unanswered_us": TIME,
            "reply_message_id": ID,
            "late_reply_message_id": ID,
            "cause": Choice(get_args(ReplyCause)),
            "cancelled_reason": ANY_TEXT,
        },
        frozenset(
            (
                "reply_to",
                "parent",
                "recipient_session",
                "reassigned_from",
                "holder",
                "holder_generation",
                "token",
                "lease_expires_us",
                "deadline_us",
                "progressed_at_us",
                "intervention",
                "reply_state",
                "reply_due_us",
                "unanswered_us",
                "reply_message_id",
                "late_reply_message_id",
                "cause",
                "cancelled_reason",
            )
        ),
        order="rowid",  # what a reassigned one comes from is before it
    ),
    Kind(
        "intervention",
        "interventions",
        Intervention,
        {
            "id": ID,
            "delivery": ID,
            "source": Choice(get_args(InterventionSource)),
            "reason": ANY_TEXT,
            "detail": JSON_OBJECT,
            "version": COUNTED,
            "stop_status": Choice(get_args(StopStatus)),
            "created_at_us": TIME,
            "action": Choice(get_args(Decision)),
            "instructions": ANY_TEXT,
            "decided_by": ANY_TEXT,
            "decided_at_us": TIME,
            "told": Flag(),
        },
        frozenset(("action", "instructions", "decided_by", "decided_at_us")),
    ),
    Kind(
        "presented",
        "presented",
        Presented,
        {"session": ID, "message_id": ID},
        order="session, message_id",
    ),
    Kind(
        "notice_shown",
        "notices_shown",
        NoticeShown,
        {"session": ID, "delivery": ID, "reply_state": _REPLY_STATE},
        order="session, delivery, reply_state",
    ),
    Kind(
        "consultation",
        "consultations",
        Consultation,
        {"session": ID, "delivery": ANY_TEXT, "requests": COUNTED, "started_at_us": TIME},
        order="session, delivery",
    ),
)
"""In the order of the file: what a record refers to stands before it (a session's parent apart)."""
