"""The lines of an export: JSON, one record each, in an order that an import can check as it reads.

Owns the format (docs/export.md): which records there are, their fields in order, and what a field
may be. Touches neither a file nor a database; any thread.

A header, then per kind all records of it, then a trailer that counts them and has a checksum over
every byte before it, so that a file which was cut or changed is not taken for a whole one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from agentbus.encoding import decode_strict
from agentbus.envelope import rfc3339
from agentbus.errors import ValidationError
from agentbus.limits import JSON_DEPTH, MIB
from agentbus.protocol.fields import Check, Choice, Integer, Name, Text, describe
from agentbus.protocol.operations import Send
from agentbus.rules.receipts import FINGERPRINT_BYTES
from agentbus.store.schema import (
    Agent,
    Channel,
    Message,
    Receipt,
    RemovedMessages,
    Session,
    Subscription,
    Table,
)

FORMAT_VERSION: Final = 1
HEADER: Final = "agentbus_export"
TRAILER: Final = "end"
BEGINNING: Final = b'{"%s":' % HEADER.encode()
"""The first bytes of an export: they tell it from another file, which must not be overwritten."""

LINE_BYTES: Final = 16 * MIB
"""Far above the largest envelope; a file without line ends is not read whole."""

_LINE_DEPTH: Final = JSON_DEPTH + 3
"""What a sender may nest stands within its envelope, within a record, within a line."""

_ID: Final = Text(min_bytes=1, max_bytes=1024)
_TEXT: Final = Text()
_COUNT_MAX: Final = 2**53 - 1
"""Of sequences, generations and ids: the bus counts on from them, and every reader of JSON has them
exactly."""

_NUMBER: Final = Integer(0, _COUNT_MAX)
_COUNTED: Final = Integer(1, _COUNT_MAX)
_TIME: Final = Integer(0, 253_402_300_799_999_999)  # the last microsecond that RFC 3339 can name


class _Object:
    """A JSON object; what is in it is checked elsewhere, or was made by this program."""

    def __call__(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValidationError(f"must be an object, not {describe(value)}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "object"}


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
    Kind("agent", "agents", Agent, {"id": _ID, "name": Name(), "created_at_us": _TIME}),
    Kind(
        "session",
        "sessions",
        Session,
        {
            "id": _ID,
            "agent": _ID,
            "application": _TEXT,
            "conversation": _TEXT,
            "child": _TEXT,
            "parent": _ID,
            "role": _TEXT,
            "display_name": _TEXT,
            "repository": _TEXT,
            "generation": _NUMBER,
            "created_at_us": _TIME,
            "last_seen_us": _TIME,
            "used_sequence": _NUMBER,
            "seen_sequence": _NUMBER,
        },
        frozenset(("parent", "role", "repository")),
        later={"used_sequence": 0, "seen_sequence": 0},
    ),
    Kind(
        "channel",
        "channels",
        Channel,
        {
            "id": _COUNTED,
            "name": Name(),
            "kind": Choice(("ordinary", "memory")),
            "created_at_us": _TIME,
            "created_sequence": _NUMBER,
            "newest": _NUMBER,
            "removed_through": _NUMBER,
        },
    ),
    Kind(
        "removed",
        "removed",
        RemovedMessages,
        {
            "channel": _COUNTED,
            "from_sequence": _COUNTED,
            "to_sequence": _COUNTED,
            "cause": Choice(("age", "capacity")),
        },
        order="channel, from_sequence",
    ),
    Kind(
        "subscription",
        "subscriptions",
        Subscription,
        {
            "id": _COUNTED,
            "session": _ID,
            "channel": _COUNTED,
            "handed_off": _NUMBER,
            "confirmed": _NUMBER,
            "last_used_us": _TIME,
            "expired_at_us": _TIME,
        },
        frozenset(("expired_at_us",)),
    ),
    Kind(
        "message",
        "messages",
        Message,
        {
            "position": _COUNTED,
            "session": _ID,
            "sent_at_us": _TIME,
            "tombstoned_at_us": _TIME,
            "ended_sequence": _COUNTED,
            "envelope": _Object(),
        },
        frozenset(("tombstoned_at_us", "ended_sequence")),
        order="sequence",
    ),
    Kind(
        "receipt",
        "receipts",
        Receipt,
        {
            "session": _ID,
            "operation_id": _ID,
            "fingerprint": _Fingerprint(),
            "result": _Object(),
            "accepted_at_us": _TIME,
            "expires_at_us": _TIME,
        },
        order="session, operation_id",
    ),
)
"""In the order of the file: what a record refers to stands before it (a session's parent apart)."""

_HEADER_FIELDS: Final[Mapping[str, Check]] = {
    HEADER: Integer(1),
    "schema": Integer(1),
    "bus_id": _ID,
    "exported_at": _TEXT,
    "last_sequence": _NUMBER,
    "last_generation": _NUMBER,
    "purged_through": _NUMBER,
}
_TRAILER_FIELDS: Final[Mapping[str, Check]] = {
    "counts": _Object(),
    "sha256": Text(min_bytes=64, max_bytes=64),
}
_BODY: Final = {name: check for name, check in Send.FIELDS.items() if name != "operation_id"}
_ENVELOPE_FIELDS: Final[Mapping[str, Check]] = {
    "message_id": _ID,
    "revision": _COUNTED,
    "sequence": _COUNTED,
    "channel_kind": Choice(("ordinary", "memory")),
    "sender": _Object(),
    "sent_at": _TEXT,
    "depth": _NUMBER,
    **_BODY,
}
_SENDER_MAY_LACK: Final = ("child", "repository")
_SENDER_FIELDS: Final[Mapping[str, Check]] = dict.fromkeys(
    ("agent", "agent_id", "session_id", "application", "display_name", *_SENDER_MAY_LACK), _TEXT
)
_ENVELOPE_MAY_LACK: Final = tuple(name for name in _BODY if name not in ("channel", "content"))


def decode_line(line: bytes) -> dict[str, Any]:
    """One line as an object. Raises ValidationError."""
    value = decode_strict(line, depth=_LINE_DEPTH)
    if not isinstance(value, dict):
        raise ValidationError(f"must be an object, not {describe(value)}")
    return value


def checked_header(value: dict[str, Any]) -> dict[str, Any]:
    """The first line. Raises ValidationError."""
    if HEADER not in value:
        raise ValidationError(f"is not an export of agentbus: its first line has no {HEADER}")
    if value[HEADER] != FORMAT_VERSION:
        raise ValidationError(
            f"has format version {describe(value[HEADER])}, this program reads {FORMAT_VERSION}; "
            "use the agentbus that wrote it"
        )
    header = _checked(value, _HEADER_FIELDS)
    if header["purged_through"] > header["last_sequence"]:
        raise ValidationError("purged_through is above last_sequence")
    return header


def checked_record(kind: Kind, value: Any) -> dict[str, Any]:
    """The fields of a record. Raises ValidationError that names the field."""
    if kind.later and isinstance(value, dict):
        value = {**kind.later, **value}
    return _checked(value, kind.fields, nullable=kind.nullable)


def checked_trailer(value: Any) -> dict[str, Any]:
    """The last line's content. Raises ValidationError."""
    return _checked(value, _TRAILER_FIELDS)


def check_envelope(envelope: dict[str, Any], sent_at_us: int) -> None:
    """Raises ValidationError for an envelope that the bus cannot have made."""
    checked = _checked(envelope, _ENVELOPE_FIELDS, "envelope.", may_lack=_ENVELOPE_MAY_LACK)
    _checked(checked["sender"], _SENDER_FIELDS, "envelope.sender.", may_lack=_SENDER_MAY_LACK)
    if checked["sent_at"] != rfc3339(sent_at_us):
        raise ValidationError("envelope.sent_at is another time than sent_at_us")


def _checked(
    value: Any,
    fields: Mapping[str, Check],
    prefix: str = "",
    *,
    nullable: frozenset[str] = frozenset(),
    may_lack: tuple[str, ...] = (),
) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValidationError(f"must be an object, not {describe(value)}")
    for name in value:
        if name not in fields:
            raise ValidationError(f"{prefix}{name} is no field of it; known: {', '.join(fields)}")
    checked: dict[str, Any] = {}
    for name, check in fields.items():
        if name not in value:
            if name in may_lack:
                continue
            raise ValidationError(f"{prefix}{name} is missing")
        if value[name] is None and name in nullable:
            checked[name] = None
            continue
        try:
            checked[name] = check(value[name])
        except ValidationError as error:
            raise ValidationError(f"{prefix}{name} {error.message}") from None
    return checked
